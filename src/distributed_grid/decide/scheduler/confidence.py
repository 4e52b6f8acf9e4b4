"""The confidence in a placement: a model, and its calibration against past outcomes.

The model estimates how likely it is that a task starts within its limit and that its node then stays below the high
threshold. It uses only what is known at the moment and is simple on purpose: calibration corrects its systematic
errors. The estimate never decreases when there is more room.

Calibration is Platt's: said = sigmoid(slope * logit(model) + shift), fitted to the last outcomes by a few Newton steps.
Both numbers start as the identity and are regularised towards it, so a few outcomes change them little. The shift is
regularised less than the slope: a wrong base rate is corrected first.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from distributed_grid.decide.scheduler.table import NodeColumns
from distributed_grid.model.resources import BUILT_IN, ResourceVector
from distributed_grid.model.series import Forecast

_KEPT: Final = 2000
_REFIT_AFTER: Final = 20
_SLOPE_HELD: Final = 4.0
_SHIFT_HELD: Final = 1.0
_STEPS: Final = 8
_FLATTEST: Final = 0.05
"""The slope stays positive: a higher estimate of the model never gives a lower prediction."""
_LEAST, _MOST = 0.005, 0.995
BINS: Final = 10


@dataclass(frozen=True, slots=True)
class Predicted:
    model: float
    """The model's estimate."""
    said: float
    """The prediction after calibration, as known at that time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    predicted: Predicted
    happened: bool


@dataclass(frozen=True, slots=True)
class Bin:
    """All placements with about the same prediction."""

    low: float
    high: float
    count: int
    said: float
    happened: float


class Calibrator:
    """The last outcomes, and the calibration fitted to them."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self.outcomes: deque[Outcome] = deque(outcomes, maxlen=_KEPT)
        self.slope, self.shift = 1.0, 0.0
        self._new = 0
        if self.outcomes:
            self._learn()

    def predict(self, model: float) -> Predicted:
        """The calibrated prediction for an estimate of the model."""
        said = _sigmoid(self.slope * _logit(model) + self.shift)
        return Predicted(model, min(_MOST, max(_LEAST, said)))

    def happened(self, predicted: Predicted, happened: bool) -> None:
        self.outcomes.append(Outcome(predicted, happened))
        self._new += 1
        if self._new >= _REFIT_AFTER:
            self._learn()

    def _learn(self) -> None:
        self._new = 0
        self.slope, self.shift = fitted(self.outcomes)


def fitted(outcomes: Sequence[Outcome] | deque[Outcome]) -> tuple[float, float]:
    """The best slope and shift for these outcomes, regularised towards 1 and 0."""
    x = np.array([_logit(each.predicted.model) for each in outcomes])
    y = np.array([float(each.happened) for each in outcomes])
    rows = np.stack([x, np.ones_like(x)], axis=1)
    held, start = np.array([_SLOPE_HELD, _SHIFT_HELD]), np.array([1.0, 0.0])
    at = start.copy()
    for _ in range(_STEPS):
        p = 1.0 / (1.0 + np.exp(-np.clip(rows @ at, -30, 30)))
        slope = rows.T @ (p - y) + held * (at - start)
        curve = (rows * (p * (1 - p))[:, np.newaxis]).T @ rows + np.diag(held)
        step = np.linalg.solve(curve, slope)
        at = at - np.clip(step, -1.0, 1.0)
    return max(_FLATTEST, float(at[0])), float(at[1])


# -- measures of quality --------------------------------------------------------------------------------------


def base_rate(outcomes: Iterable[Outcome]) -> float | None:
    """How often it happened; None without outcomes."""
    found = [each.happened for each in outcomes]
    return sum(found) / len(found) if found else None


def brier(outcomes: Iterable[Outcome]) -> float | None:
    """The mean squared distance between prediction and outcome: 0 is best."""
    found = [(each.predicted.said - each.happened) ** 2 for each in outcomes]
    return sum(found) / len(found) if found else None


def base_rate_brier(outcomes: Iterable[Outcome]) -> float | None:
    """The Brier score of a forecaster that knows the base rate in advance and always predicts it."""
    rate = base_rate(outcomes)
    return None if rate is None else rate * (1 - rate)


def reliability(outcomes: Iterable[Outcome], bins: int = BINS) -> tuple[Bin, ...]:
    """By prediction, how many placements went well; empty bins are left out."""
    groups: dict[int, list[Outcome]] = {}
    for each in outcomes:
        groups.setdefault(min(bins - 1, int(each.predicted.said * bins)), []).append(each)
    return tuple(
        Bin(
            number / bins,
            (number + 1) / bins,
            len(found),
            sum(each.predicted.said for each in found) / len(found),
            sum(each.happened for each in found) / len(found),
        )
        for number, found in sorted(groups.items())
    )


