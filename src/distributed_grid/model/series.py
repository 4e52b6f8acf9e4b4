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
"""How often the true value should lie inside a forecast's interval."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of past forecasts for one horizon; recent ones count most."""

    horizon_s: float
    checked: int
    """How many forecasts were compared with the actual value."""
    error: float
    """The mean error of the forecasts."""
    error_of_now: float
    """The mean error of "it stays as it is now", at the same moments."""
    covered: float | None
    """The fraction whose interval contained the actual value; None while there are no intervals."""

    def __str__(self) -> str:
        text = f"off by {self.error:.3f} on average at {self.horizon_s / 60:g} min, same-as-now {self.error_of_now:.3f}"
        return text if self.covered is None else f"{text}; {CONFIDENCE:.0%} interval covered {self.covered:.0%}"


@dataclass(frozen=True, slots=True)
class Forecast:
    """A fraction 0..1, `horizon_s` after `made_at`."""

    made_at: float
    horizon_s: float
    value: float
    low: float
    high: float
    """The value lies between low and high with the confidence below."""
    confidence: float = CONFIDENCE
    accuracy: Accuracy | None = None
    """The accuracy of such forecasts so far, at the nearest tracked horizon; None: none has come due yet."""
    enough_history: bool = True
    """Whether enough such forecasts have come due for an interval; otherwise low and high mean nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Times (seconds, ascending) and values. NaN: a sample that was due is missing. Never zero, never filled in."""

    times: NDArray[np.float64]
    values: NDArray[np.float32]

    def known(self) -> "Series":
        """Without the missing samples."""
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
        """The mean of each of `count` equal parts of the window that ends at `until`; None for parts without data."""
        recent = self.known()
        part = np.floor((recent.times - (until - window_s)) / window_s * count).astype(np.int64)
        part[recent.times == until] = count - 1
        inside = (part >= 0) & (part < count)
        number = np.bincount(part[inside], minlength=count)
        total = np.bincount(part[inside], weights=recent.values[inside], minlength=count)
        return [float(t / n) if n else None for t, n in zip(total, number, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The series of many nodes, sampled together."""

    nodes: tuple[NodeName, ...]
    series: tuple[str, ...]
    times: NDArray[np.float64]
    """Seconds, ascending."""
    values: NDArray[np.float32]
    """Nodes x series x times. NaN: a gap."""

    def after(self, start: float) -> "Recorded":
        """The later samples."""
        first = int(np.searchsorted(self.times, start, side="right"))
        return Recorded(self.nodes, self.series, self.times[first:], self.values[:, :, first:])

    def at_most(self, values: int) -> "Recorded":
        """The same with so few times, evenly thinned out, that there are at most this many values."""
        step = max(1, -(-self.values.size // max(1, values)))
        return self if step == 1 else Recorded(self.nodes, self.series, self.times[::step], self.values[:, :, ::step])


_LIMITS_S: Final = (0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)


class RunTimes:
    """A histogram, cheap enough to keep for ever."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_LIMITS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_LIMITS_S, seconds)] += 1
        self.total_s += seconds

    def buckets(self) -> Iterator[tuple[str, float]]:
        """By upper limit, how many took at most that long."""
        limits = (*map(str, _LIMITS_S), "+Inf")
        return zip(limits, map(float, accumulate(self._counts)), strict=True)


@dataclass(frozen=True, slots=True)
class ResourceTrend:
    """One kind of pressure on one node: its value, its rate of change, and its forecast."""

    node: NodeName
    resource_type: str
    current: float | None
    """0..1; None without a measurement."""
    per_minute: Mapping[str, float | None]
    """By window, "5m", "15m" and "1h"; None if there is too little data."""
    forecast: Forecast | None
    """For a quarter of an hour from now."""
