"""Rebalancing: what grid does without a request. One look, then a bounded list of actions, each with its reason.

Nothing is done on one round alone: a node that is short for `high_rounds` rounds borrows, a node that is relieved for
`low_rounds` rounds returns, and in between nothing changes.

A lender whose own work needs what it lent gets it back. If another lender can take over the lease, it moves there.
This protection holds under every policy and mode in which anything is lent at all; only moving needs a policy that acts
by itself.
"""

from collections.abc import Iterator
from dataclasses import replace

from distributed_grid.decide.capacity.devices import Together, beside_all_free, fit_at_once, most_short_of, short_of
from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.returns import coming_back
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.monitoring.demand import wanted_from
from distributed_grid.decide.queue.preemption import plan_relief
from distributed_grid.decide.rebalance.borrowing import OWN_LEASE_S, borrowings, may_not_lend
from distributed_grid.decide.rebalance.observed import (
    Forecasts,
    Observed,
    Streaks,
    count,
    fits_on_one_node,
    gap,
    overloaded_key,
    own_part,
    renewals,
    returns,
    short_by,
    unneeded_key,
    waiting_key,
)
from distributed_grid.model.demand import Shape
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plans import Action, Borrow, Grant, Move, Relieve, RulesFor
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector

__all__ = ["OWN_LEASE_S", "Forecasts", "Observed", "Streaks", "rebalance"]


def rebalance(seen: Observed, before: Streaks, rules_for: RulesFor) -> tuple[tuple[Action, ...], Streaks]:
    """The actions for now, and the counts to remember for the next round.

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


def protections(
    seen: Observed, streaks: Streaks, rules_for: RulesFor, lending: set[NodeName]
) -> Iterator[Move | Relieve]:
    """For each lender that needs its own capacity: leases that others can take over, then leases to reclaim.

    No node takes over twice in a round: each node that does is added to `lending`.
    """
    capacity = Snapshot(seen.nodes, seen.usage, seen.leases)
    for name in seen.nodes:
        wanted, why = _wanted_by(seen, capacity, name, streaks)
        if not wanted:
            continue
        with capacity.trying():
            capacity.give_back(coming_back(lease for lease in seen.leases if lease.source == name))
            lacking = most_short_of(capacity[name], wanted)
        if not lacking:
            continue
        moves = list(_moves(seen, name, lacking, why, lending, rules_for)) if seen.acts_by_itself else []
        yield from moves
        moved = [move.lease for move in moves]
        takes = plan_relief(name, wanted, capacity, seen.numbers, seen.now, teams=seen.teams, given_up=moved)
        if takes:
            by_id = {lease.id: lease for lease in seen.leases}
            yield Relieve(name, tuple(by_id[id] for id in takes), takes, why)


def _wanted_by(seen: Observed, capacity: Snapshot, name: NodeName, streaks: Streaks) -> tuple[list[Together], str]:
    """What a lender should have room for, each by itself, with what it lent; and why."""
    lent = seen.usage.lent_by(name)
    if not lent:
        return [], ""
    node = seen.nodes[name]
    wanted: list[Together] = []
    reasons: list[str] = []
    for kind in lent:
        rounds = streaks.get(overloaded_key(name, kind), 0)
        if rounds >= seen.numbers.high_rounds and (found := _short_of_own(seen, name, kind)) is not None:
            part, units = found
            wanted.append(beside_all_free(node, kind, units))
            reasons.append(f"{name}'s own use of {kind} has been high for {rounds} rounds: {part:.0%}")
    for demand in wanted_from(seen.demand, name):
        shape = demand.pending.shape
        missing = gap(shape, node)
        waited = streaks.get(waiting_key(name, shape), 0) >= seen.numbers.high_rounds
        # Counts only if the node's own base would serve it, and there is room once all that it lent is back.
        if waited and missing and fits_on_one_node(shape) and _would_serve(capacity, name, shape):
            wanted.append(shape.all_needs)
            reasons.append(f"{shape.describe()} waits for what {name} lent")
    return wanted, "; ".join(reasons)


def _short_of_own(seen: Observed, name: NodeName, kind: str) -> tuple[float, int] | None:
    snapshot = seen.snapshots.get(name)
    if snapshot is None:
        return None
    for_others = seen.usage.reserved_for_others(name)[kind]
    part = own_part(snapshot, kind, for_others)
    if part is None or part < seen.thresholds[kind].high:
        return None
    return part, short_by(kind, part, max(0, snapshot.total[kind] - for_others), seen.thresholds[kind])


def _would_serve(capacity: Snapshot, name: NodeName, shape: Shape) -> bool:
    if not fit_at_once(capacity[name].base, *shape.all_needs):
        return False
    with capacity.trying():
        capacity.give_back([lease for lease in capacity.leases if lease.source == name != lease.target])
        return not short_of(capacity[name], *shape.all_needs)


def _moves(
    seen: Observed, name: NodeName, lacking: ResourceVector, why: str, lending: set[NodeName], rules_for: RulesFor
) -> Iterator[Move]:
    """Transfers that another lender can take over, large ones first, until the shortage is covered.

    Reservations stay: work runs in them, on this node.
    """
    for kind in (kind for kind in lacking if kind not in seen.queued):
        left = lacking[kind]
        for lease in sorted(seen.leases, key=lambda lease: (-lease.units, lease.id)):
            if left <= 0:
                break
            if lease.source != name or lease.kind != kind or not _is_movable(seen, lease):
                continue
            left_s = (lease.expires_at - seen.now).total_seconds()
            request = replace(Ask.again(lease), duration_s=left_s, delivery=str(lease.delivery))
            hot = (may_not_lend(seen, kind) | lending | {name}) - {lease.target}
            rules = rules_for(request)
            if rules.no_transfers_because is not None:
                return
            plan = plan_grant(request, seen.without(hot), seen.usage, rules)
            if isinstance(plan, Grant):
                left -= lease.units
                lending.add(plan.source)
                yield Move(lease, replace(plan, ask=replace(plan.ask, sources=(plan.source,))), why)


def _is_movable(seen: Observed, lease: Lease) -> bool:
    """Whether a lease can move; one with several lenders cannot. One that is nearly over comes back by itself before
    another could replace it."""
    return (
        lease.id == lease.whole_id
        and lease.delivery.moves_totals
        and lease.state is LeaseState.ACTIVE
        and seen.is_there(lease.target)
        and not lease.coming_back
        and not seen.is_young(lease)
        and (lease.expires_at - seen.now).total_seconds() > seen.numbers.min_hold_s
    )
