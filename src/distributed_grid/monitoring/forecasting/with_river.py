"""An opinion from river, a library for learning from streams: exponential smoothing with a trend (Holt-Winters).

River's models know steps, but no times and no intervals. So river is one more opinion in the built-in forecaster, not a
forecaster of its own. A step here is a minute. River's other model, SNARIMAX, took 1.4 ms for 90 steps and drifted
away.
"""

import importlib.util
import math
from collections.abc import Sequence
from typing import Any, Final

from distributed_grid.errors import ExtraMissing
from distributed_grid.monitoring.forecasting.ladder import HORIZONS, LadderForecaster
from distributed_grid.monitoring.forecasting.voting import DailySeason, VotingMethod

_STEP: Final = 60.0


def require_river() -> None:
    if importlib.util.find_spec("river") is None:
        raise ExtraMissing(
            "The forecaster 'river' was chosen, but river is not installed",
            because=["it is an extra of distributed-grid"],
            try_next="pip install 'distributed-grid[forecast]', or choose the forecaster 'built-in'",
        )


class _Stream:
    """One river model, fed once a minute, and used for all horizons."""

    def __init__(self) -> None:
        from river.time_series import HoltWinters

        self._new: Any = lambda: HoltWinters(alpha=0.5, beta=0.02)
        self._model = self._new()
        self._steps = 0
        self._next = -math.inf

    def see(self, at: float, value: float) -> None:
        if at < self._next:
            return
        if self._steps and at > self._next + 5 * _STEP:
            self._begin()  # a model of steps ignores a gap, and would read a jump across it as a steep trend
        self._model.learn_one(value)
        self._steps += 1
        self._next = at + _STEP

    def ahead(self, horizon_s: float, value: float) -> float:
        if self._steps < 3:
            return value  # a trend needs two samples
        return float(self._model.forecast(max(1, round(horizon_s / _STEP)))[-1])

    def restart(self) -> None:
        self._begin()
        self._next = -math.inf

    def _begin(self) -> None:
        self._model, self._steps = self._new(), 0


class RiverForecaster(LadderForecaster):
    """The built-in forecaster with one more opinion. Like the others, it counts where it was right."""

    def __init__(self, horizons: Sequence[float] = HORIZONS) -> None:
        season, stream = DailySeason(), _Stream()
        super().__init__(lambda horizon: VotingMethod(horizon, season, stream.ahead), [season, stream], horizons)
