"""Snapshots as the API and `--json` show them, and read back from that form."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, cast

from distributed_grid.model.codec import ANSWERS
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.snapshots import NodeSnapshot, Pressure, Reading
from distributed_grid.model.times import instant, parse_instant

if TYPE_CHECKING:
    from distributed_grid.wire.nodes import (
        ClusterStatus,
        Measured,
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


def _shown(reading: Reading) -> Measured:
    """The reading without its workers: a list for each node would be the largest part of the answer."""
    shown = cast("Measured", ANSWERS.encode(reading))
    del shown["workers"]  # type: ignore[typeddict-item]
    return shown


def measured_dict(snapshot: NodeSnapshot | None, now: datetime) -> MeasuredNode:
    """A node's measurements and their age; None: it is not connected, or not seen yet."""
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
        "pressure": None if snapshot.pressure is None else cast("NodePressure", ANSWERS.encode(snapshot.pressure)),
        "measured": None if snapshot.measured is None else _shown(snapshot.measured),
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
        measured=None if data["measured"] is None else ANSWERS.decode(Reading, data["measured"]),
        measured_at=None if data["measured_at"] is None else parse_instant(data["measured_at"]),
        pressure=None if pressure is None else ANSWERS.decode(Pressure, pressure),
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
