"""What was forecast for one horizon, held against what came: by how much forecasts err, and so how sure they are."""

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.model.forecasts import CONFIDENCE, Accuracy

_REMEMBERED: Final = 0.998
"""What an older check counts in comparison with the next one: the last 500 matter most."""
PARTS: Final = 15
"""So many times within one horizon a forecast is made to be checked: each minute for a quarter of an hour."""
_SLOTS: Final = PARTS + 2
_MISSES: Final = (1.0 - CONFIDENCE) / 2
"""How many may fall out of the interval on one side."""


class TrackRecord:
    """The promises for one horizon that are still open, and how those went that came due."""

    __slots__ = (
        "_above", "_below", "_bounded_weight", "_checked", "_covered", "_error", "_error_of_now", "_first", "_next_due",
        "_open", "_opinions", "_promises", "_weight", "horizon_s",
    )  # fmt: skip

    def __init__(self, horizon_s: float, opinions: int) -> None:
        self.horizon_s = horizon_s
        # Rings: there is a record for each horizon of each series, and objects would take five times the room.
        self._promises = np.zeros((_SLOTS, 5))
        self._opinions = np.zeros((_SLOTS, opinions), dtype=np.float32)
        self._first = self._open = 0
        self._next_due = math.inf
        self._above, self._below = Spread(), Spread()
        self._checked = 0
        self._weight = self._error = self._error_of_now = 0.0
        self._bounded_weight = self._covered = 0.0

    @property
    def accuracy(self) -> Accuracy | None:
        if not self._checked:
            return None
        covered = self._covered / self._bounded_weight if self._bounded_weight else None
        error, error_of_now = self._error / self._weight, self._error_of_now / self._weight
        return Accuracy(self.horizon_s, self._checked, error, error_of_now, covered)

    def reaches(self) -> tuple[float, float]:
        """How far below and above a forecast its interval goes; 1 while too little is known to say."""
        return self._below.reach(), self._above.reach()

    def promise(self, at: float, now: float, value: float, opinions: NDArray[np.float64]) -> None:
        """Note what is expected a horizon from now, and what that was made from."""
        if self._open == _SLOTS:
            self._drop_first()
        slot = (self._first + self._open) % _SLOTS
        self._promises[slot] = (at + self.horizon_s, now, value, *self.reaches())
        self._opinions[slot] = opinions
        self._open += 1
        self._next_due = self._promises[self._first, 0]

    def settle(self, at: float, value: float) -> Iterator[NDArray[np.float32]]:
        """Hold against this sample what was promised for its time, or shortly before, and give what that was made from.

        What fell into a gap is dropped: nobody knows what came.
        """
        late = self.horizon_s / 5
        while self._next_due <= at:
            slot = self._first
            self._drop_first()
            due, *promised = self._promises[slot].tolist()
            if at <= due + late:
                self._check(value, *promised)
                yield self._opinions[slot]

    def restart(self) -> None:
        """Drop the open promises: their times mean nothing any more."""
        self._open, self._next_due = 0, math.inf

    def _drop_first(self) -> None:
        self._first = (self._first + 1) % _SLOTS
        self._open -= 1
        self._next_due = self._promises[self._first, 0] if self._open else math.inf

    def _check(self, value: float, now: float, expected: float, below: float, above: float) -> None:
        error = value - expected
        self._checked += 1
        self._weight = _REMEMBERED * self._weight + 1.0
        self._error = _REMEMBERED * self._error + abs(error)
        self._error_of_now = _REMEMBERED * self._error_of_now + abs(value - now)
        if max(below, above) < 1.0:  # otherwise it was no interval yet
            self._bounded_weight = _REMEMBERED * self._bounded_weight + 1.0
            self._covered = _REMEMBERED * self._covered + (-below <= error <= above)
        self._above.add(max(0.0, error), reach=above)
        self._below.add(max(0.0, -error), reach=below)


class Spread:
    """How far the truth lay beyond forecasts on one side, and how far to reach so that few enough miss.

    A histogram with fading counts: errors of a load are often exactly nothing and now and then very large, which no
    bell curve fits. What is missed too often or too rarely all the same moves the aim a little each time (adaptive
    conformal inference), so that in the long run the share of misses is right whatever the errors are like.
    """

    __slots__ = ("_aim", "_counts", "_total")

    _TOPS: Final = np.concatenate([[1e-6], np.geomspace(5e-4, 1.0, 40)])
    """The largest error of each class; the first one is for no error."""
    _BOTTOMS: Final = np.concatenate([[0.0, 0.0], _TOPS[1:-1]])
    _STEP: Final = 0.002
    _AIMS: Final = (_MISSES / 5, _MISSES * 2)
    _CAUTION: Final = 5.0
    """As if so many had missed already; about 100 checks are needed before anything is said. They overlap in time, so
    the first few say little."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(self._TOPS), dtype=np.float32)
        self._total = 0.0
        self._aim = _MISSES

    def add(self, error: float, *, reach: float) -> None:
        """One more error, and the reach that was told beforehand."""
        self._counts *= _REMEMBERED
        self._counts[min(int(self._TOPS.searchsorted(error)), len(self._TOPS) - 1)] += 1.0
        self._total = _REMEMBERED * self._total + 1.0
        if reach < 1.0:
            lowest, highest = self._AIMS
            self._aim = min(highest, max(lowest, self._aim + self._STEP * (_MISSES - (error > reach))))

    def reach(self) -> float:
        """The distance that all but the aimed-at share kept; 1, which is everything, while too few are known to say."""
        wanted = (1.0 - self._aim) * (self._total + self._CAUTION)
        if wanted > self._total:
            return 1.0
        within = self._counts.cumsum()
        place = min(int(within.searchsorted(wanted)), len(within) - 1)
        if place == 0:
            return 0.0
        part = (wanted - within[place - 1]) / self._counts[place]
        bottom, top = self._BOTTOMS[place], self._TOPS[place]
        return float(bottom + min(1.0, part) * (top - bottom))
