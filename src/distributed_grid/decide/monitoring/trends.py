"""Where a value is heading: its slope over several windows, by least squares on the available samples.

Grid uses least squares and not the median of all pairwise slopes (Theil-Sen). The values are bounded, so no outlier
weighs much. The sums below give the slopes of all nodes at once, where pairs would be 65,000 for each hour of each
series.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.model.series import Series

WINDOWS: Final[Mapping[str, float]] = {"5m": 300.0, "15m": 900.0, "1h": 3600.0}
LONGEST: Final = max(WINDOWS.values())

_FEWEST = 3
"""Two samples always lie on a line."""
_LEAST_COVERED = 0.5
"""A smaller part of the window does not represent the whole of it."""


@dataclass(frozen=True, slots=True)
class Trend:
    """The slope over one window, and how much data it uses."""

    window_s: float
    per_minute: float | None
    """None: too little data."""
    samples: int
    covered: float
    """0..1: the available samples, as a part of those due in the window."""


def trend(series: Series, window_s: float, *, now: float, interval_s: float) -> Trend:
    """The trend of one series over the window that ends now."""
    return trends_of(series.times, series.values[np.newaxis], window_s, now=now, interval_s=interval_s)[0]


def trends_of(
    times: NDArray[np.float64], values: NDArray[np.floating], window_s: float, *, now: float, interval_s: float
) -> list[Trend]:
    """One trend for each row of values; the columns are the times. NaN is left out."""
    inside = (times > now - window_s) & (times <= now)
    minutes = (times[inside] - now) / 60.0  # near zero, so that the sums below lose no digits
    rows = values[:, inside].astype(np.float64)
    there = ~np.isnan(rows)
    samples = there.sum(axis=1)
    covered = np.minimum(1.0, samples * interval_s / window_s)
    enough = (samples >= _FEWEST) & (covered >= _LEAST_COVERED)
    slopes = _slopes(minutes, rows, there)
    return [
        Trend(window_s, float(slope) if known and np.isfinite(slope) else None, int(count), float(part))
        for slope, known, count, part in zip(slopes, enough, samples, covered, strict=True)
    ]


def _slopes(minutes: NDArray[np.float64], rows: NDArray[np.float64], there: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Each row's covariance with time over the variance of its times; NaN where that variance is zero."""
    count = np.maximum(there.sum(axis=1, keepdims=True), 1)
    at = np.where(there, minutes, 0.0)
    value = np.where(there, rows, 0.0)
    away = np.where(there, minutes - at.sum(axis=1, keepdims=True) / count, 0.0)
    spread = (away * away).sum(axis=1)
    together = (away * (value - value.sum(axis=1, keepdims=True) / count)).sum(axis=1)
    slopes: NDArray[np.float64] = np.divide(together, spread, out=np.full_like(spread, np.nan), where=spread > 0)
    return slopes
