"""Forecasts for any horizon from methods that each know one, with a track record for each."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from distributed_grid.model.forecasts import Accuracy, Forecast
from distributed_grid.monitoring.forecasting.track_record import PARTS, TrackRecord


class Method(Protocol):
    """A way to forecast one horizon."""

    opinions: int
    """How many numbers the method wants back when the time of a forecast has come."""

    def see(self, at: float, value: float) -> None:
        """A sample; times rise."""

    def predict(self, at: float, value: float) -> tuple[float, NDArray[np.float64]]:
        """From here: what is expected, and the opinions that this was made from."""

    def learn(self, opinions: NDArray[np.float32], value: float) -> None:
        """The opinions of a forecast whose time has come, and what came."""

    def restart(self) -> None:
        """The clock was set back: what is known by its time means nothing any more."""


class Shared(Protocol):
    """What all methods of a series look at."""

    def see(self, at: float, value: float) -> None: ...

    def restart(self) -> None: ...


class _Rung:
    __slots__ = ("_next_promise", "horizon_s", "method", "record")

    def __init__(self, horizon_s: float, method: Method) -> None:
        self.horizon_s = horizon_s
        self.method = method
        self.record = TrackRecord(horizon_s, method.opinions)
        self._next_promise = -math.inf

    def observe(self, at: float, value: float) -> None:
        for opinions in self.record.settle(at, value):
            self.method.learn(opinions, value)
        self.method.see(at, value)
        if at >= self._next_promise:
            expected, made_from = self.method.predict(at, value)
            self.record.promise(at, value, expected, made_from)
            self._next_promise = at + self.horizon_s / PARTS

    def look(self, at: float, value: float) -> "_View":
        expected, _ = self.method.predict(at, value)
        return _View(expected, *self.record.reaches())

    def restart(self) -> None:
        self.method.restart()
        self.record.restart()
        self._next_promise = -math.inf


class LadderForecaster:
    """A `Forecaster` from one method per horizon."""

    def __init__(self, method: Callable[[float], Method], shared: Sequence[Shared], horizons: Sequence[float]) -> None:
        self._rungs = [_Rung(horizon, method(horizon)) for horizon in horizons]
        self._shared = shared
        self._at = -math.inf
        self._value = math.nan

    @property
    def latest_at(self) -> float | None:
        return None if math.isnan(self._value) else self._at

    def observe(self, at: float, value: float | None) -> None:
        if value is None or not math.isfinite(value) or at == self._at:
            return
        if at < self._at:
            for part in self._shared:
                part.restart()
            for rung in self._rungs:
                rung.restart()
        self._at, self._value = at, min(1.0, max(0.0, value))
        for part in self._shared:
            part.see(at, self._value)
        for rung in self._rungs:
            rung.observe(at, self._value)

    def forecast(self, horizon_s: float) -> Forecast | None:
        if math.isnan(self._value):
            return None
        view = self._view(max(0.0, horizon_s))
        nearest = min(self._rungs, key=lambda rung: abs(rung.horizon_s - horizon_s))
        low, high = max(0.0, view.value - view.below), min(1.0, view.value + view.above)
        return Forecast(self._at, horizon_s, view.value, low, high, accuracy=nearest.record.accuracy)

    def accuracies(self) -> tuple[Accuracy, ...]:
        return tuple(told for rung in self._rungs if (told := rung.record.accuracy))

    def _view(self, horizon_s: float) -> "_View":
        """Between rungs, values lie on a line, and errors grow like the root of time; beyond the last they go on so."""
        shorter = None
        for rung in self._rungs:
            if rung.horizon_s == horizon_s:
                return rung.look(self._at, self._value)
            if rung.horizon_s > horizon_s:
                start = shorter.look(self._at, self._value) if shorter else _View(self._value, 0.0, 0.0)
                near = shorter.horizon_s if shorter else 0.0
                return start.towards(rung.look(self._at, self._value), near, rung.horizon_s, horizon_s)
            shorter = rung
        last = self._rungs[-1].look(self._at, self._value)
        wider = math.sqrt(horizon_s / self._rungs[-1].horizon_s)
        return _View(last.value, last.below * wider, last.above * wider)


class _View(NamedTuple):
    """An expected value, and how far below and above it the truth may lie."""

    value: float
    below: float
    above: float

    def towards(self, end: "_View", near: float, far: float, horizon_s: float) -> "_View":
        by_time = (horizon_s - near) / (far - near)
        by_root = (math.sqrt(horizon_s) - math.sqrt(near)) / (math.sqrt(far) - math.sqrt(near))
        return _View(
            self.value + by_time * (end.value - self.value),
            self.below + by_root * (end.below - self.below),
            self.above + by_root * (end.above - self.above),
        )
