"""Rounds of measuring, on a cluster that a test describes."""

import asyncio
from datetime import datetime, timedelta

import pytest
from builders import NOON, amounts, lease, node, reading

from distributed_grid.config import ForecasterChoice, GridConfig
from distributed_grid.decide.monitoring.pressure import PressureChange, Threshold
from distributed_grid.decide.monitoring.snapshots import Answers
from distributed_grid.model.demand import Bundle, Pending, Shape, WaitReason
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.snapshots import Reading
from distributed_grid.monitoring.collector import Collector, Settings, settings_of
from distributed_grid.monitoring.forecasting import FORECASTERS

THRESHOLDS = dict.fromkeys(("cpu", "memory", "gpu"), Threshold(low=0.3, high=0.8))


class Lab:
    """Two nodes with a machine each; time passes when a round is made."""

    def __init__(self, interval_s: float = 10.0) -> None:
        self.now = NOON
        self.there = {name: node(name, cpus=16, ip=name) for name in ("gpu1", "gpu2")}
        self.said: dict[str, Reading | str] = {}
        self.waiting: tuple[Pending, ...] = ()
        self.collector = Collector(self, Settings(interval_s, THRESHOLDS), lambda: self.now)

    async def nodes(self) -> NodeTable:
        return NodeTable(self.there.values())

    def leases(self) -> tuple[Lease, ...]:
        return (lease(source="gpu1", target="gpu2"),)

    async def answers(self, within_s: float) -> Answers:
        return {n.node_id: self.said.get(n.name, reading(cpu_used=0.0)) for n in self.there.values() if n.alive}

    async def pending(self, nodes: NodeTable) -> tuple[Pending, ...]:
        return self.waiting

    def round(self, *, after_s: float = 10.0, **said: Reading | str) -> None:
        self.now += timedelta(seconds=after_s)
        self.said |= said
        asyncio.run(self.collector.round())


def busy(cores: float) -> Reading:
    return reading(cpu_used=cores)


def test_the_latest_snapshots_have_what_was_measured_and_what_is_lent() -> None:
    lab = Lab()
    lab.round(gpu1=busy(8.0))

    found = lab.collector.snapshots()

    assert found["gpu1"].pressure is not None and found["gpu1"].pressure.cpu == 0.5
    assert (found["gpu1"].lent, found["gpu2"].borrowed) == (amounts(cpu=2), amounts(cpu=2))


def test_a_node_that_falls_silent_is_stale_lends_nothing_and_has_a_gap_in_its_history() -> None:
    lab = Lab()
    lab.round(gpu1=busy(8.0))
    lab.round(gpu1="its probe died")
    lab.round(gpu1=busy(4.0))

    values = lab.collector.history.of("gpu1", "cpu").values
    assert [None if v != v else float(v) for v in values] == [0.5, None, 0.25]

    lab.round(gpu1="its probe died")
    assert lab.collector.silent() == {"id-of-gpu1": "its probe died"}
    assert lab.collector.snapshots()["gpu1"].state == "stale"


def test_where_no_round_is_made_any_more_everything_becomes_stale() -> None:
    lab = Lab()
    lab.round()
    lab.now += timedelta(seconds=26)

    assert {snapshot.state for snapshot in lab.collector.snapshots().values()} == {"stale"}
    assert lab.collector.silent().keys() == {"id-of-gpu1", "id-of-gpu2"}


def test_a_node_that_is_gone_leaves_no_trace() -> None:
    lab = Lab()
    lab.round()
    del lab.there["gpu2"]
    lab.round()

    assert lab.collector.snapshots().keys() == {"gpu1"}
    assert lab.collector.history.nodes == ("gpu1",)
    assert lab.collector.forecast("gpu2", "cpu", 900) is None


def test_pressure_is_told_when_it_begins_and_when_it_ends() -> None:
    lab = Lab()
    reported: list[PressureChange] = []
    stop = lab.collector.on_pressure(reported.append)
    for cores in (8.0, 15.0, 12.0, 6.0, 4.0, 15.0):
        lab.round(gpu1=busy(cores))

    assert [(change.is_high, round(change.value, 2)) for change in reported] == [
        (True, 0.94),
        (False, 0.25),
        (True, 0.94),
    ]
    assert lab.collector.is_pressed("gpu1", "cpu")
    stop()
    lab.round(gpu1=busy(0.0))
    assert len(reported) == 3


def test_a_callback_that_fails_keeps_no_other_from_being_told_and_is_reported() -> None:
    lab = Lab()
    reported: list[PressureChange] = []

    def broken(_: PressureChange) -> None:
        raise RuntimeError("not mine")

    lab.collector.on_pressure(broken)
    lab.collector.on_pressure(reported.append)
    with pytest.raises(ExceptionGroup):
        lab.round(gpu1=busy(16.0))

    assert len(reported) == 1
    assert lab.collector.snapshots()["gpu1"].state == "ok"


