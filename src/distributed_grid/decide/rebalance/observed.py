"""The view of a round of rebalancing, and the counts that it remembers.

It looks at nodes' own use, shortages, and leases that grid made by itself. It remembers for how many rounds in a row
something has been true. One round alone changes nothing.
"""

import math
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from distributed_grid.decide.capacity.devices import short_of
from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.monitoring.demand import only_node
from distributed_grid.decide.monitoring.pressure import Pressed, Threshold, measured_over
from distributed_grid.decide.policies import PolicyNumbers
from distributed_grid.decide.queue.claims import hold_ends
from distributed_grid.model.demand import Demand, Shape
from distributed_grid.model.leases import Cause, Lease, LeaseState
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import Grant, Refused, Renew, Return, Rules
from distributed_grid.model.policies import SharingMode
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import BUILT_IN, CPU, MEMORY, ResourceVector, describe, scale
from distributed_grid.model.series import Forecast
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.model.teams import Teams


def own_part(snapshot: NodeSnapshot, kind: str, for_others: int) -> float | None:
    """0..1: the node's own use, of what is left to it; None: not measured.

    Reserved capacity counts as used by its holders. So a lender does not seem pressed by the work that it was asked to
    carry, and a lender whose own work has outgrown its part still shows.
    """
    value = snapshot.own_pressure(kind)
    return None if value is None else own_part_of(value, snapshot, kind, for_others)


def own_part_of(value: float, snapshot: NodeSnapshot, kind: str, for_others: int) -> float:
    """The same for a use that was not measured but is expected."""
    if snapshot.measured is None or not for_others:
        return value
    has = measured_over(snapshot.measured, snapshot.total, kind, shares_its_host=snapshot.shares_its_host)
    used, left = value * has - for_others, has - for_others
    if left <= 0:
        return 1.0 if used > 0 else 0.0
    return min(1.0, max(0.0, used / left))


MOVABLE: Final = (CPU, MEMORY)
"""The kinds that grid moves without a request. GPUs cannot move, and a custom resource may stand for something of the
machine."""

Thresholds = Mapping[str, Threshold]


def middle(threshold: Threshold) -> float:
    """Where use should be: halfway between relieved and pressed."""
    return (threshold.low + threshold.high) / 2


def short_by(kind: str, use: float, capacity: int, threshold: Threshold) -> int:
    """How much more capacity brings this use down to the middle; whole CPUs or GBs, and at least one."""
    lacking = capacity * (use / middle(threshold) - 1)
    return max(1, math.ceil(lacking / scale(kind))) * scale(kind)


def gap(shape: Shape, node: Node, count: int = 1) -> ResourceVector:
    """The capacity that a node lacks to start `count` of these at once."""
    return short_of(node, *shape.all_needs, count=count)


def fits_on_one_node(shape: Shape) -> bool:
    """Whether room on a single node is enough; it is not for a group whose bundles must be apart."""
    return shape.in_group is None and not (shape.strategy == "STRICT_SPREAD" and len(shape.bundles) > 1)


def find_lender(ask: Ask, capacity: Snapshot, rules: Rules, *, least: int) -> Grant | Refused:
    """A grant of the requested amount, or else of the most that one node can lend, if that is at least `least`."""
    plan = plan_grant(ask, capacity, capacity.usage, rules)
    if isinstance(plan, Grant):
        return plan
    most = max((refusal.could_lend for refusal in plan.refusals), default=0)
    units = most - most % scale(ask.kind)
    if units < max(1, least):
        return plan
    smaller = plan_grant(replace(ask, units=units), capacity, capacity.usage, rules)
    return smaller if isinstance(smaller, Grant) else plan


Forecasts = Mapping[tuple[NodeName, str], Forecast]

