"""Forecasts of series whose future is known by hand: constants, ramps, steps, seasons, gaps, broken clocks."""

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from distributed_grid.errors import ExtraMissing, InvalidRequest
from distributed_grid.monitoring.forecasting import (
    FORECASTERS,
    HORIZONS,
    BuiltInForecaster,
    Forecast,
    Forecaster,
    forecaster_maker,
)

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
QUARTER = 15 * MINUTE


def fed(
    values: Iterable[float | None] | Callable[[float], float | None],
    *,
    until: float = 0.0,
    every: float = 10.0,
    forecaster: Forecaster | None = None,
) -> Forecaster:
    """A forecaster that has seen these values, from time zero on."""
    forecaster = forecaster or BuiltInForecaster()
    if callable(values):
        values = [values(at) for at in np.arange(0.0, until + every / 2, every).tolist()]
    for n, value in enumerate(values):
        forecaster.observe(n * every, value)
    return forecaster


def ahead(forecaster: Forecaster, horizon_s: float = QUARTER) -> Forecast:
    found = forecaster.forecast(horizon_s)
    assert found is not None
    assert 0.0 <= found.low <= found.value <= found.high <= 1.0
    return found


@pytest.fixture(params=FORECASTERS)
def any_forecaster(request: pytest.FixtureRequest) -> Forecaster:
    if request.param == "river":
        pytest.importorskip("river", reason="the extra `forecast` is not installed")
    return forecaster_maker(request.param)()


# -- what it knows at the beginning --------------------------------------------------------------------------


def test_before_the_first_sample_there_is_no_forecast(any_forecaster: Forecaster) -> None:
    assert any_forecaster.forecast(QUARTER) is None
    any_forecaster.observe(0.0, None)
    any_forecaster.observe(10.0, math.nan)
    assert any_forecaster.forecast(QUARTER) is None
    assert any_forecaster.accuracies() == ()


def test_after_one_sample_it_stays_so_or_is_anything(any_forecaster: Forecaster) -> None:
    any_forecaster.observe(0.0, 0.3)

    anything = Forecast(0.0, QUARTER, pytest.approx(0.3), 0.0, 1.0, enough_history=False)
    assert any_forecaster.forecast(QUARTER) == anything


def test_the_interval_is_everything_until_enough_forecasts_were_checked(any_forecaster: Forecaster) -> None:
    forecaster = fed(lambda at: 0.5, until=HOUR, forecaster=any_forecaster)

    early = ahead(forecaster)
    assert (early.low, early.high) == (0.0, 1.0)
    assert early.accuracy is not None and early.accuracy.checked == 46 and early.accuracy.covered is None
    horizons = (MINUTE, 5 * MINUTE, QUARTER, HOUR)
    assert [ahead(forecaster, each).enough_history for each in horizons] == [True, True, False, False]


# -- hand-made series ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("horizon_s", [MINUTE, 5 * MINUTE, 10 * MINUTE, QUARTER])
def test_a_constant_stays(any_forecaster: Forecaster, horizon_s: float) -> None:
    found = ahead(fed(lambda at: 0.4, until=3 * HOUR, forecaster=any_forecaster), horizon_s)

    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.4, 0.4))
    assert found.accuracy is not None
    assert (found.accuracy.error, found.accuracy.covered) == pytest.approx((0.0, 1.0))


@pytest.mark.parametrize("horizon_s", [2 * MINUTE, 5 * MINUTE, 8 * MINUTE, QUARTER, HOUR])
def test_a_ramp_goes_on(horizon_s: float) -> None:
    hours = 4
    ramp = fed(lambda at: 0.1 + 0.1 * at / HOUR, until=hours * HOUR)

    found = ahead(ramp, horizon_s)

    # Opinions that go on half as fast were better than nothing, too, and keep a small say.
    truth = 0.1 + 0.1 * (hours + horizon_s / HOUR)
    assert abs(found.value - truth) < 0.4 * abs(truth - 0.5)
    assert found.value > 0.5


def test_a_ramp_stops_at_the_top() -> None:
    found = ahead(fed(lambda at: min(1.0, at / HOUR / 3), until=3 * HOUR - 60), HOUR)

    assert found.high == 1.0
    assert found.value <= 1.0


def test_after_a_step_it_stays_where_it_is() -> None:
    step = fed([0.2] * 1080 + [0.7] * 360)  # three hours, and one after the step

    assert ahead(step).value == pytest.approx(0.7, abs=0.02)


def test_bursts_that_always_end_within_minutes_are_expected_to_end() -> None:
    burst = [0.8] * 18 + [0.2] * 342  # three minutes of each hour
    forecaster = fed(burst * 20 + [0.8] * 6)

    found = ahead(forecaster)

    assert found.value < 0.3
    assert found.accuracy is not None and found.accuracy.error < 0.7 * found.accuracy.error_of_now


