"""The interface to a cluster. `RayCluster` is the real one; tests of the layers above may bring another."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypedDict

from distributed_grid.decide.leases.idle import Occupant
from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.resources import ResourceVector, describe
from distributed_grid.model.roles.runs import RunId
from distributed_grid.model.work import Driver, Work

RayMap = Mapping[str, float]


class WorkerFacts(TypedDict):
    """Facts about a node's machine, as seen from inside a Ray worker."""

    python: str
    ray: str
    cpus: int
    memory: int
    home: str
    home_writable: bool


class RayletGone(Exception):
    """The raylet died, or never existed."""


class RayletSilent(Exception):
    """The raylet did not answer in time: it may be cut off, or busy. It may still carry out the call."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node's total and free resources: as the cluster's control service shows them, up to 0.2 s old; or, from
    `reported_by`, as the raylet itself has them now."""

    total: RayMap
    free: RayMap


@dataclass(frozen=True, slots=True)
class Holder:
    """A task or actor that occupies part of a node."""

    pid: int
    what: str
    is_actor: bool
    since_ms: int | None
    """None: it began less than about a second ago."""
    holds: ResourceVector
    job_id: str

    def describe(self) -> str:
        kind = "actor" if self.is_actor else "task"
        return f"{kind} {self.what} (pid {self.pid}) holds {self.holds.describe()}"


@dataclass(frozen=True, slots=True)
class Group:
    """The holding of a lease's capacity on its lenders, as its mechanism lists it: for example a placement group."""

    id: str
    name: str
    delivery: Delivery
    """Its mechanism's."""
    stands: bool
    """The group holds all that it reserves. False while it is being made, and for good once one of its nodes is gone:
    each bundle is pinned to its node's id, and no other node will have that id."""
    bundles: tuple[NodeId | None, ...] = ()
    """The node of each bundle; None while it has none. Work in the other bundles goes on."""
    resources: ResourceVector = field(default_factory=ResourceVector)
    """The resources of the bundles that have a node, together."""

    @property
    def node_id(self) -> NodeId | None:
        """The group's only node; None while it has no place, or has several."""
        places = {node_id for node_id in self.bundles if node_id is not None}
        return places.pop() if len(places) == 1 else None

    def holds(self, lease: Lease) -> bool:
        """Whether it holds what the lease consists of: the lease may have lost a lender, whose bundle has no place."""
        return self.stands or (bool(lease.shares) and all(self._has_node(share.bundle) for share in lease.shares))

    def _has_node(self, number: int) -> bool:
        return number <= len(self.bundles) and self.bundles[number - 1] is not None


@dataclass(frozen=True, slots=True)
class Extension:
    """What a group has on a node beside its bundles."""

    has: ResourceVector
    in_use: ResourceVector
    shrinks: bool = False
    """It lets no new work in."""


def youngest_covering(holders: tuple[Holder, ...], kind: str, units: int) -> tuple[Holder, ...]:
    """The first holders that together hold at least `units`."""
    chosen: list[Holder] = []
    for holder in holders:
        if units <= 0:
            break
        chosen.append(holder)
        units -= holder.holds[kind]
    return tuple(chosen)


def holders_in_words(holders: tuple[Holder, ...], kind: str, units: int, limit: int = 3) -> str:
    """The holders of capacity that is being returned, in words for warnings and events."""
    names = [h.describe() for h in holders[:limit]]
    more = f", and {len(holders) - limit} more" if len(holders) > limit else ""
    return f"{describe(kind, units)} still in use: {'; '.join(names) or 'work that just ended'}{more}"


class Raylets(Protocol):
    """Reading and resizing nodes."""

    def raylets(self) -> tuple[Raylet, ...]: ...
    def totals(self) -> dict[NodeId, RayMap]: ...
    def view(self, max_age_s: float = 0.0) -> dict[NodeId, NodeView]: ...
    def resize(self, node_id: NodeId, resources: RayMap) -> RayMap: ...