Streaks = Mapping[Hashable, int]
"""For how many rounds in a row something has been true."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a round's decisions rest on."""

    nodes: NodeTable
    snapshots: Mapping[NodeName, NodeSnapshot]
    pressed: Pressed
    demand: tuple[Demand, ...]
    leases: tuple[Lease, ...]
    usage: Usage
    thresholds: Thresholds
    numbers: PolicyNumbers
    mode: SharingMode
    now: datetime
    forecasts: Forecasts = field(default_factory=dict)
    """The forecasts, where the policy acts on them."""
    queued: frozenset[str] = frozenset()
    """The kinds that requests in the queue wait for: grid does not take what is free of them."""
    teams: Teams = field(default_factory=Teams)

    @property
    def acts_by_itself(self) -> bool:
        return self.numbers.acts_by_itself and self.mode is SharingMode.DYNAMIC_BALANCING

    def without(self, names: Iterable[NodeName]) -> Snapshot:
        """The cluster in which these nodes have nothing to lend."""
        capacity = Snapshot(self.nodes, self.usage)
        capacity.withdraw(names)
        return capacity

    def is_there(self, node: NodeName) -> bool:
        """Whether a node is there: measurements, leases and demand may concern a node that has left since."""
        found = self.nodes.get(node)
        return found is not None and found.alive

    def value(self, node: NodeName, kind: str) -> float | None:
        """How pressed the node is by its own work; None: no recent measurement, or the node has just left."""
        snapshot = self.snapshots.get(node)
        return snapshot.own_pressure(kind) if self.is_there(node) and snapshot is not None else None

    def foreseen(self, node: NodeName, kind: str) -> float | None:
        """How pressed the node is expected to be, under a policy that acts on forecasts."""
        if not self.numbers.foresees:
            return None
        forecast = self.forecasts.get((node, kind))
        return None if forecast is None else forecast.value

    def will_be_pressed(self, node: NodeName, kind: str) -> bool:
        value = self.foreseen(node, kind)
        return value is not None and value >= self.thresholds[kind].high

    def waited_for(self, kind: str) -> set[NodeName]:
        """The nodes that work waits for in particular, if that work needs some of this kind."""
        found = {only_node(one) for one in self.demand if kind in one.pending.shape.needs}
        return {name for name in found if name is not None}

    def is_young(self, lease: Lease) -> bool:
        """Whether the lease is in its minimum hold, in which it is neither returned nor moved."""
        return hold_ends(lease, self.numbers.min_hold_s) > self.now

    def own_leases(self, target: NodeName, kind: str, *causes: Cause) -> list[Lease]:
        """The leases that grid made for a node without a request and has not returned, for these causes or for any."""
        return [
            lease
            for lease in self.leases
            if (lease.target, lease.kind) == (target, kind)
            and is_own(lease)
            and not lease.is_winding_down
            and (not causes or lease.cause in causes)
        ]


def kinds_asked(queue: Iterable[Waiting]) -> frozenset[str]:
    """Every kind that a waiting request states, whichever of them it lacks."""
    return frozenset(kind for waiting in queue for kind, _ in waiting.ask.asked)


def is_own(lease: Lease) -> bool:
    """Whether grid made the lease without a request."""
    return not lease.cause.is_request


def returns(seen: Observed, unneeded_for: dict[str, int]) -> Iterator[Return]:
    """Leases to return. Of one node's leases of one kind, one per round: the next round sees what that changed."""
    done: set[tuple[str, str]] = set()
    for lease in _own(seen):
        rounds = unneeded_for.get(lease.id, 0)
        key = (lease.target, lease.kind)
        if rounds >= seen.numbers.low_rounds and not seen.is_young(lease) and key not in done:
            done.add(key)
            yield Return(lease, f"{_why_unneeded(seen, lease)}, for {rounds} rounds")


def renewals(seen: Observed) -> Iterator[Renew]:
    """Leases that would end although needed: the target would lose them, and get them again some rounds later."""
    for lease in _own(seen):
        if seen.now >= lease.renewal_due and (why := _why_needed(seen, lease)) is not None:
            yield Renew(lease, why)


def is_unneeded(seen: Observed, lease: Lease) -> bool | None:
    """Whether what grid borrowed is not needed now; None: no recent measurement."""
    if lease.cause is Cause.DEMAND:
        target = seen.nodes.get(lease.target)
        idle = target is not None and target.free[lease.kind] >= lease.units
        return idle and lease.target not in seen.waited_for(lease.kind)
    value = seen.value(lease.target, lease.kind)
    if value is None:
        return None
    threshold = seen.thresholds[lease.kind]
    foreseen = seen.foreseen(lease.target, lease.kind)
    return (
        (lease.target, lease.kind) not in seen.pressed
        and value <= threshold.low
        and _use_without(seen, lease, value) <= middle(threshold)
        and (foreseen is None or foreseen <= middle(threshold))
    )


