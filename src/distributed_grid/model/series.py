"""One value over time, as it was sampled: what was not known is not there."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