def _logit(p: float) -> float:
    p = min(_MOST, max(_LEAST, p))
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-min(30.0, max(-30.0, x))))


HORIZON_S: Final = 300.0
"""How long a node is watched if the request has no duration."""
LONGEST_HORIZON_S: Final = 3600.0
START_LIMIT_S: Final = 60.0
"""The time within which a placed task without a deadline should start."""

_HAS_A_PLACE: Final = 0.98
_WAITS_FOR_UNKNOWN: Final = 0.3
_BELIEVED: Final = 10
_DELAYS: Final = 500
_SPREAD: Final = 0.1
"""A load's standard deviation over the horizon if there is no forecast."""
_NARROWEST, _WIDEST = 0.02, 0.15
_NINE_TENTHS: Final = 3.29
"""The width of a forecast's interval in standard deviations."""
_IN_THE_END: Final = 0.5
"""The part of reserved but idle capacity, and of pending demand, that is expected in use before the task ends."""
_IS_USED: Final = 0.8
"""The part of its requested capacity that work uses on average."""
_UNSURE_OF_USE: Final = 0.25
"""The uncertainty of that part."""
_HIGHEST: Final = 0.5


@dataclass(frozen=True, slots=True)
class Outlook:
    """One kind's load on one node, 0..1, until the task's end."""

    peak: float
    """The highest expected load, including the task."""
    spread: float

    def stays_below(self, high: float) -> float:
        """The probability. A load fluctuates, so its highest point counts: half a deviation above where it ends."""
        away = (high - self.peak) / self.spread - _HIGHEST
        return min(_MOST, max(_LEAST, _normal(away)))


def outlook(
    columns: NodeColumns, row: int, kind: str, added: int, forecast: Forecast | None = None, *, is_there: bool = False
) -> Outlook | None:
    """The expected load with `added` units of the task; None if the node has none of this kind.

    `is_there`: the task's capacity already counts as used, as in a boost.
    """
    total = int(columns.total[kind][row]) if kind in columns.total else 0
    if total <= 0:
        return None
    spoken_for = columns.used(kind, row)
    if is_there:
        spoken_for = max(0.0, spoken_for - added / total)
    measured = float(columns.pressure[kind][row])
    now = spoken_for if math.isnan(measured) else measured
    expected, spread = now, _SPREAD
    if forecast is not None:
        expected = max(now, forecast.value)
        spread = (forecast.high - forecast.low) / _NINE_TENTHS
    waiting = int(columns.pending[kind][row]) if kind in columns.pending else 0
    more = added / total + _IN_THE_END * (max(0.0, spoken_for - now) + min(1.0, waiting / total))
    return Outlook(expected + _IS_USED * more, math.hypot(min(_WIDEST, max(_NARROWEST, spread)), _UNSURE_OF_USE * more))


def stays_below(
    columns: NodeColumns,
    row: int,
    needs: ResourceVector,
    high: Mapping[str, float],
    forecasts: Mapping[str, Forecast] | None = None,
    *,
    is_there: bool = False,
) -> float:
    """The probability that no kind on the node reaches its high threshold."""
    likely = 1.0
    for kind in BUILT_IN:
        seen = outlook(columns, row, kind, needs[kind], (forecasts or {}).get(kind), is_there=is_there)
        if seen is not None:
            likely *= seen.stays_below(high[kind])
    return min(_MOST, max(_LEAST, likely))


def gets_a_place(limit_s: float | None, wait_s: float | None) -> float:
    """The probability that a waiting task gets a place within its limit. `wait_s`: the expected wait, if known."""
    if wait_s is None:
        return _WAITS_FOR_UNKNOWN
    if limit_s is None:
        return _HAS_A_PLACE
    # Tasks seldom end when expected: they are off by about half of the remaining time, either way.
    return _HAS_A_PLACE * _normal((limit_s - wait_s) / (0.5 * wait_s + 1.0))


class StartDelays:
    """How long recent tasks took to start after they had a place, as reported."""

    def __init__(self, delays_s: Iterable[float] = ()) -> None:
        self.known: deque[float] = deque(delays_s, maxlen=_DELAYS)

    def add(self, delay_s: float) -> None:
        self.known.append(delay_s)

    def within(self, limit_s: float) -> float:
        """The probability that the next task takes no longer. With few reports, most count as in time."""
        in_time = sum(delay <= limit_s for delay in self.known)
        return (in_time + _BELIEVED * _HAS_A_PLACE) / (len(self.known) + _BELIEVED)


def _normal(away: float) -> float:
    return 0.5 * (1 + math.erf(away / math.sqrt(2)))


def horizon_of(duration_s: float | None) -> float:
    """How long a task's node is watched."""
    return HORIZON_S if duration_s is None else min(duration_s, LONGEST_HORIZON_S)