def _use_without(seen: Observed, lease: Lease, value: float) -> float:
    """How pressed the target would be without the lease.

    Where pressure is measured against what the target offers, a return makes the target busier. It must not bring the
    pressure back.
    """
    snapshot = seen.snapshots[lease.target]
    total = snapshot.total[lease.kind]
    if not lease.delivery.moves_totals or not snapshot.shares_its_host or total <= lease.units:
        return value
    return value * total / (total - lease.units)


def _own(seen: Observed) -> list[Lease]:
    """The active leases that grid made by itself, the oldest first."""
    own = (lease for lease in seen.leases if is_own(lease) and lease.state is LeaseState.ACTIVE)
    return sorted(own, key=lambda lease: (lease.allocated_at, lease.id))


def _why_unneeded(seen: Observed, lease: Lease) -> str:
    if lease.cause is Cause.DEMAND:
        return f"nothing waits for {lease.target}, and {describe(lease.kind, lease.units)} are idle there"
    value = seen.value(lease.target, lease.kind) or 0.0
    return f"{lease.target}'s {lease.kind} is at {value:.0%}, not above {seen.thresholds[lease.kind].low:.0%}"


def _why_needed(seen: Observed, lease: Lease) -> str | None:
    key = (lease.target, lease.kind)
    if lease.cause is Cause.DEMAND:
        return None if is_unneeded(seen, lease) else f"{lease.target} still uses it, or work still waits for it"
    if key in seen.pressed:
        return f"{lease.target} is still under {lease.kind} pressure"
    return f"{lease.target} is expected to come under {lease.kind} pressure" if seen.will_be_pressed(*key) else None


def pressed_key(node: NodeName, kind: str) -> Hashable:
    return "pressed", node, kind


def foreseen_key(node: NodeName, kind: str) -> Hashable:
    return "foreseen", node, kind


def overloaded_key(node: NodeName, kind: str) -> Hashable:
    """A lender whose own work needs what it lent."""
    return "overloaded", node, kind


def waiting_key(node: NodeName, shape: Shape) -> Hashable:
    return "waiting", node, shape


def unneeded_key(lease: Lease) -> Hashable:
    return "unneeded", lease.id


def count(seen: Observed, before: Streaks) -> dict[Hashable, int]:
    """One more for what is true now; what is not known now stays as it was; all else starts again."""
    found: dict[Hashable, int] = {}
    for key, is_so in _facts(seen):
        if is_so is None:
            found[key] = before.get(key, 0)
        elif is_so:
            found[key] = before.get(key, 0) + 1
    return {key: rounds for key, rounds in found.items() if rounds}


def _facts(seen: Observed) -> Iterator[tuple[Hashable, bool | None]]:
    for name in seen.nodes:
        for kind in BUILT_IN:
            known = seen.value(name, kind) is not None
            lends = bool(seen.usage.lent(name, kind))
            # A lender gets its own capacity back first. Then it has as long as any node to see whether that is enough.
            yield pressed_key(name, kind), (name, kind) in seen.pressed and not lends if known else None
            yield foreseen_key(name, kind), seen.will_be_pressed(name, kind) and not lends
            if lends:
                yield overloaded_key(name, kind), _is_overloaded(seen, name, kind)
    for demand in seen.demand:
        if (node := only_node(demand)) is not None:
            yield waiting_key(node, demand.pending.shape), True
    for lease in seen.leases:
        if is_own(lease) and not lease.is_winding_down:
            yield unneeded_key(lease), is_unneeded(seen, lease)


def _is_overloaded(seen: Observed, name: NodeName, kind: str) -> bool | None:
    snapshot = seen.snapshots.get(name)
    part = None if snapshot is None else own_part(snapshot, kind, seen.usage.reserved_for_others(name)[kind])
    return None if part is None else part >= seen.thresholds[kind].high
