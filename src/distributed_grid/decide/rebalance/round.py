"""Rebalancing: what grid does without a request. One look, then a bounded list of actions, each with its reason.

Nothing is done on one round alone: a node that is short for `high_rounds` rounds borrows, a node that is relieved for
`low_rounds` rounds returns, and in between nothing changes.
"""

from collections.abc import Iterator

from distributed_grid.decide.rebalance.borrowing import OWN_LEASE_S, borrowings
from distributed_grid.decide.rebalance.observed import (
    Forecasts,
    Observed,
    Streaks,
    count,
    renewals,
    returns,
    unneeded_key,
)
from distributed_grid.decide.rebalance.protection import protections
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plans import Action, Borrow, Relieve, RulesFor

__all__ = ["OWN_LEASE_S", "Forecasts", "Observed", "Streaks", "rebalance"]


def rebalance(seen: Observed, before: Streaks, rules_for: RulesFor) -> tuple[tuple[Action, ...], Streaks]:
    """What to do now, and what to remember for the next round.

    1. Lenders that need their own capacity are protected: under every policy, in every mode.
    2. What grid borrowed and no longer needs is returned: also when the policy was changed since.
    3. Leases that are still needed and would end are renewed: where grid acts by itself.
    4. Nodes that are short borrow: where grid acts by itself.

    At most `changes_per_round` actions, and one for each lease.
    """
    streaks = count(seen, before)
    allowed = seen.numbers.changes_per_round
    actions: list[Action] = []
    touched: set[str] = set()
    for together in _wanted(seen, streaks, rules_for):
        ids = {lease.id for action in together for lease in _leases_of(action)}
        if len(actions) + len(together) <= allowed and touched.isdisjoint(ids):
            actions.extend(together)
            touched |= ids
        if len(actions) >= allowed:
            break
    return tuple(actions), streaks


def _wanted(seen: Observed, streaks: Streaks, rules_for: RulesFor) -> Iterator[tuple[Action, ...]]:
    """The wanted actions, by importance; actions that only help together come together."""
    lending: set[NodeName] = set()
    for protection in protections(seen, streaks, rules_for, lending):
        yield (protection,)
    unneeded = {lease.id: streaks.get(unneeded_key(lease), 0) for lease in seen.leases}
    for back in returns(seen, unneeded):
        yield (back,)
    if seen.acts_by_itself:
        for renewed in renewals(seen):
            yield (renewed,)
        yield from borrowings(seen, streaks, rules_for, lending)


def _leases_of(action: Action) -> tuple[Lease, ...]:
    match action:
        case Borrow():
            return ()
        case Relieve():
            return action.victims
        case _:
            return (action.lease,)
