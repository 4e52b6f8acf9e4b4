"""How long work took that ran in boosts."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

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
