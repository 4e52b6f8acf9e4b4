"""The built-in forecaster: simple opinions, which count once they beat "same as now".

It remembers the usual course of a day in quarters of an hour. It needs only numpy.
"""

import math
from array import array
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.monitoring.forecasting.ladder import HORIZONS, PARTS, LadderForecaster

_DAY: Final = 86_400.0
_PART: Final = 900.0
_PARTS: Final = 96
_NEW_DAY: Final = 0.2
"""How much of the known value a new day replaces."""


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
        """How much the usual value changes over the horizon; None if a part of that time of day was never seen."""
        change = self._at(at + horizon_s) - self._at(at)
        return None if math.isnan(change) else change

    def _close(self) -> None:
        if self._count:
            place, mean = self._part % _PARTS, self._sum / self._count
            usual = self._usual[place]
            self._usual[place] = mean if math.isnan(usual) else usual + _NEW_DAY * (mean - usual)
        self._sum, self._count = 0.0, 0

    def _at(self, at: float) -> float:
        """Interpolated between the middles of two parts of the day."""
        place = (at % _DAY) / _PART - 0.5
        before = math.floor(place)
        after = place - before
        return (1.0 - after) * self._usual[before % _PARTS] + after * self._usual[(before + 1) % _PARTS]


OPINIONS: Final = (
    "same as now",
    "the rise of the last fifth falls back",
    "half of the rise of the last fifth falls back",
    "half of the rise of the last two thirds falls back",
    "half-way back to the average",
    "the change continues",
    "the change continues half as fast",
    "as on other days",
    "half as on other days",
)
"""Fractions are of the horizon, looking back. Loads jump and mostly stay or fall back, so opinions that go half of the
way are right more often than those that go all of it."""


Adviser = Callable[[float, float], float]
"""An external opinion: the value to expect after so many seconds, from this value. It counts in full and by half."""


class Vote:
    """Weighs the opinions for one horizon.

    An opinion counts once the sum of its gains over "same as now" exceeds one standard error of that sum. The opinions
    that count are averaged, and the best ones lead. If none counts, the forecast is "same as now". So on an
    unpredictable load the forecast is hardly ever worse than "same as now", and a ramp or a daily season is followed as
    soon as it has shown.
    """

    __slots__ = ("_block", "_blocks_gain", "_blocks_square", "_in_block", "weights")

    _REMEMBERED: Final = 0.995
    """The weight of older blocks at each new one: two hundred horizons count."""

    def __init__(self, opinions: int) -> None:
        self.weights = np.eye(opinions)[0]
        self._block = np.zeros(opinions)
        self._in_block = 0
        self._blocks_gain = np.zeros(opinions)
        self._blocks_square = np.zeros(opinions)

    def learn(self, opinions: NDArray[np.float32], value: float) -> None:
        errors = np.abs(opinions - value)
        self._block += errors[0] - errors
        self._in_block += 1
        if self._in_block == PARTS:  # neighbours overlap in time: only sums over a whole horizon are nearly independent
            self._blocks_gain = self._REMEMBERED * self._blocks_gain + self._block
            self._blocks_square = self._REMEMBERED * self._blocks_square + self._block**2
            self._block[:] = 0.0
            self._in_block = 0
            self._weigh()

    def _weigh(self) -> None:
        gain = np.where(self._blocks_gain > np.sqrt(self._blocks_square), self._blocks_gain, 0.0)
        best = gain.max()
        say = (gain / best) ** 4 if best > 0 else np.eye(len(gain))[0]
        self.weights = say / say.sum()


class VotingMethod:
    """Forecasts one horizon from the last such stretch of time and from the usual day."""

    __slots__ = ("_adviser", "_average", "_horizon", "_lowest", "_recent", "_season", "_vote", "opinions")

    def __init__(self, horizon_s: float, season: DailySeason, adviser: Adviser | None = None) -> None:
        self.opinions = len(OPINIONS) + (2 if adviser else 0)
        self._adviser = adviser
        self._horizon = horizon_s
        self._season = season
        self._vote = Vote(self.opinions)
        self._recent = array("d")  # repeating: time, lowest value since the previous time, value
        self._lowest = math.inf
        self._average: float | None = None

    def see(self, at: float, value: float) -> None:
        recent = self._recent
        self._lowest = min(self._lowest, value)
        if recent and at < recent[-3] + self._horizon / PARTS:
            return
        share = 1.0 - math.exp((recent[-3] - at) / self._horizon) if recent else 1.0
        self._average = value if self._average is None else self._average + share * (value - self._average)
        recent.extend((at, self._lowest, value))
        self._lowest = math.inf
        while recent[0] < at - self._horizon * 1.001:
            del recent[:3]

    def predict(self, at: float, value: float) -> tuple[float, NDArray[np.float64]]:
        opinions = np.array(self._opinions(at, value))
        np.clip(opinions, 0.0, 1.0, out=opinions)
        return float(self._vote.weights @ opinions), opinions

    def learn(self, opinions: NDArray[np.float32], value: float) -> None:
        self._vote.learn(opinions, value)

    def restart(self) -> None:
        del self._recent[:]
        self._lowest = math.inf

    def _opinions(self, at: float, value: float) -> tuple[float, ...]:
        lowest = fifth = min(self._lowest, value)
        recent = self._recent
        for place in range(len(recent) - 3, -1, -3):
            then = recent[place]
            if then <= at - self._horizon * 2 / 3:
                break
            lowest = min(lowest, recent[place + 1])
            if then > at - self._horizon / 5:
                fifth = lowest
        average = value if self._average is None else self._average
        usual = self._season.change(at, self._horizon) or 0.0
        change = self._change(at, value)
        advice = self._adviser(self._horizon, value) if self._adviser else None
        return (
            value,
            fifth,
            (value + fifth) / 2,
            (value + lowest) / 2,
            (value + average) / 2,
            value + change,
            value + change / 2,
            value + usual,
            value + usual / 2,
            *(() if advice is None else (advice, (value + advice) / 2)),
        )

    def _change(self, at: float, value: float) -> float:
        """The change over one more horizon if the trend continues; zero if less than half a horizon is known."""
        if not self._recent:
            return 0.0
        then, _, was = self._recent[:3]
        return (value - was) * self._horizon / (at - then) if at - then >= self._horizon / 2 else 0.0


class BuiltInForecaster(LadderForecaster):
    """Opinions that earn their weight, for each horizon, with one daily season shared by all horizons."""

    def __init__(self, horizons: Sequence[float] = HORIZONS) -> None:
        season = DailySeason()
        super().__init__(lambda horizon: VotingMethod(horizon, season), [season], horizons)
