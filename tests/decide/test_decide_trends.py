"""Slopes by hand: ramps, steps, seasons, gaps."""

import math

import numpy as np
import pytest

from distributed_grid.decide.monitoring.trends import WINDOWS, Trend, trend, trends_of
from distributed_grid.model.series import Series


def series(*values: float | None, every: float = 10.0, until: float = 3600.0) -> Series:
    """Values that end at `until`; None for a sample that did not come."""
    times = until - every * np.arange(len(values) - 1, -1, -1)
    return Series(times, np.array([math.nan if value is None else value for value in values], dtype=np.float32))


def look(what: Series, window_s: float = 300.0, *, now: float = 3600.0, every: float = 10.0) -> Trend:
    return trend(what, window_s, now=now, interval_s=every)


@pytest.mark.parametrize("window_s", WINDOWS.values(), ids=WINDOWS)
def test_a_ramp_has_its_slope_in_every_window(window_s: float) -> None:
    ramp = series(*(0.1 + 0.001 * n for n in range(361)))  # 0.001 in ten seconds

    assert look(ramp, window_s).per_minute == pytest.approx(0.006, rel=1e-3)


def test_a_constant_has_no_slope() -> None:
    assert look(series(*[0.7] * 31)) == Trend(300.0, 0.0, samples=30, covered=1.0)


def test_a_step_in_the_middle_by_hand() -> None:
    # Minutes -3..0 at 0, 0, 1, 1: means -1.5 and 0.5; sum of products 1.0 + 1.0 = 2.0 over squares 5.0.
    step = series(0.0, 0.0, 1.0, 1.0, every=60.0)

    assert look(step, window_s=240.0, every=60.0) == Trend(240.0, pytest.approx(0.4), samples=4, covered=1.0)


def test_a_whole_season_nearly_cancels_while_a_quarter_of_it_rises() -> None:
    season = series(*(0.5 + 0.4 * math.sin(2 * math.pi * n / 360) for n in range(361)))
    rising = season.since(0.0)
    first_quarter = Series(rising.times[:91], rising.values[:91])

    quarter = look(first_quarter, 900.0, now=900.0).per_minute
    assert quarter is not None and quarter == pytest.approx(0.4 / 15, rel=0.1)
    # Least squares of a sine over its period: -6 / (pi * period) * amplitude, and the period is an hour.
    assert look(season, 3600.0).per_minute == pytest.approx(-6 / math.pi / 60 * 0.4, rel=0.01)


def test_samples_outside_of_the_window_have_no_part() -> None:
    fell_before = series(*[1.0] * 100, *(0.2 + 0.001 * n for n in range(31)))

    assert look(fell_before).per_minute == pytest.approx(0.006, rel=1e-3)


def test_a_gap_is_no_zero() -> None:
    ramp: list[float | None] = [0.1 + 0.001 * n for n in range(31)]
    ramp[5:15] = [None] * 10

    found = look(series(*ramp))

    assert found.per_minute == pytest.approx(0.006, rel=1e-3)
    assert found.samples == 20
    assert found.covered == pytest.approx(20 / 30)


def test_missing_times_are_a_gap_as_well() -> None:
    ramp = series(*(0.1 + 0.001 * n for n in range(31)))
    holed = Series(np.delete(ramp.times, slice(5, 15)), np.delete(ramp.values, slice(5, 15)))

    assert look(holed).samples == 20
    assert look(holed).per_minute == pytest.approx(0.006, rel=1e-3)


@pytest.mark.parametrize(
    ("what", "because"),
    [
        (series(), "nothing is there"),
        (series(0.1, 0.9), "two samples always lie on a line"),
        (series(*[0.5] * 14), "less than half of the window is known"),
        (series(*[None] * 31), "all of it is a gap"),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_too_little_to_say_is_said(what: Series, because: str) -> None:
    assert look(what).per_minute is None, because


def test_samples_of_one_moment_have_no_slope() -> None:
    at_once = Series(np.full(30, 3600.0), np.linspace(0, 1, 30, dtype=np.float32))

    assert look(at_once).per_minute is None


def test_samples_from_the_future_have_no_part() -> None:
    ramp = series(*(0.1 + 0.001 * n for n in range(31)), until=3700.0)

    assert look(ramp).samples == 21


def test_all_rows_at_once_are_each_row_alone() -> None:
    chance = np.random.default_rng(0)
    times = np.arange(361) * 10.0
    rows = chance.random((5, 361)).astype(np.float32)
    rows[chance.random(rows.shape) < 0.2] = np.nan

    together = trends_of(times, rows, 900.0, now=3600.0, interval_s=10.0)

    for found, row in zip(together, rows, strict=True):
        alone = look(Series(times, row), 900.0)
        assert (found.samples, found.covered) == (alone.samples, alone.covered)
        assert found.per_minute == pytest.approx(alone.per_minute)
        known = Series(times, row).since(2700.1).known()
        assert found.per_minute == pytest.approx(np.polyfit(known.times / 60, known.values, 1)[0], abs=1e-6)
