"""A controller that comes back knows the last hour; whatever is wrong with the file of it, it measures on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import reading
from disks import filled, read_only, small_disk
from fake_telemetry import FakeTelemetry
from faulty_files import FAULTS
from whole_grid import WholeGrid

from distributed_grid.config import GridConfig
from distributed_grid.monitoring.collector import Collector
from distributed_grid.monitoring.kept_history import EVERY_S
from distributed_grid.store.history_file import LARGEST

pytestmark = pytest.mark.filterwarnings("ignore")
Make = Callable[..., WholeGrid]
TEN_MINUTES_S = 600.0
AS_IF_NOTHING_WERE_WRONG = {"missing", "nowhere", "slow", "locked", "unwritable"}
CANNOT_BE_REPLACED = {"folder", "unwritable"}


def measuring(make_grid: Make, home: Path | None = None) -> WholeGrid:
    telemetry = FakeTelemetry()
    telemetry.answers["a"] = reading(cpus=16.0, cpu_used=8.0)
    return make_grid(telemetry=telemetry, home=home, policy="conservative", monitoring_interval_seconds=10)


def collector(lab: WholeGrid) -> Collector:
    assert lab.engine.watching is not None
    return lab.engine.watching.collector


def times(lab: WholeGrid) -> list[float]:
    found: list[float] = collector(lab).history.of("a", "cpu").times.tolist()
    return found


def test_after_a_crash_all_but_the_last_moments_are_known(make_grid: Make) -> None:
    lab = measuring(make_grid)
    lab.wait(TEN_MINUTES_S)
    before = times(lab)

    lab.crash()

    after = times(lab)
    assert len(before) >= 60
    assert after == before[: len(after)] and before[-1] - after[-1] <= EVERY_S + 10.0
    assert collector(lab).trends("a", "cpu")["5m"].per_minute == pytest.approx(0.0)
    lab.wait(60.0)
    assert times(lab)[: len(after)] == after and len(times(lab)) >= len(after) + 6
    expected = collector(lab).forecast("a", "cpu", 300.0)
    assert expected is not None and expected.accuracy is not None and expected.accuracy.checked > 10
    assert expected.made_at == times(lab)[-1]


def test_an_engine_that_is_stopped_in_order_loses_nothing(make_grid: Make) -> None:
    lab = measuring(make_grid)
    lab.wait(45.0)
    before = times(lab)
    lab.stop()
    lab.start()
    assert times(lab) == before


def test_after_an_hour_of_absence_everything_begins_anew(make_grid: Make) -> None:
    lab = measuring(make_grid)
    lab.wait(TEN_MINUTES_S)
    lab.bury()
    lab.clock.sleep(3700.0)
    lab.start()
    assert times(lab) == []
    lab.wait(15.0)
    assert len(times(lab)) == 2


def test_a_node_that_is_gone_meanwhile_is_forgotten(make_grid: Make) -> None:
    lab = measuring(make_grid)
    lab.wait(TEN_MINUTES_S)
    lab.bury()
    lab.cluster.kill_node("c")
    lab.start()
    lab.wait(15.0)
    assert set(collector(lab).history.nodes) == {"a", "b"}


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_is_wrong_with_the_file_measuring_goes_on_and_the_file_is_written_again(
    make_grid: Make, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = measuring(make_grid)
    lab.wait(60.0)
    path = lab.home.history
    lab.bury()
    capsys.readouterr()
    with FAULTS[fault](path, lambda: lab.clock.sleep(3.0)):
        lab.start()
        lab.wait(200.0)
        assert len(times(lab)) >= 20
        assert not lab.problems() and not lab.failures
        said = capsys.readouterr().err
        assert said.count("measurements begin anew") == (fault not in AS_IF_NOTHING_WERE_WRONG)
        assert said.count("measurements could not be saved") == (fault in CANNOT_BE_REPLACED)
    path.unlink(missing_ok=True)
    lab.wait(60.0)
    lab.crash()
    assert len(times(lab)) >= 20


def test_another_clusters_file_is_not_taken_and_the_log_says_so(
    make_grid: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    lab = measuring(make_grid)
    lab.wait(60.0)
    lab.bury()
    lab.config = GridConfig.from_dict(lab.config.to_dict() | {"name": "other"})
    lab.start()
    assert times(lab) == []
    assert "it belongs to another cluster" in capsys.readouterr().err


def test_a_full_or_read_only_disk_costs_the_file_and_nothing_else(
    make_grid: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", "256k") as disk:
        lab = measuring(make_grid, home=disk)
        lab.wait(60.0)
        for broken in (filled, read_only):
            capsys.readouterr()
            with broken(disk):
                lab.wait(300.0)
                assert capsys.readouterr().err.count("measurements could not be saved") == 1  # not every half minute
                assert len(times(lab)) > 30
        lab.wait(60.0)
        known = len(times(lab))
        lab.crash()
        assert len(times(lab)) > known - 5
        lab.close()


def test_the_file_stays_small(make_grid: Make) -> None:
    lab = measuring(make_grid)
    lab.wait(4000.0)
    assert lab.home.history.stat().st_size < 20_000 < LARGEST
    assert [path.name for path in lab.home.path.glob("history*")] == ["history.bin"]
