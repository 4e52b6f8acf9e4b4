"""Nodes, leases and asks with everything that does not matter to a test filled in.

Amounts are as people write them: cores, devices, GB.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.monitoring.demand import explain_demand
from distributed_grid.decide.monitoring.pressure import combined
from distributed_grid.decide.scheduler import BoostRoom, NodeColumns, Sought
from distributed_grid.model.demand import Bundle, Demand, LabelConstraint, Pending, Shape
from distributed_grid.model.endings import Claimant, EndCause, Ending
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.nodes import Hardware, Node, NodeTable, SharingLimits
from distributed_grid.model.offload import Ancestor, Elsewhere, FileFacts, FileRole, FileThere, ProcessFacts
from distributed_grid.model.plans import NO_RULES, Grant, Rules
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import CPU, GB, GPU, MEMORY, ResourceVector, scale
from distributed_grid.model.roles.plan import InventoryNode
from distributed_grid.model.roles.runs import Failure
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload
from distributed_grid.model.scheduling import SchedulingRequest
from distributed_grid.model.series import Accuracy, Forecast
from distributed_grid.model.snapshots import GpuReading, HostReading, NodeSnapshot, OwnUse, Reading
from distributed_grid.model.teams import Team

LENDS_ALL: Final = {"enabled": True, "mode": "share_and_offload", "thresholds": {"excess_threshold": 0}}
"""`resource_sharing` for tests that are not about the policy: lenders keep nothing, and grid does nothing by itself."""

NOON: Final = datetime(2025, 6, 1, 12, 0, tzinfo=UTC)

FOR_ANA: Final = Ending(
    EndCause.PREEMPTED, "ana", Claimant("r1e9f00d", "ana", "vision", AllocationPriority.HIGH, "4 CPUs for gpu-master")
)
"""Why a lease is asked for, in tests that are not about that."""


def amounts(**of: float) -> ResourceVector:
    """`amounts(cpu=2, memory=4)`."""
    return ResourceVector.of(**of)


def cpu(cores: float) -> ResourceVector:
    return amounts(cpu=cores)


def limits(
    *,
    cpu: float | None = None,
    memory: float | None = None,
    gpu: float | None = None,
    can_share: bool = True,
    priority: float = 1.0,
) -> SharingLimits:
    def units(kind: str, amount: float | None) -> int | None:
        return None if amount is None else round(amount * scale(kind))

    return SharingLimits(can_share, units(CPU, cpu), units(MEMORY, memory), units(GPU, gpu), priority)


def node(
    name: str = "gpu1",
    *,
    cpus: float = 4,
    memory: float = 16,
    gpus: float = 0,
    used: ResourceVector | None = None,
    borrowed: ResourceVector | None = None,
    hardware: tuple[int, float] | None = None,
    **others: Any,
) -> Node:
    """A live node: its base, and free whatever is not `used`. `hardware` is (cores, GB)."""
    base = others.pop("base", amounts(cpu=cpus, memory=memory, gpu=gpus))
    total = base + (borrowed or ResourceVector())
    machine = None if hardware is None else Hardware(hardware[0], round(hardware[1] * GB))
    return Node(
        name=name,
        node_id=others.pop("node_id", f"id-of-{name}"),
        base=base,
        total=total,
        free=total - (used or ResourceVector()),
        hardware=machine,
        **others,
    )


def lease(
    id: str = "b1",
    source: str = "gpu1",
    target: str = "gpu-master",
    *,
    kind: str = CPU,
    amount: float = 2,
    state: LeaseState = LeaseState.ACTIVE,
    age_s: float = 0.0,
    **changes: Any,
) -> Lease:
    """A transfer of `amount` that was granted `age_s` before noon."""
    units = changes.pop("units", round(amount * scale(kind)))
    allocated_at = changes.pop("allocated_at", NOON - timedelta(seconds=age_s))
    built = Lease(
        id=id,
        source=source,
        target=target,
        kind=kind,
        units=units,
        resources=ResourceVector({kind: units}),
        priority=AllocationPriority.NORMAL,
        delivery=Delivery.TRANSFER,
        delivery_reason="",
        state=state,
        allocated_at=allocated_at,
        expires_at=allocated_at + timedelta(hours=1),
        duration_s=3600.0,
    )
    return replace(built, **changes)


def reading(*gpus: GpuReading, **changes: Any) -> Reading:
    """A machine with 16 cores, 8 busy, and 64 GB, 16 used; of that the node itself uses 2 cores and 4 GB."""
    host = {"cpus": 16.0, "cpu_used": 8.0, "memory_total": 64 * GB, "memory_used": 16 * GB}
    own = OwnUse(changes.pop("own_cpu", 2.0), changes.pop("own_memory", 4 * GB), 7)
    return Reading(HostReading(**host | changes, swap_total=0, swap_used=0, load=(8.0, 8.0, 8.0)), own, gpus)


def snapshot(of: Node, cpu: float = 0.0, memory: float = 0.0, gpu: float | None = None, **changes: Any) -> NodeSnapshot:
    """A node on a machine that it shares with others, of whose own capacity so much was measured to be in use."""
    measured = reading(
        cpus=1000.0,
        memory_total=2**50,
        own_cpu=cpu * of.total[CPU] / scale(CPU),
        own_memory=round(memory * of.total[MEMORY]),
    )
    built = NodeSnapshot(
        name=of.name,
        node_id=of.node_id,
        taken_at=NOON,
        base=of.base,
        total=of.total,
        free=of.free,
        shares_its_host=True,
        measured=measured,
        measured_at=NOON,
        pressure=combined(cpu, memory, gpu),
        seen_since=NOON,
    )
    return replace(built, **changes)


def shape(on: str | None = None, **needs: float) -> Shape:
    """What one task needs; `on`: the only node that its labels leave it."""
    selectors = () if on is None else ((LabelConstraint("grid/name", (on,)),),)
    return Shape((Bundle(amounts(**needs), selectors),))


def demand(wanted: Shape, *nodes: Node, count: int = 1, waited_s: float = 60.0) -> Demand:
    """So many of a shape wait, on nodes that have their names as labels."""
    labelled = NodeTable(replace(n, labels={"grid/name": n.name}) for n in nodes)
    since = {wanted: NOON - timedelta(seconds=waited_s)}
    return explain_demand([Pending(wanted, count)], labelled, since, now=NOON)[0]


def forecast(value: float, *, in_s: float = 900.0, within: float = 0.05, checked: int | None = 200) -> Forecast:
    """What is expected, give or take `within`; `checked`: so many such forecasts came due, None: none did."""
    accuracy = None if checked is None else Accuracy(in_s, checked, within / 2, within, 0.9)
    return Forecast(NOON.timestamp(), in_s, value, max(0.0, value - within), min(1.0, value + within), 0.9, accuracy)


def ask(target: str = "gpu-master", kind: str = CPU, amount: float = 2, **changes: Any) -> Ask:
    if source := changes.pop("source", None):
        changes["sources"] = (source,)
    return Ask(**{"target": target, "kind": kind, "units": round(amount * scale(kind))} | changes)


def lease_of(grant: Grant, id: str = "b1", **changes: Any) -> Lease:
    """The lease that a grant becomes, at noon."""
    asked = grant.ask
    return lease(
        id,
        grant.source,
        asked.target,
        kind=asked.kind,
        units=asked.units,
        resources=grant.resources,
        priority=asked.priority,
        delivery=grant.delivery,
        duration_s=asked.duration_s,
        expires_at=NOON + timedelta(seconds=asked.duration_s),
        team=asked.team,
        **changes,
    )


Amounts = ResourceVector | Mapping[str, float]


def team(
    name: str = "blue",
    *,
    guaranteed: Amounts | None = None,
    borrows: Amounts | None = None,
    lends: Amounts | None = None,
    weight: float = 1.0,
) -> Team:
    """`team("blue", guaranteed=cpu(4), borrows={"gpu": 0})`; `borrows` and `lends` are its limits, None means none."""

    def units(of: Amounts | None) -> dict[str, int]:
        given = {} if of is None else of
        return {k: v if isinstance(of, ResourceVector) else round(v * scale(k)) for k, v in given.items()}

    return Team(name, ResourceVector(units(guaranteed)), units(borrows), units(lends), weight)


def reservation(id: str = "b1", *, kind: str = GPU, amount: float = 1, cpus: float = 1, **changes: Any) -> Lease:
    """A lease of `amount`, with the CPUs that come along, as a placement group on its source."""
    units = ResourceVector({kind: round(amount * scale(kind))})
    brings = units if kind == CPU else units + cpu(cpus)
    return lease(id, kind=kind, amount=amount, resources=brings, delivery=Delivery.RESERVE, **changes)


def waits(
    id: str = "w1", amount: float = 2, *, waited_s: float = 0.0, until: datetime | None = None, **of_ask: Any
) -> Waiting:
    """A request that has waited for so long at noon."""
    return Waiting(id, ask(amount=amount, **of_ask), NOON - timedelta(seconds=waited_s), until)


def boost_room(id: str = "b1", runs_on: str = "gpu1", **free: float) -> BoostRoom:
    """A reserved boost with so much in it, and all of it left."""
    return BoostRoom(id, runs_on, amounts(**free), amounts(**free))


def sought(
    *nodes: Node,
    boosts: tuple[BoostRoom, ...] = (),
    peers: Mapping[str, Any] | None = None,
    leases: tuple[Lease, ...] = (),
    rules: Rules = NO_RULES,
    snapshots: Mapping[str, NodeSnapshot] | None = None,
    **request: Any,
) -> Sought:
    """A task of gpu-master, unless said otherwise, that seeks a place on these nodes."""
    asked = SchedulingRequest(**{"target": "gpu-master", "task_id": "t"} | request)
    columns = NodeColumns.of(NodeTable(nodes), Usage.of(leases), rules, snapshots)
    return Sought(asked, asked.needs, asked.target or "", columns, boosts, peers or {})


def found(bug: str) -> pytest.MarkDecorator:
    """Marks a test that shows a bug which is known and not yet fixed; once it is, the mark must go."""
    return pytest.mark.xfail(strict=True, reason=bug)


def process(pid: int = 4711, node: str = "gpu-master", **changes: Any) -> ProcessFacts:
    """A Python program that uses two cores and 1 GB, with nothing in the way of moving it."""
    files = (
        FileFacts("/home/ana", FileRole.FOLDER, 0, 1, True),
        FileFacts("/usr/bin/python3", FileRole.PROGRAM, 100, 2, False),
        FileFacts("/home/ana/train.py", FileRole.NAMED, 300, 3, True),
    )
    built = ProcessFacts(
        pid=pid,
        created_at=100.0,
        node=node,
        machine=f"machine-of-{node}",
        name="python3",
        command=("/usr/bin/python3", "train.py"),
        cwd="/home/ana",
        uid=1000,
        user="ana",
        worker_uid=1000,
        age_s=300.0,
        cpu=2.0,
        memory=GB,
        files=files,
        ancestors=(Ancestor(1, "systemd", ("/sbin/init",), 0),),
        environment=("HOME", "PATH", "WANDB_API_KEY"),
    )
    return replace(built, **changes)


def elsewhere(facts: ProcessFacts, name: str = "gpu1", **changes: Any) -> Elsewhere:
    """Another node that has all that a process needs."""
    files = {
        file.path: FileThere(file.role is FileRole.FOLDER, file.size, file.inode, file.is_network, True, True)
        for file in facts.files
    }
    return replace(Elsewhere(name, f"machine-of-{name}", facts.user, facts.uid, files), **changes)


def workload(*roles: RoleSpec, pools: tuple[Pool, ...] = (), name: str = "run") -> Workload:
    return Workload(name, roles, pools)


def place(
    name: str = "n1",
    *,
    cpus: float = 8,
    gpus: float = 0,
    memory: float = 64,
    used: ResourceVector | None = None,
    lends: ResourceVector | None = None,
    labels: Mapping[str, str] | None = None,
    closed: str = "",
    gpu_parts: tuple[float, ...] = (),
    **custom: float,
) -> InventoryNode:
    """A node to plan on: free is whatever is not `used` and no part of a GPU; it lends nothing unless told."""
    has = amounts(cpu=cpus, gpu=gpus, memory=memory, **custom)
    parts = tuple(amounts(gpu=part)["gpu"] for part in gpu_parts)
    free = has - (used or ResourceVector()) - ResourceVector({"gpu": sum(parts)})
    return InventoryNode(name, free, has, labels or {}, closed, lends or ResourceVector(), parts)


def failure(role: str = "worker", index: int = 0, *, restarts: int = 0, left: int = 3, **others: Any) -> Failure:
    """An actor that died; its role had no failure but this one and its restarts, unless `failures` says so."""
    failures = others.pop("failures", {role: restarts + 1})
    return Failure(role, index, restarts, failures, left, **others)
