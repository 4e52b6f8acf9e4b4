"""A cluster in memory that behaves as Ray was measured to, and a clock that moves only when somebody waits.

What it takes from the real one (see the design's section 2, and Ray's `HandleResizeLocalResourceInstances`):

- a resize changes each resource separately, by no less than what is in use; where Ray has oversubscribed a node,
  any resize of it raises its total to what is in use;
- resources at zero vanish from every map;
- the control service's view of each node lags on its own, by up to 0.2 s: a raylet reports now and then what it
  has at that moment, and the report takes a while to arrive;
- a freed CPU goes to the next queued task in the same step, unless a gate stands;
- a placement group whose node died stays in the table, without a place.

It watches itself: `violations` tells of every instant at which somebody could have added up more than there is.
"""

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from distributed_grid.decide.naming import NAME_LABEL, Raylet
from distributed_grid.execution.port import Group, Holder, NodeView, RayletGone, RayMap
from distributed_grid.faults import Point, fault_point
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import GB, ResourceVector, ray_name, total

LONGEST_LAG_S: Final = 0.2
LONGEST_FLIGHT_S: Final = 0.1
_CALL_S: Final = 0.0007
_STEPS: Final = 10_000  # Ray counts everything in ten-thousandths
_LATCH: Final = "grid:gate"
_TOTALS_S: Final = 0.5  # as old as this the gateway lets totals be in a view that need not be new

Amounts = dict[str, int]


class LostReply(Exception):
    """The connection broke; nobody knows whether the call was carried out."""


class Crashed(BaseException):
    """The process that made the call ends here."""


