"""The calls of `execution.port.Cluster` on a cluster in memory, and what may go wrong with them."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fake_node import STEPS, FakeBundle, FakeGroup, FakeWork, extended_by, extension_name, fixed, floats, vector
from fake_world import FakeWorld

from distributed_grid.decide.leases.idle import Occupant
from distributed_grid.decide.monitoring.naming import NAME_LABEL, Raylet
from distributed_grid.execution.port import Extension, Group, Holder, Mechanism, NodeView, RayletGone, RayMap
from distributed_grid.faults import Point, fault_point
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.resources import ResourceVector, ray_name, total
from distributed_grid.model.roles.runs import RunId
from distributed_grid.model.work import Driver, Work

LONGEST_LAG_S: Final = 0.2
LONGEST_FLIGHT_S: Final = 0.1
_CALL_S: Final = 0.0007
_LATCH: Final = "grid:gate"
_TOTALS_S: Final = 0.5  # as old as this the gateway lets totals be in a view that need not be new


class LostReply(Exception):
    """The connection broke; it is unknown whether the call was carried out."""


class Crashed(BaseException):
    """The process that made the call ends here."""


@dataclass(eq=False)
class _Upcoming:
    left: int
    call: str
    after: bool
    action: Callable[[], None]


class FakeCluster(FakeWorld):
    """`execution.port.Cluster` for tests. Calls take no real time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._view_read: tuple[float, dict[NodeId, NodeView]] = (-1e9, {})
        self._totals_read = -1e9
        self.resizes = 0
        self.dead: frozenset[str] = frozenset()
        self.runs: dict[RunId, int] = {}
        """Runs of roles, and how many placement groups each has."""
        """Of its processes, by id."""
        self._upcoming: list[_Upcoming] = []
        self.mechanisms: dict[Delivery, Mechanism] = {Delivery.RESERVE: _Groups(self)}

    @classmethod
    def lagging(cls, seed: int) -> "FakeCluster":
        """One whose view of every node is late by its own, ever new, amount."""
        return cls(lag=_delays(seed), flight=_delays(seed + 1, LONGEST_FLIGHT_S))

    def work_of_job(self, job_id: str, group_id: str) -> Work:
        return Work()

    def drivers(self, since: float) -> tuple[Driver, ...]:
        return ()

    def join_private_cluster(self, lease: Lease, head_address: str) -> None:
        pass

    def leave_private_cluster(self, lease: Lease) -> None:
        pass

    def drain_private_cluster(self, lease: Lease, left_s: float, why: str) -> bool:
        return False

    def cpus_in_use(self, raylet: Raylet, group_id: str) -> float:
        return 0.0

    # -- what may go wrong ---------------------------------------------------------------------------------

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

    # -- Raylets -------------------------------------------------------------------------------------------

    def raylets(self) -> tuple[Raylet, ...]:
        self.passing("raylets")
        return tuple(
            Raylet(n.id, {NAME_LABEL: n.name}, f"{n.name}-host", "10.0.0.1", floats(n.base), is_head=i == 0)
            for i, n in enumerate(self._alive())
        )

    def totals(self) -> dict[NodeId, RayMap]:
        self.passing("totals")
        return {n.id: floats(n.shown[0]) for n in self._alive()}

    def view(self, max_age_s: float = 0.0) -> dict[NodeId, NodeView]:
        read_at, known = self._view_read
        if known and self.clock() - read_at < max_age_s:
            return known
        self.passing("view")
        totals = {node_id: seen.total for node_id, seen in known.items()}
        alive = {n.id: n for n in self._alive()}
        if max_age_s == 0.0 or self.clock() - self._totals_read > _TOTALS_S or totals.keys() != alive.keys():
            self._totals_read = self.clock()
            totals = {n.id: floats(n.shown[0]) for n in alive.values()}
        found = {n.id: NodeView(totals[n.id], floats(n.shown[1])) for n in alive.values()}
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
        for name, amount in fixed(resources, zeros=True).items():
            assert name != "GPU", "Ray refuses to resize GPUs"
            assert amount >= 0, "Ray would take nonsense silently"
            self._resize_one(node, name, amount)
        if node.total != before:
            self._refill(node)
            self._changed(node)
        self.passing("resize", after=True)
        return floats(node.total)

    # -- the rest of Cluster -------------------------------------------------------------------------------

    def reported_by(self, raylet: Raylet) -> NodeView | None:
        self.passing("reported_by")
        node = self._nodes[raylet.node_id]
        return NodeView(*map(floats, self._snapshot(node))) if node.alive else None

    def why_no_transfers(self) -> str | None:
        return None

    def reserve(self, lease: Lease, node_ids: Sequence[NodeId], within_s: int) -> str | None:
        self.passing("reserve")
        if any(g.name == lease.group_name for g in self._groups.values()):
            raise ValueError(f"a placement group named {lease.group_name} exists")
        needs = [fixed(part.resources.to_ray()) for part in lease.shares or (lease,)]
        bundles = [FakeBundle(need, node_id) for need, node_id in zip(needs, node_ids, strict=True)]
        group = FakeGroup(f"{next(self._number):08x}", lease.group_name, bundles)
        for bundle in bundles:
            node = self._nodes.get(bundle.node_id)
            if node is None or not node.alive or not node.fits(bundle.needs):
                for other in self._nodes.values():
                    other.groups.pop(group.id, None)
                self.clock.sleep(within_s)
                return None
            node.groups.setdefault(group.id, []).append(bundle)
        self._groups[group.id] = group
        for node_id in dict.fromkeys(node_ids):
            self._changed(self._nodes[node_id])
        fault_point(Point.GROUP_MADE)
        self.passing("reserve", after=True)
        return group.id

    def groups(self, *, afresh: bool = False) -> tuple[Group, ...]:
        self.passing("groups")
        found = tuple(
            Group(
                g.id,
                g.name,
                Delivery.RESERVE,
                g.placed,
                tuple(b.node_id if b.placed else None for b in g.bundles),
                total([vector(b.needs) for b in g.bundles if b.placed]),
            )
            for g in self._groups.values()
        )
        self.passing("groups", after=True)
        return found

    def remove_group(self, group_id: str) -> None:
        self.passing("remove_group")
        group = self._groups.pop(group_id, None)
        for bundle in group.bundles if group is not None else ():
            if not bundle.placed:
                continue
            node = self._nodes[bundle.node_id]
            node.running = {pid: w for pid, w in node.running.items() if w.group != group_id}
            node.groups.pop(group_id, None)
            self._refill(node)
            self._changed(node)
        self.passing("remove_group", after=True)

    def cancel_tasks_in_group(self, group_id: str) -> int:
        ended = 0
        for node in self._alive():
            inside = {extension_name("CPU", group_id)}
            for pid in [pid for pid, w in node.running.items() if w.group == group_id or inside & w.needs.keys()]:
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

    def held_in_group(self, raylet: Raylet, group_id: str, seen: NodeView) -> RayMap | None:
        holders = self.holders_in_group(raylet, group_id)
        return {name: amount for holder in holders for name, amount in holder.holds.to_ray().items()}

    def extend_group(
        self, raylet: Raylet, group_id: str, more: ResourceVector, *, insists: bool = False
    ) -> ResourceVector:
        self.passing("extend")
        node = self._nodes[raylet.node_id]
        if not node.alive:
            raise RayletGone(raylet.node_id)
        wanted = {extension_name(name, group_id): amount for name, amount in fixed(more.to_ray()).items()}
        for name in {*wanted, *(name for name in node.total if extended_by(name) == group_id)}:
            self._resize_one(node, name, wanted.get(name, 0))
        self._changed(node)
        self.passing("extend", after=True)
        return vector({n.partition("_group_")[0]: a for n, a in node.total.items() if extended_by(n) == group_id})

    def extensions(self, seen: NodeView) -> dict[str, Extension]:
        found: dict[str, Extension] = {}
        for name, size in seen.total.items():
            if group := extended_by(name):
                kind = name.partition("_group_")[0]
                in_use = ResourceVector.from_ray({kind: size - seen.free.get(name, 0.0)})
                found[group] = Extension(ResourceVector.from_ray({kind: size}), in_use)
        return found

    def holders_in_extension(self, raylet: Raylet, group_id: str) -> tuple[Holder, ...]:
        name = extension_name("CPU", group_id)
        inside = [w for w in self._nodes[raylet.node_id].running.values() if name in w.needs]
        youngest_first = sorted(inside, key=lambda w: (w.is_actor, -w.began, -w.pid))
        return tuple(replace(_holder(w), holds=vector({"CPU": w.needs[name]})) for w in youngest_first)

    def occupants(self, raylet: Raylet) -> dict[str, tuple[Occupant, ...]] | None:
        found: dict[str, tuple[Occupant, ...]] = {}
        for work in self._nodes[raylet.node_id].running.values():
            if work.group is not None:
                found[work.group] = (*found.get(work.group, ()), Occupant(work.pid, (0,) * bool(work.holds.get("GPU"))))
        return found

    def kill(self, node_id: NodeId, holders: tuple[Holder, ...]) -> int:
        """Ray retries a killed task: in the worst case on the same node."""
        self.passing("kill")
        node = self._nodes[node_id]
        victims = [node.running.pop(h.pid) for h in holders if h.pid in node.running]
        for work in victims:
            if not work.is_actor and not any(map(extended_by, work.needs)):  # that is retried in the group's bundles
                node.queue.append(FakeWork(next(self._number), work.what, work.needs, False))
        self._refill(node)
        self._changed(node)
        return len(victims)

    def gate(self, node_id: NodeId, cpus: float) -> None:
        node = self._nodes[node_id]
        if node.alive and cpus >= 0.01:
            node.gate = True
            node.total[_LATCH] = STEPS
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

    def dead_processes(self, worker_ids: Iterable[str]) -> frozenset[str]:
        return self.dead & {*worker_ids}

    def lost_runs(self) -> frozenset[RunId]:
        return frozenset(run for run in self.runs if run.worker_id in self.dead)

    def remove_groups_of_run(self, run: RunId) -> int:
        groups, self.runs[run] = self.runs[run], 0
        return groups

    def facts_of(self, node_ids: Iterable[NodeId], timeout_s: float) -> dict[NodeId, dict[str, Any]]:
        return {}


class _Groups:
    """The cluster's groups as a mechanism."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.make = cluster.reserve
        self.there = cluster.groups
        self.remove = cluster.remove_group
        self.is_idle = cluster.is_group_idle
        self.holders = cluster.holders_in_group
        self.held = cluster.held_in_group
        self.occupants = cluster.occupants
        self.extend = cluster.extend_group
        self.extensions = cluster.extensions
        self.end_extension = lambda raylet, group: cluster.extend_group(raylet, group, ResourceVector())
        self.holders_in_extension = cluster.holders_in_extension
        self.cancel_tasks = cluster.cancel_tasks_in_group


def _delays(seed: int, longest_s: float = LONGEST_LAG_S) -> Callable[[], float]:
    """Ever new delays, as a seed decides."""
    chance = random.Random(seed)
    return lambda: chance.choice((0.0, 0.0, 0.002, 0.03, longest_s))


def _holder(work: FakeWork) -> Holder:
    return Holder(work.pid, work.what, work.is_actor, int(work.began * 1000), vector(work.holds), "01")
