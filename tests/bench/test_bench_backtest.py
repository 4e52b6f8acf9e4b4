"""How good forecasts are: counted right, and good enough on loads like those of a real cluster."""

import os
from pathlib import Path

import numpy as np
import pytest

from bench.backtest import Score, backtest
from bench.load_curves import Pods, made_up_pods, read_pods
from distributed_grid.model.series import Accuracy, Forecast, Series
from distributed_grid.monitoring.forecasting import BuiltInForecaster

QUARTER = 900.0
ROOT = Path(__file__).parents[2]
OPENB = Path(os.environ.get("GRID_OPENB_DIR", ROOT.parent / "shared" / "data" / "openb"))


class Always:
    """Says the same at all times."""

    def __init__(self, value: float, low: float, high: float) -> None:
        self._says = (value, low, high)
        self.latest_at: float | None = None

    def observe(self, at: float, value: float | None) -> None:
        self.latest_at = at

    def forecast(self, horizon_s: float) -> Forecast | None:
        return None if self.latest_at is None else Forecast(self.latest_at, horizon_s, *self._says)

    def accuracies(self) -> tuple[Accuracy, ...]:
        return ()


def series(*values: float) -> Series:
    return Series(np.arange(len(values)) * 60.0, np.array(values, dtype=np.float32))


def test_a_score_by_hand() -> None:
    # Two minutes ahead: from 0.2, 0.2, 0.4 to 0.4, 0.6, 0.6.
    score = backtest(Always(0.5, 0.3, 0.5), series(0.2, 0.2, 0.4, 0.6, 0.6), 120.0)

    assert score == Score(
        120.0,
        checked=3,
        error=pytest.approx(0.1),
        error_of_now=pytest.approx((0.2 + 0.4 + 0.2) / 3),
        covered=pytest.approx(1 / 3),
        width=pytest.approx(0.2),
        changed=1.0,
    )
    assert score.ratio == pytest.approx(0.375)


def test_only_what_comes_after_the_beginning_counts() -> None:
    score = backtest(Always(0.5, 0.3, 0.5), series(0.2, 0.2, 0.4, 0.6, 0.6), 120.0, since=120.0)

    assert score is not None and score.checked == 1


def test_what_would_have_come_in_a_gap_is_not_counted() -> None:
    score = backtest(Always(0.5, 0.3, 0.5), series(0.2, 0.2, np.nan, 0.6, np.nan), 120.0)

    assert score is not None and score.checked == 1
    assert backtest(Always(0.5, 0.3, 0.5), series(0.2), 120.0) is None


def test_the_forecasters_own_record_agrees_with_the_backtest() -> None:
    forecaster = BuiltInForecaster()
    load = made_up_pods(days=1, seed=4).load("gpu", start=0.0, end=86_400.0 / 3, interval_s=10.0)

    score = backtest(forecaster, load, QUARTER)

    reported = next(accuracy for accuracy in forecaster.accuracies() if accuracy.horizon_s == QUARTER)
    assert score is not None
    assert reported.checked == score.checked
    # The record fades, by a third in these eight hours.
    assert reported.error == pytest.approx(score.error, rel=0.25)
    assert reported.error_of_now == pytest.approx(score.error_of_now, rel=0.25)


def judged(pods: Pods, *, start: float, end: float) -> Score:
    """The second half of the load of one resource, forecast each minute."""
    load = pods.load("gpu", start=start, end=end, interval_s=60.0)
    score = backtest(BuiltInForecaster((QUARTER,)), load, QUARTER, since=(start + end) / 2)
    assert score is not None
    return score


def test_on_a_made_up_load_it_beats_same_as_now_and_covers_what_it_says() -> None:
    """Arrivals by chance, a daily season, and lifetimes of which few are very long."""
    score = judged(made_up_pods(days=24, seed=11), start=0.0, end=24 * 86_400.0)

    assert score.error < score.error_of_now
    assert 0.85 <= score.covered <= 0.95


@pytest.mark.skipif(not OPENB.is_dir(), reason=f"no pod lists at {OPENB}; set GRID_OPENB_DIR to a folder that has them")
@pytest.mark.parametrize("name", ["default", "cpu050", "gpushare40"])
def test_on_the_load_of_a_real_cluster_it_beats_same_as_now_and_covers_what_it_says(name: str) -> None:
    pods = read_pods(OPENB / f"openb_pod_list_{name}.csv")
    assert pods is not None
    score = judged(pods, start=pods.busy_from(), end=float(pods.came.max()))

    assert score.error < score.error_of_now
    assert 0.85 <= score.covered <= 0.95


def test_the_made_up_pods_have_the_traits_of_the_lists() -> None:
    pods = made_up_pods(days=20, seed=0)
    lasted = pods.went - pods.came

    assert 180 < len(pods.came) / 20 < 260
    assert 400 < np.median(lasted) < 700
    assert lasted.mean() > 5 * np.median(lasted)
    by_quarter = np.histogram(pods.came % 86_400, bins=4)[0]
    assert by_quarter.max() > 2 * by_quarter.min()


def test_a_load_by_hand() -> None:
    pods = Pods(np.array([0.0, 20.0]), np.array([30.0, 50.0]), {"gpu": np.array([1.0, 3.0])})

    load = pods.load("gpu", start=0.0, end=60.0, interval_s=10.0)

    assert (load.values * 4 * 1.25).tolist() == pytest.approx([1.0, 1.0, 4.0, 3.0, 3.0, 0.0])