def test_a_daily_season_is_learnt() -> None:
    def season(at: float) -> float:
        return 0.5 + 0.4 * math.sin(2 * math.pi * at / DAY)

    forecaster = fed(season, until=4 * DAY + 5 * HOUR, every=60.0)  # an hour before the top
    four_hours = ahead(forecaster, 4 * HOUR)

    now, truth = season(5 * HOUR), season(9 * HOUR)
    assert abs(four_hours.value - truth) < 0.5 * abs(now - truth)
    for accuracy in forecaster.accuracies():
        assert accuracy.error < 0.7 * accuracy.error_of_now


# -- gaps and clocks -----------------------------------------------------------------------------------------


def test_what_fell_into_a_gap_is_not_held_against_any_forecast(any_forecaster: Forecaster) -> None:
    forecaster = fed([0.3] * 360 + [None] * 360 + [0.9], forecaster=any_forecaster)

    minutes, quarter, hour = forecaster.accuracies()
    assert minutes.error == quarter.error == pytest.approx(0.0)
    assert hour.error == pytest.approx(0.6)  # this sample is what forecasts of an hour ago were for


def test_a_gap_is_not_zero() -> None:
    with_gaps = fed(value if n % 7 else None for n, value in enumerate([0.6] * 1440))

    assert ahead(with_gaps).value == pytest.approx(0.6)
    assert ahead(with_gaps).low == pytest.approx(0.6)


def test_a_repeated_time_is_passed_over(any_forecaster: Forecaster) -> None:
    for n in range(20):
        any_forecaster.observe(10.0 * n, 0.5)
        any_forecaster.observe(10.0 * n, 0.9)

    assert ahead(any_forecaster).value == pytest.approx(0.5)


def test_a_clock_that_is_set_back_costs_the_open_forecasts_and_nothing_learnt(any_forecaster: Forecaster) -> None:
    forecaster = fed(lambda at: 0.4, until=3 * HOUR, forecaster=any_forecaster)
    before = ahead(forecaster)

    forecaster.observe(HOUR, 0.5)

    after = ahead(forecaster)
    assert after.made_at == HOUR
    assert after.accuracy == before.accuracy
    for n in range(1, 90):
        forecaster.observe(HOUR + 10.0 * n, 0.5)
    assert ahead(forecaster).accuracy == before.accuracy  # nothing of the hours before is due in this quarter
    for n in range(90, 121):
        forecaster.observe(HOUR + 10.0 * n, 0.5)
    checked = ahead(forecaster).accuracy
    assert checked is not None and before.accuracy is not None and checked.checked > before.accuracy.checked


def test_a_clock_that_jumps_about_breaks_nothing(any_forecaster: Forecaster) -> None:
    chance = np.random.default_rng(3)
    for at, value in zip(chance.normal(0, 5000, 1000).tolist(), chance.normal(0.5, 1.0, 1000).tolist(), strict=True):
        any_forecaster.observe(at, value if value < 1.5 else None)
        for horizon in (0.0, 60.0, 900.0, 5000.0, 100_000.0):
            if any_forecaster.forecast(horizon):
                ahead(any_forecaster, horizon)
    assert ahead(any_forecaster).value == ahead(any_forecaster, 900.0).value, "there is a forecast at the end"


@pytest.mark.parametrize("every", [1.0, 10.0, 60.0, 120.0])
def test_any_interval_of_samples_will_do(every: float) -> None:
    ramp = fed(lambda at: 0.1 + 0.1 * at / HOUR, until=4 * HOUR, every=every)

    assert ahead(ramp).value == pytest.approx(0.525, abs=0.012)


# -- horizons ------------------------------------------------------------------------------------------------


def test_the_interval_widens_with_the_horizon_and_the_value_has_no_jumps() -> None:
    chance = np.random.default_rng(0)
    walk = fed(np.clip(0.5 + 0.004 * chance.standard_normal(9_000).cumsum(), 0.0, 1.0).tolist())
    views = [ahead(walk, horizon) for horizon in range(0, 20_000, 100)]

    assert (views[0].low, views[0].value, views[0].high) == (views[0].value,) * 3
    widths = [view.high - view.low for view in views]
    assert widths[2] < widths[8] < widths[35] < widths[-1]
    assert max(abs(a.value - b.value) for a, b in itertools.pairwise(views)) < 0.02


def test_the_record_of_the_nearest_horizon_is_shown() -> None:
    forecaster = fed(lambda at: 0.4, until=6 * HOUR)

    assert [accuracy.horizon_s for accuracy in forecaster.accuracies()] == list(HORIZONS)
    near_a_quarter = ahead(forecaster, 1000.0).accuracy
    assert near_a_quarter is not None and near_a_quarter.horizon_s == QUARTER
    assert str(near_a_quarter) == ("off by 0.000 on average at 15 min, same-as-now 0.000; 90% interval covered 100%")


# -- choosing ------------------------------------------------------------------------------------------------


def test_a_forecaster_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ExtraMissing) as missing:
        forecaster_maker("river")

    assert "pip install 'distributed-grid[forecast]'" in (missing.value.try_next or "")


def test_an_unknown_forecaster_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidRequest) as refused:
        forecaster_maker("oracle")

    assert refused.value.try_next == "One of: built-in, river"
