"""Snapshots and demand as the API and `--json` show them, and snapshots read back from that form."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

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

_AMOUNTS = ("base", "total", "free", "lent", "borrowed")


def snapshot_dict(snapshot: NodeSnapshot, now: datetime) -> dict[str, Any]:
    """One live node: what Ray counts, what was measured, and how old the measurement is."""
    age = snapshot.age(now)
    return {
        "name": snapshot.name,
        "node_id": snapshot.node_id,
        **{amount: getattr(snapshot, amount).to_amounts() for amount in _AMOUNTS},
        "used": snapshot.used.to_amounts(),
        "state": snapshot.state,
        "stale_because": snapshot.stale_because or None,
        "shares_its_host": snapshot.shares_its_host,
        "taken_at": instant(snapshot.taken_at),
        "seen_since": None if snapshot.seen_since is None else instant(snapshot.seen_since),
        "measured_at": None if snapshot.measured_at is None else instant(snapshot.measured_at),
        "age_seconds": None if age is None else round(age.total_seconds(), 3),
        "pressure": None if snapshot.pressure is None else _rounded(asdict(snapshot.pressure)),
        "measured": None if snapshot.measured is None else _reading_dict(snapshot.measured),
    }


def snapshot_from_dict(data: Mapping[str, Any]) -> NodeSnapshot:
    """The snapshot that an API answer shows. Ratios have only the digits that were shown."""
    pressure = data["pressure"]
    return NodeSnapshot(
        name=data["name"],
        node_id=data["node_id"],
        taken_at=parse_instant(data["taken_at"]),
        **{amount: ResourceVector.of(**data[amount]) for amount in _AMOUNTS},
        shares_its_host=data["shares_its_host"],
        measured=None if data["measured"] is None else _reading(data["measured"]),
        measured_at=None if data["measured_at"] is None else parse_instant(data["measured_at"]),
        pressure=None if pressure is None else Pressure(**pressure),
        stale=data["state"] == "stale",
        stale_because=data["stale_because"] or "",
        seen_since=None if data["seen_since"] is None else parse_instant(data["seen_since"]),
    )


def snapshots_from(answer: Mapping[str, Any]) -> dict[NodeName, NodeSnapshot]:
    """Every live node in an answer that lists nodes."""
    alive = (node for node in answer["nodes"] if node["alive"] and node["taken_at"])
    return {node["name"]: snapshot_from_dict(node) for node in alive}


def aged(snapshot: NodeSnapshot, now: datetime, longest_s: float) -> NodeSnapshot:
    """The snapshot as it may be shown now: stale if its node was not measured for longer than `longest_s`."""
    age = snapshot.age(now)
    if snapshot.stale or age is None or age.total_seconds() <= longest_s:
        return snapshot
    return replace(snapshot, stale=True, stale_because=f"nothing was measured for {age.total_seconds():.0f} s")


def demand_dict(demand: Demand, now: datetime) -> dict[str, Any]:
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


def _rounded(ratios: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else round(value, 4) for name, value in ratios.items()}


def _reading_dict(reading: Reading) -> dict[str, Any]:
    host, own = reading.host, reading.own
    return {
        "host": asdict(host) | {"cpu_used": round(host.cpu_used, 3), "load": [round(one, 2) for one in host.load]},
        "own": asdict(own) | {"cpu_used": round(own.cpu_used, 3)},
        "gpus": [asdict(gpu) for gpu in reading.gpus],
        "no_gpus_because": reading.no_gpus_because,
    }


def _reading(data: Mapping[str, Any]) -> Reading:
    return Reading(
        HostReading(**{**data["host"], "load": tuple(data["host"]["load"])}),
        OwnUse(**data["own"]),
        tuple(_gpu(gpu) for gpu in data["gpus"]),
        data["no_gpus_because"],
    )


def _gpu(data: Mapping[str, Any]) -> GpuReading:
    processes = data["processes"]
    told = None if processes is None else tuple(GpuProcess(**one) for one in processes)
    return GpuReading(**{**data, "processes": told})
