"""Forecasts for any horizon, built from methods that each know one horizon. A track record gives the intervals."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from distributed_grid.model.series import CONFIDENCE, Accuracy, Forecast

HORIZONS: Final = (300.0, 900.0, 3600.0, 14_400.0)
"""The horizons that are forecast, checked and learnt. Values in between are interpolated linearly."""


class Forecaster(Protocol):
    """Follows one series of fractions 0..1. It learns as samples arrive; there is no separate training."""

    @property
    def latest_at(self) -> float | None:
        """The time of the latest sample; None before the first one."""

    def observe(self, at: float, value: float | None) -> None:
        """Take the sample of this time, in seconds. None or NaN: it is missing, and nothing is assumed about it.

        A time that was seen before is ignored. After the clock is set back, what was learnt stays.
        """

    def forecast(self, horizon_s: float) -> Forecast | None:
        """The forecast for `horizon_s` after the latest sample; None before the first sample."""

    def accuracies(self) -> tuple[Accuracy, ...]:
        """The accuracy so far, by rising horizon. Horizons for which no forecast has come due are left out."""


class ForecasterMaker(Protocol):
    """Makes a forecaster for one series."""

    def __call__(self, horizons: Sequence[float] = HORIZONS) -> Forecaster: ...


_REMEMBERED: Final = 0.998
"""The weight of an older check relative to the next one: the last 500 matter most."""
PARTS: Final = 15
"""How many forecasts are made for checking within one horizon: one each minute for a quarter of an hour."""
_SLOTS: Final = PARTS + 2
_MISSES: Final = (1.0 - CONFIDENCE) / 2
"""The share of values that may fall outside the interval on one side."""


class TrackRecord:
    """The open forecasts for one horizon, and how earlier ones turned out."""

    __slots__ = (
        "_above", "_below", "_bounded_weight", "_checked", "_covered", "_error", "_error_of_now", "_first", "_next_due",
        "_open", "_opinions", "_promises", "_weight", "horizon_s",
    )  # fmt: skip

    def __init__(self, horizon_s: float, opinions: int) -> None:
        self.horizon_s = horizon_s
        # Ring buffers: there is a record for each horizon of each series, and objects would take five times the memory.
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
        """How far the interval extends below and above a forecast; 1 while too little is known."""
        return self._below.reach(), self._above.reach()

    def promise(self, at: float, now: float, value: float, opinions: NDArray[np.float64]) -> None:
        """Record what is expected one horizon from now, and the opinions behind it."""
        if self._open == _SLOTS:
            self._drop_first()
        slot = (self._first + self._open) % _SLOTS
        self._promises[slot] = (at + self.horizon_s, now, value, *self.reaches())
        self._opinions[slot] = opinions
        self._open += 1
        self._next_due = self._promises[self._first, 0]

    def settle(self, at: float, value: float) -> Iterator[NDArray[np.float32]]:
        """Compare this sample with the forecasts that are due by its time, and yield the opinions behind each.

        A forecast that fell into a gap is dropped, since its true value is unknown.
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
        """Drop the open forecasts: their times no longer mean anything."""
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
        if max(below, above) < 1.0:  # otherwise there was no interval yet
            self._bounded_weight = _REMEMBERED * self._bounded_weight + 1.0
            self._covered = _REMEMBERED * self._covered + (-below <= error <= above)
        self._above.add(max(0.0, error), reach=above)
        self._below.add(max(0.0, -error), reach=below)


class Spread:
    """How far true values lay beyond forecasts on one side, and how far to extend the interval so that few enough miss.

    A histogram with fading counts: errors of a load are often exactly zero and now and then very large, which no bell
    curve fits. If values still miss too often or too rarely, the aim moves a little each time (adaptive conformal
    inference). So in the long run the share of misses is right for any distribution of errors.
    """

    __slots__ = ("_aim", "_counts", "_total")

    _TOPS: Final = np.concatenate([[1e-6], np.geomspace(5e-4, 1.0, 40)])
    """The largest error of each class; the first class is for no error."""
    _BOTTOMS: Final = np.concatenate([[0.0, 0.0], _TOPS[1:-1]])
    _STEP: Final = 0.002
    _AIMS: Final = (_MISSES / 5, _MISSES * 2)
    _CAUTION: Final = 5.0
    """Counts as this many earlier misses, so about 100 checks are needed before there is an interval. Checks overlap in
    time, so the first few say little."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(self._TOPS), dtype=np.float32)
        self._total = 0.0
        self._aim = _MISSES

    def add(self, error: float, *, reach: float) -> None:
        """Add one error, and the reach that was announced beforehand."""
        self._counts *= _REMEMBERED
        self._counts[min(int(self._TOPS.searchsorted(error)), len(self._TOPS) - 1)] += 1.0
        self._total = _REMEMBERED * self._total + 1.0
        if reach < 1.0:
            lowest, highest = self._AIMS
            self._aim = min(highest, max(lowest, self._aim + self._STEP * (_MISSES - (error > reach))))

    def reach(self) -> float:
        """The distance within which all but the aimed-at share stayed; 1, the whole range, while too few are known."""
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


class Method(Protocol):
    """A way to forecast one horizon."""

    opinions: int
    """How many numbers the method gets back when a forecast comes due."""

    def see(self, at: float, value: float) -> None:
        """Take a sample. Times rise."""

    def predict(self, at: float, value: float) -> tuple[float, NDArray[np.float64]]:
        """The expected value from here, and the opinions behind it."""

    def learn(self, opinions: NDArray[np.float32], value: float) -> None:
        """Take the opinions of a forecast that has come due, and the true value."""

    def restart(self) -> None:
        """The clock was set back: what is stored by time no longer means anything."""


class Shared(Protocol):
    """State that all methods of a series share."""

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
        below, above = self.record.reaches()
        return _View(expected, below, above, is_bounded=max(below, above) < 1.0)

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
        accuracy = nearest.record.accuracy
        return Forecast(self._at, horizon_s, view.value, low, high, accuracy=accuracy, enough_history=view.is_bounded)

    def accuracies(self) -> tuple[Accuracy, ...]:
        return tuple(accuracy for rung in self._rungs if (accuracy := rung.record.accuracy))

    def _view(self, horizon_s: float) -> "_View":
        """Between rungs, values are linear and errors grow like the root of time; beyond the last, only errors do."""
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
        return _View(last.value, last.below * wider, last.above * wider, last.is_bounded)


class _View(NamedTuple):
    """An expected value, and how far below and above it the truth may lie, if that is known."""

    value: float
    below: float
    above: float
    is_bounded: bool = True

    def towards(self, end: "_View", near: float, far: float, horizon_s: float) -> "_View":
        by_time = (horizon_s - near) / (far - near)
        by_root = (math.sqrt(horizon_s) - math.sqrt(near)) / (math.sqrt(far) - math.sqrt(near))
        return _View(
            self.value + by_time * (end.value - self.value),
            self.below + by_root * (end.below - self.below),
            self.above + by_root * (end.above - self.above),
            self.is_bounded and end.is_bounded,
        )
