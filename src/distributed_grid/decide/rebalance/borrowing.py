"""Which nodes need what (under pressure now, awaited by work, or pressed soon), and which lender can spare it."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from distributed_grid.decide.capacity.devices import fit_at_once
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.monitoring.demand import only_node, wanted_from
from distributed_grid.decide.rebalance.observed import (
    MOVABLE,
    Observed,
    Streaks,
    find_lender,
    fits_on_one_node,
    foreseen_key,
    gap,
    is_own,
    middle,
    pressed_key,
    short_by,
    waiting_key,
)
from distributed_grid.model.demand import Demand, Shape
from distributed_grid.model.leases import Cause
from distributed_grid.model.nodes import Node, NodeName
from distributed_grid.model.plans import Borrow, Grant, RulesFor
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector, describe, scale


@dataclass(frozen=True, slots=True)
class Need:
    """One node's need: all of the kinds of one of `helps` would meet it, in order of preference."""

    node: NodeName
    cause: Cause
    helps: tuple[ResourceVector, ...]
    delivery: str
    reason: str


def needs(seen: Observed, streaks: Streaks) -> Iterator[Need]:
    """Nodes under pressure first, the most pressed before others; then nodes that work waits for; then forecasts."""
    yield from _pressed(seen, streaks)
    for demand in seen.demand:  # the longest waiting first
        node = only_node(demand)
        if node is not None and streaks.get(waiting_key(node, demand.pending.shape), 0) >= seen.numbers.high_rounds:
            yield from _waiting(seen, node, demand)
    yield from _foreseen(seen, streaks)


def _pressed(seen: Observed, streaks: Streaks) -> Iterator[Need]:
    found = [(seen.value(name, kind), name, kind) for name in seen.nodes for kind in MOVABLE]
    high = [(v, name, kind) for v, name, kind in found if v is not None and v >= seen.thresholds[kind].high]
    for value, name, kind in sorted(high, key=lambda one: (-one[0], one[1], one[2])):
        rounds = streaks.get(pressed_key(name, kind), 0)
        if rounds >= seen.numbers.high_rounds:
            why = f"{name} has been under pressure for {rounds} rounds: {kind} at {value:.0%}"
            yield from _for_use(seen, name, kind, value, Cause.PRESSURE, why)


def _foreseen(seen: Observed, streaks: Streaks) -> Iterator[Need]:
    for name in seen.nodes:
        for kind in MOVABLE:
            rounds, value = streaks.get(foreseen_key(name, kind), 0), seen.foreseen(name, kind)
            if rounds >= seen.numbers.high_rounds and value is not None and (name, kind) not in seen.pressed:
                minutes = seen.forecasts[name, kind].horizon_s / 60
                why = f"{name} is expected to come under pressure: {kind} at {value:.0%} in {minutes:.0f} min"
                yield from _for_use(seen, name, kind, value, Cause.FORECAST, why)


def _for_use(seen: Observed, name: NodeName, kind: str, use: float, cause: Cause, why: str) -> Iterator[Need]:
    """The amount that brings the use down, at most as much again as the node has.

    A node that lends the kind gets its own back instead.
    """
    if name not in seen.snapshots or not seen.is_there(name) or seen.usage.lent(name, kind):
        return
    mine = seen.own_leases(name, kind, Cause.PRESSURE, Cause.FORECAST)
    if any(seen.is_young(lease) for lease in mine):
        return
    one, base, own = scale(kind), seen.snapshots[name].base[kind], Usage.of(mine)
    borrowed = own.borrowed_by(name)[kind]
    left = base - borrowed
    # Capacity that is reserved elsewhere for the node is not in its total, but serves its work.
    elsewhere = borrowed - own.moved_in(name, kind)
    lacking = short_by(kind, use, seen.snapshots[name].total[kind], seen.thresholds[kind]) - elsewhere
    units = min(lacking, left - left % one)
    if units >= one:
        goal = f"{describe(kind, units)} more would bring that towards {middle(seen.thresholds[kind]):.0%}"
        yield Need(name, cause, (ResourceVector({kind: units}),), "auto", f"{why}; {goal}")


