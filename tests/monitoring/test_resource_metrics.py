"""`ResourceMetricsCollector`, as a client of a controller. Without one: tests/integration."""

import asyncio
from collections.abc import Iterator

import pytest
from builders import reading
from served_grid import ServedGrid

from distributed_grid.errors import NoCluster, TargetNotFound
from distributed_grid.monitoring.resource_metrics import PressureChange, ResourceMetricsCollector
from distributed_grid.store.home import GridHome


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    grid = ServedGrid(tmp_path_factory.mktemp("served"))
    grid.measure()
    yield grid
    grid.close()


def test_snapshots_trends_and_a_summary(served: ServedGrid) -> None:
    async def main() -> None:
        async with ResourceMetricsCollector(home=served.home) as collector:
            snapshots = collector.get_all_latest_snapshots()
            assert snapshots.keys() == {"a", "b", "c"}
            assert snapshots["a"].pressure is not None and snapshots["a"].pressure.cpu == 0.5
            assert collector.get_latest_snapshot("a") == collector.get_latest_snapshot(snapshots["a"].node_id)
            assert collector.get_latest_snapshot("nobody") is None

            trend = collector.get_resource_trend("a", "cpu")
            assert (trend.current, trend.per_minute) == (0.5, {"5m": None, "15m": None, "1h": None})
            assert collector.get_resource_trend("a", "gpu").current is None
            with pytest.raises(TargetNotFound):
                collector.get_resource_trend("nobody", "cpu")

            summary = collector.get_cluster_summary()
            assert (summary["nodes"], summary["stale_nodes"], summary["pending_requests"]) == (3, [], 0)
            assert (summary["total"]["cpu"], summary["used"]["cpu"]) == (24, 0)
            assert summary["pressure"] == {"overall": 0.375, "cpu": 0.5, "memory": 0.25, "gpu": None}

    asyncio.run(main())


def test_callbacks_are_told_when_pressure_begins_and_ends(served: ServedGrid) -> None:
    told: list[PressureChange] = []

    async def main() -> None:
        async with ResourceMetricsCollector(home=served.home) as collector:
            collector.add_pressure_callback(told.append)
            for cores, wanted in ((16.0, 1), (12.0, 1), (0.0, 2)):
                served.telemetry.answers["b"] = reading(cpu_used=cores)
                await asyncio.to_thread(served.measure)
                async with asyncio.timeout(30):
                    while len(told) < wanted:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)

    asyncio.run(main())
    assert told == [PressureChange("b", "cpu", 1.0, is_high=True), PressureChange("b", "cpu", 0.0, is_high=False)]


def test_a_callback_that_fails_is_reported_and_no_other_misses_anything(served: ServedGrid) -> None:
    told: list[PressureChange] = []
    reported: list[str] = []

    def broken(_: PressureChange) -> None:
        raise RuntimeError("not mine")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, said: reported.append(said["message"]))
        async with ResourceMetricsCollector(home=served.home) as collector:
            collector.add_pressure_callback(broken)
            collector.add_pressure_callback(told.append)
            for cores, wanted in ((16.0, 1), (0.0, 2)):
                served.telemetry.answers["b"] = reading(cpu_used=cores)
                await asyncio.to_thread(served.measure)
                async with asyncio.timeout(30):
                    while len(told) < wanted:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)

    asyncio.run(main())
    assert [change.is_high for change in told] == [True, False]
    assert reported[0] == "a pressure callback failed: b is under pressure: cpu at 100%"


def test_a_stale_node_counts_for_nothing_in_the_summary(served: ServedGrid) -> None:
    served.telemetry.answers["c"] = "its probe died"
    served.measure()

    async def main() -> None:
        async with ResourceMetricsCollector(home=served.home) as collector:
            assert collector.get_cluster_summary()["stale_nodes"] == ["c"]
            assert collector.get_resource_trend("c", "cpu").current is None

    asyncio.run(main())


def test_without_a_controller_and_without_ray_it_says_what_to_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    collector = ResourceMetricsCollector(home=GridHome(tmp_path_factory.mktemp("empty")))

    with pytest.raises(NoCluster, match="not started"):
        collector.get_all_latest_snapshots()
    with pytest.raises(NoCluster) as refused:
        asyncio.run(collector.start())
    assert "ray.init" in str(refused.value.try_next)