class Mechanism(Protocol):
    """How a kind of delivery that moves no totals holds capacity on a lender, in groups. Calls block."""

    def make(self, lease: Lease, node_ids: Sequence[NodeId], within_s: int) -> str | None:
        """Hold the lease's resources on the nodes of its lenders, in their order; the group's id, or None if they are
        not free in time.

        The group has the name `lease.group_name` and outlives this process.
        """
        ...

    def there(self, *, afresh: bool = False) -> tuple[Group, ...]:
        """Grid's groups that exist. Only `afresh` finds those that other processes made and that hold nothing yet."""
        ...

    def remove(self, group_id: str) -> None: ...

    def is_idle(self, raylet: Raylet, group_id: str) -> bool:
        """True if the group is on that node and certainly nothing runs in it; quicker than listing its holders."""
        ...

    def holders(self, raylet: Raylet, group_id: str) -> tuple[Holder, ...]:
        """The work inside the group on this node, with what each holds of it."""
        ...

    def held(self, raylet: Raylet, group_id: str, seen: NodeView) -> RayMap | None:
        """What work holds of the group on that node, as the node shows it; None if it does not show the group."""
        ...

    def occupants(self, raylet: Raylet) -> Mapping[str, tuple[Occupant, ...]] | None:
        """By group: the processes that hold a part of it on that node; None if the node does not answer."""
        ...

    def extend(self, raylet: Raylet, group_id: str, more: ResourceVector, *, insists: bool = False) -> ResourceVector:
        """Let the group have so much on this node beside its bundles; nothing, to end that. What it has now: more than
        was asked, while work still uses it. Until it has no more than was asked, call this again, several times a
        second. The caller reserves that capacity in another group.

        `insists`: work in the group's own bundles there may have to wait for a moment, too. Raises `RayletGone` or
        `RayletSilent`.
        """
        ...

    def end_extension(self, raylet: Raylet, group_id: str) -> None:
        """The same for nothing, for a group that is gone, with all that it left on the node."""
        ...

    def extensions(self, seen: NodeView) -> Mapping[str, Extension]:
        """By group: what groups have on a node beside their bundles."""
        ...

    def holders_in_extension(self, raylet: Raylet, group_id: str) -> tuple[Holder, ...]:
        """The work that uses what the group has on this node beside its bundles; the work to end first comes first."""
        ...

    def cancel_tasks(self, group_id: str) -> int:
        """Cancel all tasks that run or wait in the group, wherever they were started; how many were asked to stop."""
        ...


class Cluster(Raylets, Protocol):
    """Everything that grid does to a cluster or asks of it. Calls block; none is made from an event loop."""

    @property
    def mechanisms(self) -> Mapping[Delivery, Mechanism]:
        """One for each kind of delivery that moves no totals."""
        ...

    def reported_by(self, raylet: Raylet) -> NodeView | None: ...
    def why_no_transfers(self) -> str | None: ...
    def work_of_job(self, job_id: str, group_id: str) -> Work: ...
    def drivers(self, since: float) -> tuple[Driver, ...]: ...
    def join_private_cluster(self, lease: Lease, head_address: str) -> None: ...
    def leave_private_cluster(self, lease: Lease) -> None: ...
    def drain_private_cluster(self, lease: Lease, left_s: float, why: str) -> bool: ...
    def cpus_in_use(self, raylet: Raylet, group_id: str) -> float: ...
    def holders_of(self, raylet: Raylet, kind: str) -> tuple[Holder, ...]: ...
    def kill(self, node_id: NodeId, holders: tuple[Holder, ...]) -> int: ...
    def gate(self, node_id: NodeId, cpus: float) -> None: ...
    def lift_gate(self, node_id: NodeId) -> None: ...
    def clear_gates(self) -> None: ...
    def dead_processes(self, worker_ids: Iterable[str]) -> frozenset[str]: ...
    def lost_runs(self) -> frozenset[RunId]: ...
    def remove_groups_of_run(self, run: RunId) -> int: ...
    def facts_of(self, node_ids: Iterable[NodeId], timeout_s: float) -> dict[NodeId, WorkerFacts]: ...
