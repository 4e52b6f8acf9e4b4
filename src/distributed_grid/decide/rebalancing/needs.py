"""Who is short of what: nodes under pressure, nodes for which work waits, nodes of which that is expected."""

from collections.abc import Iterator
from dataclasses import dataclass

from distributed_grid.decide.demand import only_node
from distributed_grid.decide.rebalancing.observed import Observed, Streaks, is_own
from distributed_grid.decide.rebalancing.streaks import foreseen_key, pressed_key, waiting_key
from distributed_grid.decide.shortage import MOVABLE, fits_on_one_node, gap, middle, short_by
from distributed_grid.model.demand import Demand, Shape
from distributed_grid.model.leases import Cause, Delivery
from distributed_grid.model.nodes import Node, NodeName
from distributed_grid.model.resources import ResourceVector, describe, scale


@dataclass(frozen=True, slots=True)
class Need:
    """What would help one node, in order of preference: all of the kinds of one of these."""

    node: NodeName
    cause: Cause
    helps: tuple[ResourceVector, ...]
    delivery: str
    reason: str


def needs(seen: Observed, streaks: Streaks) -> Iterator[Need]:
    """The pressed first, the most pressed of them before the others; then for whom work waits, and who is foreseen."""
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
    """What brings the use down; at most as much again as the node has. One that lends the kind gets its own back."""
    if name not in seen.snapshots or not seen.is_there(name) or seen.loans.lent(name, kind):
        return
    mine = seen.own_leases(name, kind, Cause.PRESSURE, Cause.FORECAST)
    if any(seen.is_young(lease) for lease in mine):
        return
    one, base = scale(kind), seen.snapshots[name].base[kind]
    left = base - sum(lease.units for lease in mine)
    # What is reserved elsewhere for it is not in its total, but there for its work.
    elsewhere = sum(lease.units for lease in mine if lease.delivery is Delivery.RESERVE)
    lacking = short_by(kind, use, seen.snapshots[name].total[kind], seen.thresholds[kind]) - elsewhere
    units = min(lacking, left - left % one)
    if units >= one:
        goal = f"{describe(kind, units)} more would bring that towards {middle(seen.thresholds[kind]):.0%}"
        yield Need(name, cause, (ResourceVector({kind: units}),), "auto", f"{why}; {goal}")


def _waiting(seen: Observed, name: NodeName, demand: Demand) -> Iterator[Need]:
    """What lets waiting work start on the one node that it waits for: as much of it as may be, or one."""
    shape, node = demand.pending.shape, seen.nodes.get(name)
    if node is None or not node.alive or not fits_on_one_node(shape):
        return
    most = min(
        [demand.pending.count, *(_room(seen, node, shape, kind) // units for kind, units in shape.needs.items())]
    )
    counts = dict.fromkeys((most, 1)) if most >= 1 else {}
    helps = [_whole(missing) for count in counts if (missing := gap(shape, node, count))]
    # What it lent would serve it: then that comes back, and nothing is borrowed.
    has_lent = any(seen.loans.lent(name, kind) for amounts in helps for kind in amounts)
    if has_lent and (node.base.covers(shape.needs) or _lends_by_itself(seen, name)):
        return
    if helps:
        what = f"{demand.pending.count} x {shape.describe()}"
        yield Need(name, Cause.DEMAND, tuple(helps), "transfer", f"waits for {name}: {what}; {demand.detail}")


def _room(seen: Observed, node: Node, shape: Shape, kind: str) -> int:
    """What is free, and what may be borrowed: at most as much again as the node has, or what one of these needs."""
    mine = seen.own_leases(node.name, kind, Cause.DEMAND)
    if kind not in MOVABLE or any(seen.is_young(lease) for lease in mine):
        return node.free[kind]
    most = max(node.base[kind], shape.needs[kind]) - sum(lease.units for lease in mine)
    return node.free[kind] + max(0, most)


def _whole(amounts: ResourceVector) -> ResourceVector:
    return ResourceVector({kind: -(-units // scale(kind)) * scale(kind) for kind, units in amounts.items()})


def _lends_by_itself(seen: Observed, name: NodeName) -> bool:
    return any(lease.source == name and is_own(lease) for lease in seen.leases)
