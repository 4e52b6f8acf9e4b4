"""How a day usually goes, in quarters of an hour: what outlives the hour of history, in 400 bytes."""

import math
from array import array
from typing import Final

_DAY: Final = 86_400.0
_PART: Final = 900.0
_PARTS: Final = 96
_NEW_DAY: Final = 0.2
"""How much of what is known a new day replaces."""


class DailySeason:
    def __init__(self) -> None:
        self._usual = array("f", [math.nan]) * _PARTS
        self._part = -1
        self._sum = 0.0
        self._count = 0

    def see(self, at: float, value: float) -> None:
        part = int(at // _PART)
        if part != self._part:
            self._close()
            self._part = part
        self._sum += value
        self._count += 1

    def restart(self) -> None:
        self._part, self._sum, self._count = -1, 0.0, 0

    def change(self, at: float, horizon_s: float) -> float | None:
        """By how much the usual value changes from then to then; None where a part of it was never seen."""
        change = self._at(at + horizon_s) - self._at(at)
        return None if math.isnan(change) else change

    def _close(self) -> None:
        if self._count:
            place, mean = self._part % _PARTS, self._sum / self._count
            usual = self._usual[place]
            self._usual[place] = mean if math.isnan(usual) else usual + _NEW_DAY * (mean - usual)
        self._sum, self._count = 0.0, 0

    def _at(self, at: float) -> float:
        """On the line between the middles of two parts."""
        place = (at % _DAY) / _PART - 0.5
        before = math.floor(place)
        after = place - before
        return (1.0 - after) * self._usual[before % _PARTS] + after * self._usual[(before + 1) % _PARTS]
