"""Frozen data as plain data: whatever is sent can be read, and what an answer defines is what the data has."""

import json
from dataclasses import fields
from typing import Any

import pytest

from distributed_grid.model.codec import ANSWERS, PLAIN
from distributed_grid.model.listening import Listening
from distributed_grid.model.scheduling import Alternative, PlacedBy, Placement, SchedulingDecision
from distributed_grid.model.series import Accuracy
from distributed_grid.model.snapshots import GpuProcess, GpuReading, HostReading, OwnUse, Pressure, Reading
from distributed_grid.model.work import Driver, Work
from distributed_grid.wire import boosts, nodes, scheduling

GPU = GpuReading(0, "GPU-a", "A100", 0.5, 80, 20, processes=(GpuProcess(7, None, ours=True),))
READING = Reading(HostReading(4.0, 1.5, 8, 4, 2, 1, (1.0, 0.5, 0.25), 100, 96), OwnUse(0.5, 2, 7), (GPU,))
PLACE = Placement("a", PlacedBy.RESERVE, "b", lease_id="l1")
DECISION = SchedulingDecision("t", True, 0.75, ("why",), (PLACE,), (Alternative("c", 0.5, "busy"),))


@pytest.mark.parametrize("value", [READING, DECISION, Pressure(0.5, 0.25, 0.75), Listening(allow_hosts=("a", "b"))])
def test_what_is_sent_can_be_read(value: Any) -> None:
    assert PLAIN.decode(type(value), json.loads(json.dumps(PLAIN.encode(value)))) == value
    assert ANSWERS.decode(type(value), json.loads(json.dumps(ANSWERS.encode(value)))) == value


@pytest.mark.parametrize(
    ("answer", "data", "more"),
    [
        (nodes.Measured, Reading, set()),
        (nodes.MeasuredHost, HostReading, set()),
        (nodes.MeasuredOwn, OwnUse, set()),
        (nodes.MeasuredGpu, GpuReading, set()),
        (nodes.MeasuredGpuProcess, GpuProcess, set()),
        (nodes.NodePressure, Pressure, set()),
        (nodes.ForecastAccuracy, Accuracy, set()),
        (scheduling.TaskPlacement, Placement, set()),
        (scheduling.TaskDecision, SchedulingDecision, {"node", "delivery", "lease_id", "boost_id", "placement_group"}),
        (boosts.RayDriver, Driver, set()),
        (boosts.JobsWork, Work, {"waits_for_its_actors"}),
    ],
)
def test_an_answer_has_every_field_of_its_data(answer: Any, data: Any, more: set[str]) -> None:
    internal = {"workers"} if data is Reading else set()
    assert set(answer.__annotations__) == {field.name for field in fields(data)} - internal | more


def test_data_of_another_version_is_read_as_far_as_it_goes() -> None:
    host = PLAIN.encode(READING.host)
    del host["disk_total"], host["disk_used"]
    assert PLAIN.decode(HostReading, host | {"later": 1}).disk_total == 0


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        ({}, "cpus is missing"),
        ({"cpus": "4"}, "cpus must be a number, not '4'"),
        ({"cpus": True}, "cpus must be a number, not True"),
        ([], "it must be an object"),
    ],
)
def test_what_cannot_be_read_is_named(wrong: object, reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        PLAIN.decode(HostReading, wrong)
