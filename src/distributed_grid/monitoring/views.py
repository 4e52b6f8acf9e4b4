"""Snapshots and demand as the API and `--json` show them, and snapshots read back from that form."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from distributed_grid.model.demand import Demand
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.snapshots import (
    GpuProcess,
    GpuReading,
    HostReading,
    NodeSnapshot,
    OwnUse,
    Pressure,
    Reading,
)
from distributed_grid.model.times import instant, parse_instant

if TYPE_CHECKING:
    from distributed_grid.wire.nodes import (
        ClusterStatus,
        DemandStatus,
        Measured,
        MeasuredGpu,
        MeasuredGpuProcess,
        MeasuredHost,
        MeasuredNode,
        NodeList,
        NodePressure,
        NodeStatus,
    )


_UNMEASURED: Final[MeasuredNode] = {
    "stale_because": None,
    "shares_its_host": None,
    "taken_at": None,
    "seen_since": None,
    "measured_at": None,
    "age_seconds": None,
    "pressure": None,
    "measured": None,
}


def measured_dict(snapshot: NodeSnapshot | None, now: datetime) -> MeasuredNode:
    """What was measured of a node, and how old the measurement is; None: it is not connected, or not seen yet."""
    if snapshot is None:
        return _UNMEASURED
    age = snapshot.age(now)
    return {
        "stale_because": snapshot.stale_because or None,
        "shares_its_host": snapshot.shares_its_host,
        "taken_at": instant(snapshot.taken_at),
        "seen_since": None if snapshot.seen_since is None else instant(snapshot.seen_since),
        "measured_at": None if snapshot.measured_at is None else instant(snapshot.measured_at),
        "age_seconds": None if age is None else round(age.total_seconds(), 3),
        "pressure": None if snapshot.pressure is None else _pressure_dict(snapshot.pressure),
        "measured": None if snapshot.measured is None else _reading_dict(snapshot.measured),
    }


def _snapshot_from(data: NodeStatus) -> NodeSnapshot:
    """The snapshot of a live node in an API answer. Ratios have only the digits that were shown."""
    pressure = data["pressure"]
    assert data["taken_at"] is not None
    assert data["shares_its_host"] is not None
    return NodeSnapshot(
        name=data["name"],
        node_id=data["node_id"],
        taken_at=parse_instant(data["taken_at"]),
        base=ResourceVector.of(**data["base"]),
        total=ResourceVector.of(**data["total"]),
        free=ResourceVector.of(**data["free"]),
        lent=ResourceVector.of(**data["lent"]),
        borrowed=ResourceVector.of(**data["borrowed"]),
        shares_its_host=data["shares_its_host"],
        measured=None if data["measured"] is None else _reading(data["measured"]),
        measured_at=None if data["measured_at"] is None else parse_instant(data["measured_at"]),
        pressure=None if pressure is None else Pressure(**pressure),
        stale=data["state"] == "stale",
        stale_because=data["stale_because"] or "",
        seen_since=None if data["seen_since"] is None else parse_instant(data["seen_since"]),
    )


def snapshots_from(answer: NodeList | ClusterStatus) -> dict[NodeName, NodeSnapshot]:
    """Every live node in an answer that lists nodes."""
    alive = (node for node in answer["nodes"] if node["alive"] and node["taken_at"])
    return {node["name"]: _snapshot_from(node) for node in alive}


def aged(snapshot: NodeSnapshot, now: datetime, longest_s: float) -> NodeSnapshot:
    """The snapshot as it may be shown now: stale if its node was not measured for longer than `longest_s`."""
    age = snapshot.age(now)
    if snapshot.stale or age is None or age.total_seconds() <= longest_s:
        return snapshot
    return replace(snapshot, stale=True, stale_because=f"no measurement for {age.total_seconds():.0f} s")


def demand_dict(demand: Demand, now: datetime) -> DemandStatus:
    shape = demand.pending.shape
    return {
        "shape": shape.describe(),
        "resources": [bundle.needs.to_amounts() for bundle in shape.bundles],
        "labels": [constraint.describe() for b in shape.bundles for s in b.selectors for constraint in s],
        "strategy": shape.strategy,
        "placement_group": shape.in_group,
        "count": demand.pending.count,
        "queued_on": dict(demand.pending.queued_on),
        "reason": str(demand.reason),
        "detail": demand.detail,
        "could_run_on": list(demand.could_run_on),
        "wanted_on": list(demand.wanted_on),
        "since": instant(demand.since),
        "waited_seconds": round(demand.waited(now).total_seconds(), 3),
    }


def _pressure_dict(pressure: Pressure) -> NodePressure:
    return {
        "overall": round(pressure.overall, 4),
        "cpu": round(pressure.cpu, 4),
        "memory": round(pressure.memory, 4),
        "gpu": _rounded(pressure.gpu),
        "own_cpu": _rounded(pressure.own_cpu),
        "own_memory": _rounded(pressure.own_memory),
    }


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _reading_dict(reading: Reading) -> Measured:
    host, own = reading.host, reading.own
    return {
        "host": {
            "cpus": host.cpus,
            "cpu_used": round(host.cpu_used, 3),
            "memory_total": host.memory_total,
            "memory_used": host.memory_used,
            "swap_total": host.swap_total,
            "swap_used": host.swap_used,
            "load": [round(one, 2) for one in host.load],
        },
        "own": {
            "cpu_used": round(own.cpu_used, 3),
            "memory_used": own.memory_used,
            "processes": own.processes,
        },
        "gpus": [_gpu_dict(gpu) for gpu in reading.gpus],
        "no_gpus_because": reading.no_gpus_because,
    }


def _gpu_dict(gpu: GpuReading) -> MeasuredGpu:
    processes: list[MeasuredGpuProcess] = [
        {"pid": one.pid, "memory_bytes": one.memory_bytes, "ours": one.ours} for one in gpu.processes or ()
    ]
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "utilisation": gpu.utilisation,
        "memory_total": gpu.memory_total,
        "memory_used": gpu.memory_used,
        "temperature_c": gpu.temperature_c,
        "processes": None if gpu.processes is None else processes,
        "silent_because": gpu.silent_because,
    }


def _reading(data: Measured) -> Reading:
    return Reading(
        _host(data["host"]),
        OwnUse(**data["own"]),
        tuple(_gpu(gpu) for gpu in data["gpus"]),
        data["no_gpus_because"],
    )


def _host(data: MeasuredHost) -> HostReading:
    one, five, fifteen = data["load"]
    return HostReading(
        data["cpus"],
        data["cpu_used"],
        data["memory_total"],
        data["memory_used"],
        data["swap_total"],
        data["swap_used"],
        (one, five, fifteen),
    )


def _gpu(data: MeasuredGpu) -> GpuReading:
    processes = data["processes"]
    return GpuReading(
        data["index"],
        data["uuid"],
        data["name"],
        data["utilisation"],
        data["memory_total"],
        data["memory_used"],
        data["temperature_c"],
        None if processes is None else tuple(GpuProcess(**one) for one in processes),
        data["silent_because"],
    )
