"""Values over time: samples, forecasts with their accuracy, trends, and durations of work."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.model.nodes import NodeName

CONFIDENCE: Final = 0.9
"""How often the truth should lie inside of a forecast's interval."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How forecasts for one horizon went, measured on those whose time has come; the recent past counts most."""

    horizon_s: float
    checked: int
    """How many forecasts were held against what came."""
    error: float
    """By how much the forecast was off on average."""
    error_of_now: float
    """By how much "it stays as it is now" was off, at the same moments."""
    covered: float | None
    """The part of them whose interval held what came; None while there were no intervals yet."""

    def __str__(self) -> str:
        told = f"off by {self.error:.3f} on average at {self.horizon_s / 60:g} min, same-as-now {self.error_of_now:.3f}"
        return told if self.covered is None else f"{told}; {CONFIDENCE:.0%} interval covered {self.covered:.0%}"


@dataclass(frozen=True, slots=True)
class Forecast:
    """A fraction 0..1, `horizon_s` after `made_at`."""

    made_at: float
    horizon_s: float
    value: float
    low: float
    high: float
    """Between low and high with the confidence below. 0 and 1 while too little is known to say more."""
    confidence: float = CONFIDENCE
    accuracy: Accuracy | None = None
    """How such forecasts went so far, at the nearest horizon that is kept track of; None: none has come due yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Times (seconds, rising) and values. NaN: the sample was due and did not come. Never zero, never filled in."""

    times: NDArray[np.float64]
    values: NDArray[np.float32]

    def known(self) -> "Series":
        """Without the samples that did not come."""
        there = ~np.isnan(self.values)
        return Series(self.times[there], self.values[there])

    def since(self, start: float) -> "Series":
        first = int(np.searchsorted(self.times, start))
        return Series(self.times[first:], self.values[first:])

    @property
    def latest(self) -> float | None:
        known = self.values[~np.isnan(self.values)]
        return float(known[-1]) if known.size else None

    def in_buckets(self, count: int, *, until: float, window_s: float) -> list[float | None]:
        """The mean of each of `count` equal parts of the window that ends at `until`; None where nothing is known."""
        recent = self.known()
        part = np.floor((recent.times - (until - window_s)) / window_s * count).astype(np.int64)
        part[recent.times == until] = count - 1
        inside = (part >= 0) & (part < count)
        number = np.bincount(part[inside], minlength=count)
        total = np.bincount(part[inside], weights=recent.values[inside], minlength=count)
        return [float(t / n) if n else None for t, n in zip(total, number, strict=True)]


_LIMITS_S: Final = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


class RunTimes:
    """A histogram, cheap to keep for ever."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_LIMITS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_LIMITS_S, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> Iterator[tuple[str, float]]:
        """By upper limit, how many took at most so long."""
        limits = (*map(str, _LIMITS_S), "+Inf")
        return zip(limits, map(float, accumulate(self._counts)), strict=True)


@dataclass(frozen=True, slots=True)
class ResourceTrend:
    """One kind of pressure on one node: as it is, how fast it changes, and what is expected."""

    node: NodeName
    resource_type: str
    current: float | None
    """0..1; None while nothing is measured."""
    per_minute: Mapping[str, float | None]
    """By window, "5m", "15m" and "1h"; None where too little is known to say."""
    forecast: Forecast | None
    """A quarter of an hour from now."""