def _waiting(seen: Observed, name: NodeName, demand: Demand) -> Iterator[Need]:
    """The amount that lets waiting work start on the one node that it waits for: as much of it as possible, or one."""
    shape, node = demand.pending.shape, seen.nodes.get(name)
    if node is None or not node.alive or not fits_on_one_node(shape):
        return
    rooms = (_room(seen, node, shape, kind) // units for kind, units in shape.needs.items())
    # The devices may have room for fewer of them than the sum of what is free on them.
    up_to = range(1, min([demand.pending.count, *rooms]) + 1)
    most = bisect_left(up_to, True, key=lambda count: not gap(shape, node, count).keys() <= set(MOVABLE))
    counts = dict.fromkeys((most, 1)) if most >= 1 else {}
    helps = [_whole(missing) for count in counts if (missing := gap(shape, node, count))]
    # If what the node lent would serve the work, that comes back, and nothing is borrowed.
    has_lent = any(seen.usage.lent(name, kind) for amounts in helps for kind in amounts)
    if has_lent and (fit_at_once(node.base, *shape.all_needs) or _lends_by_itself(seen, name)):
        return
    if helps:
        what = f"{demand.pending.count} x {shape.describe()}"
        yield Need(name, Cause.DEMAND, tuple(helps), "transfer", f"waits for {name}: {what}; {demand.detail}")


def _room(seen: Observed, node: Node, shape: Shape, kind: str) -> int:
    """The free amount, and the amount that may be borrowed: at most as much again as the node has, or one of these
    needs."""
    mine = seen.own_leases(node.name, kind, Cause.DEMAND)
    if kind not in MOVABLE or any(seen.is_young(lease) for lease in mine):
        return node.free[kind]
    most = max(node.base[kind], shape.needs[kind]) - Usage.of(mine).borrowed_by(node.name)[kind]
    return node.free[kind] + max(0, most)


def _whole(amounts: ResourceVector) -> ResourceVector:
    return ResourceVector({kind: -(-units // scale(kind)) * scale(kind) for kind, units in amounts.items()})


def _lends_by_itself(seen: Observed, name: NodeName) -> bool:
    return any(lease.source == name and is_own(lease) for lease in seen.leases)


OWN_LEASE_S: Final = 1800.0
"""How long a lease that grid makes by itself lasts; one that is still needed is renewed before its end."""
REQUESTER: Final = "grid"
_MOST_TRIED: Final = 16
"""How many needs are examined in one round: the most pressing first."""


def borrowings(
    seen: Observed, streaks: Streaks, rules_for: RulesFor, lending: set[NodeName]
) -> Iterator[tuple[Borrow, ...]]:
    """The grants to make: each item is one node's need, and its parts only help together.

    In one round, no node lends twice or lends what it gets: the next round sees what a grant changed. `lending`: the
    nodes that already lend in this round; further lenders are added.
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
    """Nodes that need the kind themselves: now, soon, for waiting work, or already as borrowers of it."""
    short = {name for name in seen.nodes if (name, kind) in seen.pressed or seen.will_be_pressed(name, kind)}
    borrowers = {one.target for one in seen.leases if is_own(one) and one.kind == kind and one.holds_capacity}
    return short | borrowers | {name for name in seen.waited_for(kind) if _is_too_small(seen, name, kind)}


def _too_busy(seen: Observed, target: NodeName, kind: str) -> set[NodeName]:
    """Nodes that are not idle because their machines are busy; on the target's own machine that makes no difference."""
    node = seen.nodes[target]
    return {one.name for one in seen.nodes.values() if one.is_crowded_for(node, kind)}


def _is_too_small(seen: Observed, name: NodeName, kind: str) -> bool:
    """Whether a node has too little of a kind free for all the work that waits for it in particular."""
    waiting = [(one.pending.shape, one.pending.count) for one in wanted_from(seen.demand, name)]
    return name not in seen.nodes or any(gap(shape, seen.nodes[name], count)[kind] for shape, count in waiting)


def _grant(
    seen: Observed, need: Need, kind: str, units: int, taken: set[NodeName], rules_for: RulesFor
) -> Grant | None:
    request = ask_for(need.node, kind, units, need.cause, need.delivery)
    rules = rules_for(request)
    if kind in seen.queued or (need.delivery == "transfer" and rules.no_transfers_because is not None):
        return None
    lenders = seen.without(may_not_lend(seen, kind) | _too_busy(seen, need.node, kind) | taken)
    # To lower use, any whole unit helps; waiting work starts with all that it needs, or not at all.
    least = units if need.cause is Cause.DEMAND else scale(kind)
    plan = find_lender(request, lenders, rules, least=least)
    return plan if isinstance(plan, Grant) else None


def ask_for(node: NodeName, kind: str, units: int, cause: Cause, delivery: str) -> Ask:
    """A request that grid makes by itself: others that need the capacity go first."""
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
    """The plan names the lender: another lender may be one that needs the capacity itself."""
    return Borrow(replace(grant.ask, sources=(grant.source,)), need.reason)
