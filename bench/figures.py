"""Measured values and what follows from them. Pure: no cluster, no clock."""

import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MS: Final = "ms"

_RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class Samples:
    """Repeated measurements of one thing, in order."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("nothing was measured")

    @classmethod
    def of(cls, values: Iterable[float]) -> "Samples":
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p95(self) -> float:
        if len(self.values) == 1:
            return self.values[0]
        return statistics.quantiles(self.values, n=20, method="inclusive")[-1]

    def plus(self, other: "Samples") -> "Samples":
        """Round by round: a request and the release that followed it."""
        return Samples.of(a + b for a, b in zip(self.values, other.values, strict=True))


@dataclass(frozen=True, slots=True)
class Limits:
    """The promises. A figure must keep every limit that is set."""

    times_baseline: float | None = None
    """The median is at most this many times the baseline's."""
    below: float | None = None
    """The median is less than this, in the line's unit."""

    def describe(self, unit: str) -> str:
        parts = []
        if self.times_baseline is not None:
            digits = 1 if round(self.times_baseline, 2) == round(self.times_baseline, 1) else 2
            parts.append(f"≤ {self.times_baseline:.{digits}f}x")
        if self.below is not None:
            parts.append(f"< {self.below:g} {unit}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table: grid's figure and its baseline. A line without limits only informs."""

    what: str
    ours: Samples
    baseline: Samples | None = None
    limits: Limits = Limits()
    unit: str = MS

    def __post_init__(self) -> None:
        if self.limits.times_baseline is not None and self.baseline is None:
            raise ValueError(f"{self.what}: a promised ratio needs a baseline")

    @property
    def ratio(self) -> float | None:
        return None if self.baseline is None else _ratio(self.ours.median, self.baseline.median)

    @property
    def ratio_range(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the ratio (bootstrap); the noisier the machine, the wider."""
        if self.baseline is None or min(len(self.ours.values), len(self.baseline.values)) < 2:
            return None
        chance = random.Random(0)  # the same samples give the same range
        ratios = sorted(
            _ratio(_resampled_median(self.ours, chance), _resampled_median(self.baseline, chance))
            for _ in range(_RESAMPLES)
        )
        return ratios[round(0.025 * _RESAMPLES)], ratios[round(0.975 * _RESAMPLES) - 1]

    @property
    def met(self) -> bool | None:
        """Whether every promise is kept; None if there is none."""
        kept = []
        if self.limits.times_baseline is not None and self.ratio is not None:
            kept.append(self.ratio <= self.limits.times_baseline)
        if self.limits.below is not None:
            kept.append(self.ours.median < self.limits.below)
        return all(kept) if kept else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one benchmark."""

    name: str
    baseline: str
    """What grid is compared with, in words."""
    lines: tuple[Line, ...]

    @property
    def missed(self) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.met is False)


def _ratio(ours: float, baseline: float) -> float:
    return ours / baseline if baseline else float("inf")


def _resampled_median(samples: Samples, chance: random.Random) -> float:
    return statistics.median(chance.choices(samples.values, k=len(samples.values)))