def test_a_ramp_is_seen_as_a_trend_and_expected_to_go_on() -> None:
    lab = Lab()
    for step in range(60):  # ten minutes, from 0 to a little under 0.6
        lab.round(gpu1=busy(16 * 0.01 * step))

    trends = lab.collector.trends("gpu1", "cpu")
    assert trends["5m"].per_minute == pytest.approx(0.06, abs=1e-3)
    assert trends["1h"].per_minute is None  # a sixth of an hour does not speak for all of it
    forecast = lab.collector.forecast("gpu1", "cpu", 60)
    assert forecast is not None and forecast.low <= forecast.value <= forecast.high
    assert forecast.value >= 0.55


def test_what_waits_is_known_since_when_and_why() -> None:
    lab = Lab()
    shape = Shape((Bundle(amounts(cpu=64)),))
    lab.waiting = (Pending(shape, 2),)
    lab.round()
    first_seen = lab.now
    lab.round()

    (demand,) = lab.collector.demand
    assert (demand.reason, demand.since, demand.pending.count) == (WaitReason.INFEASIBLE, first_seen, 2)


def test_nodes_are_measured_and_pressure_is_told_though_ray_does_not_tell_what_waits() -> None:
    lab = Lab()
    reported: list[PressureChange] = []
    lab.collector.on_pressure(reported.append)

    async def pending(nodes: NodeTable) -> tuple[Pending, ...]:
        raise ConnectionError("Ray is away for a moment")

    lab.pending = pending  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        lab.round(gpu1=busy(16.0))

    assert lab.collector.snapshots()["gpu1"].state == "ok"
    assert lab.collector.history.of("gpu1", "cpu").latest == 1.0
    assert [change.node for change in reported] == ["gpu1"]


def test_rounds_go_on_after_one_that_failed() -> None:
    lab = Lab(interval_s=0.01)
    looks = 0

    async def nodes() -> NodeTable:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise ConnectionError("Ray is away for a moment")
        return NodeTable(lab.there.values())

    lab.nodes = nodes  # type: ignore[method-assign]

    async def main() -> None:
        lab.collector.start()
        async with asyncio.timeout(20):
            while not lab.collector.snapshots():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await lab.collector.stop()

    asyncio.run(main())
    assert looks > 1


def test_a_round_without_all_answers_is_repeated_soon_and_keeps_the_rhythm_of_the_history() -> None:
    """With an hour between two rounds, a probe that is still starting is not waited for that long."""
    lab = Lab(interval_s=3600.0)
    lab.said = dict.fromkeys(("gpu1", "gpu2"), "its probe is still starting")
    asked: list[datetime] = []

    async def answers(within_s: float) -> Answers:
        asked.append(lab.now)
        ids = [node.node_id for node in lab.there.values()]
        return dict.fromkeys(ids, "its probe is still starting" if len(asked) < 2 else busy(8.0))

    lab.answers = answers  # type: ignore[method-assign]

    async def main() -> None:
        lab.collector.start()
        async with asyncio.timeout(20):
            while not all(s.state == "ok" for s in lab.collector.snapshots().values()) or len(asked) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await lab.collector.stop()

    asyncio.run(main())
    assert lab.collector.history.of("gpu1", "cpu").values.size == 1


def test_the_nodes_may_be_many(benchmark_nodes: int = 200) -> None:
    lab = Lab()
    lab.there = {name: _own_machine(name) for name in (f"n{i:04}" for i in range(benchmark_nodes))}
    lab.round()

    assert len(lab.collector.snapshots()) == benchmark_nodes


def _own_machine(name: str) -> Node:
    return node(name, cpus=16, ip=name)


def test_the_configuration_says_how_often_who_foresees_and_what_is_high() -> None:
    config = GridConfig.from_dict(
        {
            "name": "lab",
            "embedded": True,
            "nodes": [{"name": "head", "role": "master"}],
            "resource_sharing": {
                "monitoring_interval_seconds": 5,
                "forecaster": "river",
                "thresholds": {"cpu_pressure_high": 0.9, "cpu_pressure_low": 0.5},
            },
        }
    )

    settings = settings_of(config)

    assert (settings.interval_s, settings.forecaster, settings.one_machine) == (5.0, "river", True)
    assert settings.thresholds["cpu"] == Threshold(low=0.5, high=0.9)
    assert {str(choice) for choice in ForecasterChoice} == set(FORECASTERS)
