"""From whom grid borrows without being asked: who can spare it, and has no need of it itself."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from distributed_grid.decide.demand import wanted_from
from distributed_grid.decide.rebalancing.needs import Need, needs
from distributed_grid.decide.rebalancing.observed import Observed, Streaks, is_own
from distributed_grid.decide.shortage import find_lender, gap, with_nothing_to_lend
from distributed_grid.model.actions import Borrow
from distributed_grid.model.leases import Cause
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plans import Grant
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import scale
from distributed_grid.model.rules import RulesFor

OWN_LEASE_S: Final = 1800.0
"""How long a lease lasts that grid makes by itself; one that is still needed then is renewed before."""
REQUESTER: Final = "grid"
_MOST_TRIED: Final = 16
"""So many nodes' needs are looked into in one round: those that are pressed most."""


def borrowings(
    seen: Observed, streaks: Streaks, rules_for: RulesFor, lending: set[NodeName]
) -> Iterator[tuple[Borrow, ...]]:
    """What to borrow: each item is one node's need, whose parts are of use together only.

    Nobody lends twice in a round, or lends what it gets in the same round: what one loan changes, the next round sees.
    `lending`: who lends in this round already; who does after this is added.
    """
    borrowing: set[tuple[NodeName, str]] = set()
    for need in islice(needs(seen, streaks), _MOST_TRIED):
        for amounts in need.helps:
            taken = {kind: lending | {node for node, of in borrowing if of == kind} for kind in amounts}
            grants = [_grant(seen, need, kind, amounts[kind], taken[kind], rules_for) for kind in amounts]
            found = [grant for grant in grants if grant is not None]
            if len(found) == len(grants):
                lending |= {grant.source for grant in found}
                borrowing |= {(need.node, kind) for kind in amounts}
                yield tuple(_borrow(need, grant) for grant in found)
                break


def may_not_lend(seen: Observed, kind: str) -> set[NodeName]:
    """Who needs the kind itself: now, soon, for work that waits for it, or so much that grid borrowed it."""
    short = {name for name in seen.nodes if (name, kind) in seen.pressed or seen.will_be_pressed(name, kind)}
    borrowers = {one.target for one in seen.leases if is_own(one) and one.kind == kind and one.holds_capacity}
    return short | borrowers | {name for name in seen.waited_for(kind) if _is_too_small(seen, name, kind)}


def _too_busy(seen: Observed, target: NodeName, kind: str) -> set[NodeName]:
    """Nodes whose machines are busy are not idle. On the target's own machine that makes no difference."""
    node = seen.nodes[target]
    return {one.name for one in seen.nodes.values() if one.is_crowded_for(node, kind)}


def _is_too_small(seen: Observed, name: NodeName, kind: str) -> bool:
    """Whether a node has too little free of a kind for all that waits for it in particular."""
    waiting = [(one.pending.shape, one.pending.count) for one in wanted_from(seen.demand, name)]
    return name not in seen.nodes or any(gap(shape, seen.nodes[name], count)[kind] for shape, count in waiting)


def _grant(
    seen: Observed, need: Need, kind: str, units: int, taken: set[NodeName], rules_for: RulesFor
) -> Grant | None:
    asked = ask_for(need.node, kind, units, need.cause, need.delivery)
    rules = rules_for(asked)
    if kind in seen.queued or (need.delivery == "transfer" and rules.no_transfers_because is not None):
        return None
    lenders = with_nothing_to_lend(seen.nodes, may_not_lend(seen, kind) | _too_busy(seen, need.node, kind) | taken)
    # For use any whole one helps; work that waits starts with all that it needs, or not at all.
    least = units if need.cause is Cause.DEMAND else scale(kind)
    plan = find_lender(asked, lenders, seen.loans, rules, least=least)
    return plan if isinstance(plan, Grant) else None


def ask_for(node: NodeName, kind: str, units: int, cause: Cause, delivery: str) -> Ask:
    """What grid asks for by itself: whoever else needs it goes first."""
    return Ask(
        target=node,
        kind=kind,
        units=units,
        priority=AllocationPriority.LOW,
        duration_s=OWN_LEASE_S,
        delivery=delivery,
        requester=REQUESTER,
        cause=cause,
    )


def _borrow(need: Need, grant: Grant) -> Borrow:
    """Whom to ask is part of the plan: another lender may be one that needs it itself."""
    return Borrow(replace(grant.ask, source=grant.source), need.reason)
