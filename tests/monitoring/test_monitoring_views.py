"""Snapshots as JSON, and back."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from builders import NOON, amounts, node, reading

from distributed_grid.controller.monitoring_routes import demand_dict
from distributed_grid.decide.monitoring.demand import explain_demand
from distributed_grid.decide.monitoring.snapshots import take_snapshots
from distributed_grid.model.demand import Bundle, LabelConstraint, Pending, Shape
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.resources import GB
from distributed_grid.model.snapshots import GpuProcess, GpuReading, NodeSnapshot
from distributed_grid.monitoring.views import aged, measured_dict, snapshots_from

GPU = GpuReading(0, "GPU-8f3c", "H200", None, 140 * GB, 35 * GB, 61.0, (GpuProcess(7, None), GpuProcess(8, GB)))


SILENT = GpuReading(1, None, None, None, None, None, silent_because="it fell off the bus")


def taken(*, answers: bool = True) -> NodeSnapshot:
    there = node("gpu1", cpus=8, gpus=1, used=amounts(cpu=4), ip="10.0.0.1")
    found = {there.node_id: reading(GPU, SILENT)} if answers else {}
    return take_snapshots(NodeTable([there]), (), found, {}, now=NOON, start_grace=timedelta(seconds=30))["gpu1"]


def shown_at(now: datetime, snapshot: NodeSnapshot) -> dict[str, Any]:
    """The snapshot in the JSON of an answer that lists nodes."""
    amounts_of = {name: getattr(snapshot, name).to_amounts() for name in ("base", "total", "free", "lent", "borrowed")}
    logical = {"name": snapshot.name, "node_id": snapshot.node_id, "alive": True, "state": snapshot.state}
    found: dict[str, Any] = json.loads(json.dumps({**logical, **amounts_of, **measured_dict(snapshot, now)}))
    return found


def test_a_snapshot_comes_back_from_its_json() -> None:
    for snapshot in (taken(), taken(answers=False), replace(taken(), stale=True, stale_because="its probe died")):
        assert snapshots_from({"nodes": [shown_at(NOON, snapshot)]}) == {"gpu1": snapshot}  # type: ignore[arg-type]


def test_what_is_not_known_is_null_and_not_zero() -> None:
    shown = shown_at(NOON, taken(answers=False))

    assert (shown["measured"], shown["pressure"], shown["age_seconds"]) == (None, None, None)
    assert shown_at(NOON, taken())["measured"]["gpus"][0]["utilisation"] is None


def test_the_age_of_a_measurement_is_shown_with_it() -> None:
    shown = shown_at(NOON + timedelta(seconds=7), taken())

    assert (shown["measured"]["host"]["cpu_used"], shown["age_seconds"]) == (8.0, 7.0)


def test_nothing_that_is_too_old_is_shown_as_if_it_were_so_now() -> None:
    later = NOON + timedelta(seconds=31)

    assert aged(taken(), NOON + timedelta(seconds=30), 30.0).state == "ok"
    assert aged(taken(), later, 30.0).state == "stale"
    assert aged(taken(), later, 30.0).stale_because == "no measurement for 31 s"
    assert aged(taken(answers=False), later, 30.0).state == "starting"


def test_demand_says_what_where_how_many_and_why() -> None:
    shape = Shape((Bundle(amounts(cpu=100), ((LabelConstraint("grid/name", ("gpu1",)),),)),))
    nodes = NodeTable([node("gpu1", labels={"grid/name": "gpu1"}), node("gpu2")])
    (demand,) = explain_demand([Pending(shape, 3, {"gpu2": 3})], nodes, {shape: NOON}, now=NOON)

    shown = demand_dict(demand, NOON + timedelta(seconds=5))

    assert shown["shape"] == "100 CPUs where grid/name=gpu1"
    assert (shown["count"], shown["queued_on"], shown["wanted_on"]) == (3, {"gpu2": 3}, ["gpu1"])
    assert (shown["reason"], shown["detail"]) == (
        "infeasible",
        "its labels match only gpu1, which has 4 CPUs",
    )
    assert shown["waited_seconds"] == 5.0
    assert json.dumps(shown)