class Clock:
    """Seconds that pass only when somebody waits; whoever wants to know is told of every step."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._dues: list[Callable[[float], float | None]] = []

    def __call__(self) -> float:
        return self.now

    def on_the_way(self, due: Callable[[float], float | None]) -> None:
        """`due(until)`: the next instant up to `until` at which something happens by itself, having done it."""
        self._dues.append(due)

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        for due in self._dues:
            while (at := due(until)) is not None:
                self.now = max(self.now, at)
        self.now = until


@dataclass
class _Work:
    pid: int
    what: str
    needs: Amounts
    is_actor: bool
    began: float = 0.0
    group: str | None = None
    blocked: bool = False

    @property
    def holds(self) -> Amounts:
        """A task that waits in `ray.get` lends its CPUs to others meanwhile."""
        return {k: v for k, v in self.needs.items() if not (self.blocked and k == "CPU")}


@dataclass
class _Group:
    id: str
    name: str
    needs: Amounts
    node_id: NodeId
    placed: bool = True


@dataclass
class _Node:
    name: NodeName
    id: NodeId
    base: Amounts
    total: Amounts
    alive: bool = True
    running: dict[int, _Work] = field(default_factory=dict)
    queue: deque[_Work] = field(default_factory=deque)
    groups: dict[str, _Group] = field(default_factory=dict)
    gate: bool = False
    shown: tuple[Amounts, Amounts] = field(default_factory=lambda: ({}, {}))
    report_at: float | None = None
    on_its_way: deque[tuple[float, tuple[Amounts, Amounts]]] = field(default_factory=deque)

    def next_event(self) -> float | None:
        """When the control service hears of this node again, or the node next takes stock to tell it."""
        arrives = self.on_its_way[0][0] if self.on_its_way else None
        return min((at for at in (arrives, self.report_at) if at is not None), default=None)

    def used(self, name: str) -> int:
        plain = sum(w.holds.get(name, 0) for w in self.running.values() if w.group is None)
        return plain + sum(g.needs.get(name, 0) for g in self.groups.values())

    def free(self, name: str) -> int:
        return self.total.get(name, 0) - self.used(name)

    def fits(self, needs: Amounts) -> bool:
        return all(self.free(name) >= amount for name, amount in needs.items())


@dataclass(eq=False)
class _Upcoming:
    left: int
    call: str
    after: bool
    action: Callable[[], None]


class FakeCluster:
    """`execution.port.Cluster` for tests. Calls take no real time; `clock` is what time it is in there."""

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        lag: Callable[[], float] = lambda: 0.0,
        flight: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`lag`: how long after a change a raylet reports; `flight`: how long a report is on its way."""
        self.clock = clock or Clock()
        self.clock.on_the_way(self._hear_next)
        self._lag = lag
        self._flight = flight
        self._nodes: dict[NodeId, _Node] = {}
        self._groups: dict[str, _Group] = {}
        self._number = itertools.count(1)
        self._view_read: tuple[float, dict[NodeId, NodeView]] = (-1e9, {})
        self._totals_read = -1e9
        self.resizes = 0
        self._upcoming: list[_Upcoming] = []
        self.violations: list[str] = []
        self._excused: ResourceVector = ResourceVector()

    @classmethod
    def lagging(cls, seed: int) -> "FakeCluster":
        """One whose view of every node is late by its own, ever new, amount."""
        return cls(lag=_delays(seed), flight=_delays(seed + 1, LONGEST_FLIGHT_S))

    # -- what tests do with it -----------------------------------------------------------------------------

    def add_node(
        self, name: NodeName, *, cpus: float = 4, memory: float = 0, gpus: float = 0, **custom: float
    ) -> NodeId:
        base = _fixed({"CPU": cpus, "memory": memory * GB, "GPU": gpus} | custom)
        node_id = f"{name}-{next(self._number):04x}"
        self._nodes[node_id] = node = _Node(name, node_id, base, dict(base))
        node.shown = self._snapshot(node)
        self._check("a node joined")
        return node_id

    def kill_node(self, name: NodeName) -> None:
        """The raylet dies, and what ran on it. What it had lent is nobody's any more: that is excused."""
        node = self._named(name)
        missing = [_vector(node.base) - _vector(seen) for seen in (node.total, node.shown[0])]
        self._excused = self._excused + ResourceVector(
            {k: max(0, *(gap[k] for gap in missing)) for gap in missing for k in gap}
        )
        node.alive = False
        for group in node.groups.values():
            group.placed = False
        node.groups, node.running, node.queue = {}, {}, deque()
        self._check("a node died")

    def return_node(self, name: NodeName) -> NodeId:
        """The same machine with a new raylet."""
        old = [n for n in self._nodes.values() if n.name == name][-1]
        assert not old.alive, f"{name} is up"
        node_id = f"{name}-{next(self._number):04x}"
        self._nodes[node_id] = node = _Node(name, node_id, dict(old.base), dict(old.base))
        node.shown = self._snapshot(node)
        self._check("a node came back")
        return node_id

    def is_up(self, name: NodeName) -> bool:
        return any(n.name == name and n.alive for n in self._nodes.values())

    def start(self, name: NodeName, cpus: float = 1, *, actor: bool = False, **needs: float) -> int | None:
        """Start work if it fits now; its pid, or None."""
        node = self._named(name)
        work = self._work(cpus, actor, needs)
        if not node.fits(work.needs):
            return None
        self._run(node, work)
        self._changed(node)
        return work.pid

    def start_in_group(self, group_id: str, cpus: float = 1) -> int | None:
        group = self._groups[group_id]
        if not group.placed:
            return None
        node = self._nodes[group.node_id]
        work = self._work(cpus, False, {})
        work.group = group_id
        self._run(node, work)
        return work.pid

    def queue(self, name: NodeName, count: int = 1, cpus: float = 1) -> None:
        """Work that starts as soon as there is room."""
        node = self._named(name)
        node.queue.extend(self._work(cpus, False, {}) for _ in range(count))
        self._refill(node)
        self._changed(node)

    def finish(self, pid: int) -> None:
        if (found := self._find(pid)) is not None:
            node, _ = found
            del node.running[pid]
            self._refill(node)
            self._changed(node)

    def block(self, pid: int) -> None:
        """The work waits in `ray.get`: its CPUs are free for others."""
        if (found := self._find(pid)) is not None:
            found[1].blocked = True
            self._refill(found[0])
            self._changed(found[0])

    def unblock(self, pid: int) -> None:
        """It goes on at once, whoever has its CPUs now: this is how Ray oversubscribes."""
        if (found := self._find(pid)) is not None:
            found[1].blocked = False
            self._changed(found[0])

    def running(self, name: NodeName | None = None) -> list[int]:
        return [pid for n in self._alive() if name in (None, n.name) for pid in n.running]

    def finish_everything(self) -> None:
        for node in self._alive():
            node.queue.clear()
            for pid in list(node.running):
                self.finish(pid)

    def forget_process(self) -> None:
        """The process that used this cluster died: its gates fall, their latches stay."""
        for node in self._alive():
            if node.gate:
                node.gate = False
                self._refill(node)
                self._changed(node)
        self._view_read = (-1e9, {})

    def upcoming(self, number: int, action: Callable[[], None], *, call: str = "resize", after: bool = False) -> None:
        """At the `number`-th such call from now (the next is 0), do this first; or, with `after`, when the call has
        been carried out but not answered. The action may raise, or change the cluster: the world goes on meanwhile.
        """
        self._upcoming.append(_Upcoming(number, call, after, action))

    def nothing_upcoming(self) -> None:
        self._upcoming.clear()

    def passing(self, call: str, *, after: bool = False) -> None:
        """A call begins (or has been carried out): do what was planned for it."""
        planned = [p for p in self._upcoming if p.call == call and p.after == after]
        for each in planned:
            each.left -= 1
        due = [p for p in planned if p.left < 0]
        self._upcoming = [p for p in self._upcoming if p not in due]
        for each in due:
            each.action()

    # -- what is true, and what an outsider sees -----------------------------------------------------------

    def true_totals(self) -> dict[NodeName, ResourceVector]:
        return {n.name: _vector(n.total) for n in self._alive()}

    def visible_totals(self) -> dict[NodeName, ResourceVector]:
        return {n.name: _vector(n.shown[0]) for n in self._alive()}

    def bases(self) -> dict[NodeName, ResourceVector]:
        return {n.name: _vector(n.base) for n in self._alive()}

    def ids(self) -> dict[NodeName, NodeId]:
        return {n.name: n.id for n in self._alive()}

    def markers(self, name: NodeName) -> dict[str, float]:
        return {k: v for k, v in _floats(self._named(name).total).items() if k.startswith("grid:")}

    def reserved(self, name: NodeName) -> ResourceVector:
        return total([_vector(g.needs) for g in self._named(name).groups.values()])

    def has_place(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and group.placed

    def tamper(self, name: NodeName, **totals: float) -> None:
        """Somebody else resizes a node, by Ray's own call and with Ray's own clamping."""
        node = self._named(name)
        before = self._excess()
        for resource, amount in _fixed(totals, zeros=True).items():
            self._resize_one(node, resource, amount)
        after = total(self.true_totals()) - total(self.bases())
        self._excused = self._excused + ResourceVector({k: max(0, after[k] - before[k]) for k in after})
        self._refill(node)
        self._changed(node)

    def foreign_group(self, group_name: str, on_node: NodeName, **needs: float) -> str:
        """Somebody else makes a placement group with a name like grid's."""
        node = self._named(on_node)
        group = _Group(f"{next(self._number):08x}", group_name, _fixed(needs), node.id)
        assert node.fits(group.needs)
        self._groups[group.id] = node.groups[group.id] = group
        self._changed(node)
        return group.id

    def set_standing(self, group_id: str | None, stands: bool) -> None:
        """Ray has listed this group, and found its place for it or not yet."""
        if group_id is not None:
            self._groups[group_id].placed = stands

    def is_at_base(self) -> bool:
        """Every node has exactly what it started with, and nothing of grid's is left on it."""
        return all(n.total == n.base and not n.groups and not n.gate for n in self._alive())

    def differences(self) -> dict[NodeName, dict[str, float]]:
        """For messages: what each node has that it did not start with, or lacks."""
        found = {}
        for n in self._alive():
            names = {*n.total, *n.base}
            diff = {k: n.total.get(k, 0) - n.base.get(k, 0) for k in names}
            found[n.name] = _floats({k: v for k, v in diff.items() if v})
        return {name: diff for name, diff in found.items() if diff}

    def settle_excuses(self) -> None:
        """A round is over, and everybody has seen it: what it took back can no longer excuse anything."""
        if all(n.next_event() is None for n in self._alive()):
            self._excused = _smaller(self._excused, self._excess())

    # -- Raylets -------------------------------------------------------------------------------------------

    def raylets(self) -> tuple[Raylet, ...]:
        self.passing("raylets")
        return tuple(
            Raylet(n.id, {NAME_LABEL: n.name}, f"{n.name}-host", "10.0.0.1", _floats(n.base), is_head=i == 0)
            for i, n in enumerate(self._alive())
        )

    def totals(self) -> dict[NodeId, RayMap]:
        self.passing("totals")
        return {n.id: _floats(n.shown[0]) for n in self._alive()}

    def view(self, max_age_s: float = 0.0) -> dict[NodeId, NodeView]:
        read_at, known = self._view_read
        if known and self.clock() - read_at < max_age_s:
            return known
        self.passing("view")
        totals = {node_id: seen.total for node_id, seen in known.items()}
        alive = {n.id: n for n in self._alive()}
        if max_age_s == 0.0 or self.clock() - self._totals_read > _TOTALS_S or totals.keys() != alive.keys():
            self._totals_read = self.clock()
            totals = {n.id: _floats(n.shown[0]) for n in alive.values()}
        found = {n.id: NodeView(totals[n.id], _floats(n.shown[1])) for n in alive.values()}
        self._view_read = (self.clock(), found)
        return found

    def resize(self, node_id: NodeId, resources: RayMap) -> RayMap:
        self.passing("resize")
        self.clock.sleep(_CALL_S)
        self.resizes += 1
        node = self._nodes.get(node_id)
        if node is None or not node.alive:
            raise RayletGone(node_id)
        before = dict(node.total)
        for name, amount in _fixed(resources, zeros=True).items():
            assert name != "GPU", "Ray refuses to resize GPUs"
            assert amount >= 0, "Ray would take nonsense silently"
            self._resize_one(node, name, amount)
        if node.total != before:
            self._refill(node)
            self._changed(node)
        self.passing("resize", after=True)
        return _floats(node.total)

    def _resize_one(self, node: _Node, name: str, to: int) -> None:
        now, free = node.total.get(name, 0), node.free(name)
        delta = max(to - now, -free)  # what is in use stays; below zero this *adds*
        if free < 0 and delta > max(0, to - now):
            raised = ResourceVector.from_ray(_floats({name: delta - max(0, to - now)}))
            self._excused = self._excused + raised
        node.total[name] = now + delta
        if not node.total[name]:
            del node.total[name]

    # -- the rest of Cluster -------------------------------------------------------------------------------

    def said_by(self, raylet: Raylet) -> NodeView | None:
        self.passing("said_by")
        node = self._nodes[raylet.node_id]
        return NodeView(*map(_floats, self._snapshot(node))) if node.alive else None

    def why_no_transfers(self) -> str | None:
        return None

    def reserve(self, lease: Lease, node_id: NodeId, within_s: int) -> str | None:
        self.passing("reserve")
        if any(g.name == lease.group_name for g in self._groups.values()):
            raise ValueError(f"a placement group named {lease.group_name} exists")
        node = self._nodes.get(node_id)
        needs = _fixed(lease.resources.to_ray())
        if node is None or not node.alive or not node.fits(needs):
            self.clock.sleep(within_s)
            return None
        group = _Group(f"{next(self._number):08x}", lease.group_name, needs, node_id)
        self._groups[group.id] = node.groups[group.id] = group
        self._changed(node)
        fault_point(Point.GROUP_MADE)
        self.passing("reserve", after=True)
        return group.id

    def groups(self, *, afresh: bool = False) -> tuple[Group, ...]:
        self.passing("groups")
        found = tuple(
            Group(g.id, g.name, g.placed, g.node_id if g.placed else None, _vector(g.needs))
            for g in self._groups.values()
        )
        self.passing("groups", after=True)
        return found

    def remove_group(self, group_id: str) -> None:
        self.passing("remove_group")
        group = self._groups.pop(group_id, None)
        if group is not None and group.placed:
            node = self._nodes[group.node_id]
            node.running = {pid: w for pid, w in node.running.items() if w.group != group_id}
            del node.groups[group_id]
            self._refill(node)
            self._changed(node)
        self.passing("remove_group", after=True)

    def cancel_tasks_in_group(self, group_id: str) -> int:
        ended = 0
        for node in self._alive():
            for pid in [pid for pid, w in node.running.items() if w.group == group_id]:
                del node.running[pid]
                ended += 1
        return ended

    def holders_of(self, raylet: Raylet, kind: str) -> tuple[Holder, ...]:
        node = self._nodes[raylet.node_id]
        name = ray_name(kind)
        busy = [w for w in node.running.values() if w.group is None and w.holds.get(name)]
        return tuple(_holder(w) for w in sorted(busy, key=lambda w: (w.is_actor, -w.began, -w.pid)))

    def is_group_idle(self, raylet: Raylet, group_id: str) -> bool:
        node = self._nodes[raylet.node_id]
        return node.alive and group_id in node.groups and not self.holders_in_group(raylet, group_id)

    def holders_in_group(self, raylet: Raylet, group_id: str) -> tuple[Holder, ...]:
        node = self._nodes[raylet.node_id]
        return tuple(_holder(w) for w in node.running.values() if w.group == group_id)

    def kill(self, node_id: NodeId, holders: tuple[Holder, ...]) -> int:
        """Ray retries a killed task: in the worst case on the same node."""
        self.passing("kill")
        node = self._nodes[node_id]
        victims = [node.running.pop(h.pid) for h in holders if h.pid in node.running]
        for work in victims:
            if not work.is_actor:
                node.queue.append(_Work(next(self._number), work.what, work.needs, False))
        self._refill(node)
        self._changed(node)
        return len(victims)

    def gate(self, node_id: NodeId, cpus: float) -> None:
        node = self._nodes[node_id]
        if node.alive and cpus >= 0.01:
            node.gate = True
            node.total[_LATCH] = _STEPS
            self._changed(node)

    def lift_gate(self, node_id: NodeId) -> None:
        node = self._nodes[node_id]
        if node.gate:
            node.gate = False
            node.total.pop(_LATCH, None)
            self._refill(node)
            self._changed(node)

    def clear_gates(self) -> None:
        for node in self._alive():
            if _LATCH in node.shown[0] and not node.gate:
                node.total.pop(_LATCH, None)
                self._changed(node)

    def facts_of(self, node_ids: Iterable[NodeId], timeout_s: float) -> dict[NodeId, dict[str, Any]]:
        return {}

    # -- inside --------------------------------------------------------------------------------------------

    def _alive(self) -> list[_Node]:
        return [n for n in self._nodes.values() if n.alive]

    def _named(self, name: NodeName) -> _Node:
        return next(n for n in self._alive() if n.name == name)

    def _find(self, pid: int) -> tuple[_Node, _Work] | None:
        return next(((n, n.running[pid]) for n in self._alive() if pid in n.running), None)

    def _work(self, cpus: float, actor: bool, needs: Mapping[str, float]) -> _Work:
        pid = next(self._number)
        return _Work(pid, f"work {pid}", _fixed({"CPU": cpus} | dict(needs)), actor)

    def _run(self, node: _Node, work: _Work) -> None:
        work.began = self.clock()
        node.running[work.pid] = work

    def _refill(self, node: _Node) -> None:
        while node.queue and not node.gate and node.fits(node.queue[0].needs):
            self._run(node, node.queue.popleft())

    def _snapshot(self, node: _Node) -> tuple[Amounts, Amounts]:
        free = {name: max(0, node.free(name)) for name in node.total}
        return dict(node.total), {name: amount for name, amount in free.items() if amount}

    def _changed(self, node: _Node) -> None:
        """The control service hears of it a little later."""
        if node.report_at is None:
            node.report_at = self.clock() + self._lag()
        self._check("something changed")
        while self._hear_next(self.clock()) is not None:
            pass

    def _hear_next(self, until: float) -> float | None:
        due = [(at, n.id, n) for n in self._alive() if (at := n.next_event()) is not None and at <= until]
        if not due:
            return None
        at, _, node = min(due)
        if node.on_its_way and node.on_its_way[0][0] == at:
            node.shown = node.on_its_way.popleft()[1]
            self._check("the control service heard of a change")
        else:
            node.report_at = None
            earliest = node.on_its_way[-1][0] if node.on_its_way else at
            node.on_its_way.append((max(earliest, at + self._flight()), self._snapshot(node)))
        return at

    def _excess(self) -> ResourceVector:
        """What there is above the sum of the bases, as the cluster is or as it looks, whichever is more."""
        base = total(self.bases())
        true, seen = total(self.true_totals()) - base, total(self.visible_totals()) - base
        return ResourceVector({k: max(0, true[k], seen[k]) for k in {*true, *seen}})

    def _check(self, when: str) -> None:
        excess = self._excess()
        if not self._excused.covers(excess):
            self.violations.append(
                f"at {self.clock():.4f}, {when}: {excess!r} more than there is, {self._excused!r} of it excused; "
                f"true {self.true_totals()}, visible {self.visible_totals()}"
            )


def _delays(seed: int, longest_s: float = LONGEST_LAG_S) -> Callable[[], float]:
    """Ever new delays, as a seed decides."""
    chance = random.Random(seed)
    return lambda: chance.choice((0.0, 0.0, 0.002, 0.03, longest_s))


def _fixed(amounts: RayMap, *, zeros: bool = False) -> Amounts:
    return {name: round(amount * _STEPS) for name, amount in amounts.items() if amount or zeros}


def _floats(amounts: Amounts) -> dict[str, float]:
    return {name: amount / _STEPS for name, amount in amounts.items()}


def _vector(amounts: Amounts) -> ResourceVector:
    return ResourceVector.from_ray(_floats(amounts))


def _smaller(one: ResourceVector, other: ResourceVector) -> ResourceVector:
    return ResourceVector({k: min(one[k], other[k]) for k in one})


def _holder(work: _Work) -> Holder:
    return Holder(work.pid, work.what, work.is_actor, int(work.began * 1000), _vector(work.holds), "01")
