"""A cluster in memory that behaves as Ray was measured to: its nodes, their work, and what is seen of them.

What it takes from the real one (see `docs/ray.md`, and Ray's `HandleResizeLocalResourceInstances`):

- a resize changes each resource separately, by no less than what is in use; where Ray has oversubscribed a node,
  any resize of it raises its total to what is in use;
- resources at zero vanish from every map;
- the control service's view of each node lags on its own, by up to 0.2 s: a raylet reports now and then what it
  has at that moment, and the report takes a while to arrive;
- a freed CPU goes to the next queued task in the same step, unless a gate stands;
- a placement group whose node died stays in the table, without a place.

It watches itself: `violations` tells of every instant at which all totals together were more than there is.
"""

import itertools
from collections import deque
from collections.abc import Callable, Mapping

from fake_clock import Clock
from fake_node import Amounts, FakeBundle, FakeGroup, FakeNode, FakeWork, extension_name, fixed, floats, vector

from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import GB, ResourceVector, total


class FakeWorld:
    """Nodes and what happens on them, whatever causes it; `clock` is what time it is in there."""

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
        self._nodes: dict[NodeId, FakeNode] = {}
        self._groups: dict[str, FakeGroup] = {}
        self._number = itertools.count(1)
        self.violations: list[str] = []
        self._excused: ResourceVector = ResourceVector()

    # -- what happens in it --------------------------------------------------------------------------------

    def add_node(
        self, name: NodeName, *, cpus: float = 4, memory: float = 0, gpus: float = 0, **custom: float
    ) -> NodeId:
        base = fixed({"CPU": cpus, "memory": memory * GB, "GPU": gpus} | custom)
        node_id = f"{name}-{next(self._number):04x}"
        self._nodes[node_id] = node = FakeNode(name, node_id, base, dict(base))
        node.shown = self._snapshot(node)
        self._check("a node joined")
        return node_id

    def kill_node(self, name: NodeName) -> None:
        """The raylet dies, and what ran on it. What it had lent belongs to no node any more: that is excused."""
        node = self._named(name)
        missing = [vector(node.base) - vector(seen) for seen in (node.total, node.shown[0])]
        self._excused = self._excused + ResourceVector(
            {k: max(0, *(gap[k] for gap in missing)) for gap in missing for k in gap}
        )
        node.alive = False
        for bundle in node.bundles:
            bundle.placed = False
        node.groups, node.running, node.queue = {}, {}, deque()
        self._check("a node died")

    def return_node(self, name: NodeName) -> NodeId:
        """The same machine with a new raylet."""
        old = [n for n in self._nodes.values() if n.name == name][-1]
        assert not old.alive, f"{name} is up"
        node_id = f"{name}-{next(self._number):04x}"
        self._nodes[node_id] = node = FakeNode(name, node_id, dict(old.base), dict(old.base))
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
        bundle = next((each for each in self._groups[group_id].bundles if each.placed), None)
        if bundle is None:
            return None
        node = self._nodes[bundle.node_id]
        work = self._work(cpus, False, {})
        work.group = group_id
        self._run(node, work)
        return work.pid

    def start_in_extension(self, group_id: str, name: NodeName, cpus: float = 1) -> int | None:
        """Start work where a group has more than its bundles, if there is room; its pid, or None."""
        node = self._named(name)
        work = FakeWork(next(self._number), "extended", fixed({extension_name("CPU", group_id): cpus}), False)
        if not node.fits(work.needs):
            return None
        self._run(node, work)
        self._changed(node)
        return work.pid

    def extension_of(self, group_id: str, name: NodeName) -> ResourceVector:
        """What a group has on a node beside its bundles."""
        return ResourceVector({"cpu": self._named(name).total.get(extension_name("CPU", group_id), 0)})

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
        """It goes on at once, whatever uses its CPUs now: this is how Ray oversubscribes."""
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

    def tamper(self, name: NodeName, **totals: float) -> None:
        """Another program resizes a node, by Ray's own call and with Ray's own clamping."""
        node = self._named(name)
        before = self._excess()
        for resource, amount in fixed(totals, zeros=True).items():
            self._resize_one(node, resource, amount)
        after = total(self.true_totals()) - total(self.bases())
        self._excused = self._excused + ResourceVector({k: max(0, after[k] - before[k]) for k in after})
        self._refill(node)
        self._changed(node)

    def foreign_group(self, group_name: str, on_node: NodeName, **needs: float) -> str:
        """Another program makes a placement group with a name like grid's."""
        node = self._named(on_node)
        bundle = FakeBundle(fixed(needs), node.id)
        group = FakeGroup(f"{next(self._number):08x}", group_name, [bundle])
        assert node.fits(bundle.needs)
        self._groups[group.id], node.groups[group.id] = group, [bundle]
        self._changed(node)
        return group.id

    def set_standing(self, group_id: str | None, stands: bool) -> None:
        """Ray has listed this group, and found its place for it or not yet."""
        if group_id is not None:
            for bundle in self._groups[group_id].bundles:
                bundle.placed = stands

    # -- what is true, and what an outsider sees -----------------------------------------------------------

    def true_totals(self) -> dict[NodeName, ResourceVector]:
        return {n.name: vector(n.total) for n in self._alive()}

    def visible_totals(self) -> dict[NodeName, ResourceVector]:
        return {n.name: vector(n.shown[0]) for n in self._alive()}

    def bases(self) -> dict[NodeName, ResourceVector]:
        return {n.name: vector(n.base) for n in self._alive()}

    def ids(self) -> dict[NodeName, NodeId]:
        return {n.name: n.id for n in self._alive()}

    def markers(self, name: NodeName) -> dict[str, float]:
        return {k: v for k, v in floats(self._named(name).total).items() if k.startswith("grid:")}

    def reserved(self, name: NodeName) -> ResourceVector:
        return total([vector(g.needs) for g in self._named(name).bundles])

    def has_place(self, group_id: str) -> bool:
        group = self._groups.get(group_id)
        return group is not None and group.placed

    def is_at_base(self) -> bool:
        """Every node has exactly what it started with, and nothing of grid's is left on it."""
        return all(n.total == n.base and not n.groups and not n.gate for n in self._alive())

    def differences(self) -> dict[NodeName, dict[str, float]]:
        """For messages: what each node has that it did not start with, or lacks."""
        found = {}
        for n in self._alive():
            names = {*n.total, *n.base}
            diff = {k: n.total.get(k, 0) - n.base.get(k, 0) for k in names}
            found[n.name] = floats({k: v for k, v in diff.items() if v})
        return {name: diff for name, diff in found.items() if diff}

    def settle_excuses(self) -> None:
        """A round is over, and all views show it: what it took back can no longer excuse anything."""
        if all(n.next_event() is None for n in self._alive()):
            self._excused = _smaller(self._excused, self._excess())

    # -- inside --------------------------------------------------------------------------------------------

    def _alive(self) -> list[FakeNode]:
        return [n for n in self._nodes.values() if n.alive]

    def _named(self, name: NodeName) -> FakeNode:
        return next(n for n in self._alive() if n.name == name)

    def _find(self, pid: int) -> tuple[FakeNode, FakeWork] | None:
        return next(((n, n.running[pid]) for n in self._alive() if pid in n.running), None)

    def _work(self, cpus: float, actor: bool, needs: Mapping[str, float]) -> FakeWork:
        pid = next(self._number)
        return FakeWork(pid, f"work {pid}", fixed({"CPU": cpus} | dict(needs)), actor)

    def _run(self, node: FakeNode, work: FakeWork) -> None:
        work.began = self.clock()
        node.running[work.pid] = work

    def _refill(self, node: FakeNode) -> None:
        while node.queue and not node.gate and node.fits(node.queue[0].needs):
            self._run(node, node.queue.popleft())

    def _resize_one(self, node: FakeNode, name: str, to: int) -> None:
        now, free = node.total.get(name, 0), node.free(name)
        delta = max(to - now, -free)  # what is in use stays; below zero this *adds*
        if free < 0 and delta > max(0, to - now):
            raised = ResourceVector.from_ray(floats({name: delta - max(0, to - now)}))
            self._excused = self._excused + raised
        node.total[name] = now + delta
        if not node.total[name]:
            del node.total[name]

    def _snapshot(self, node: FakeNode) -> tuple[Amounts, Amounts]:
        free = {name: max(0, node.free(name)) for name in node.total}
        return dict(node.total), {name: amount for name, amount in free.items() if amount}

    def _changed(self, node: FakeNode) -> None:
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


def _smaller(one: ResourceVector, other: ResourceVector) -> ResourceVector:
    return ResourceVector({k: min(one[k], other[k]) for k in one})
