"""What was said of placements, held against what happened; and the lesson from it for what is said next.

The lesson is Platt's: said = sigmoid(slope * logit(model) + shift), by a few Newton steps on the last outcomes. Both
numbers start where they change nothing and are held there as if by some outcomes of their own, so little data moves
them little. The shift is held less than the slope: a wrong base rate is put right first.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

_KEPT: Final = 2000
_REFIT_AFTER: Final = 20
_SLOPE_HELD: Final = 4.0
_SHIFT_HELD: Final = 1.0
_STEPS: Final = 8
_FLATTEST: Final = 0.05
"""More of the model's trust never becomes less of ours."""
_LEAST, _MOST = 0.005, 0.995
BINS: Final = 10


@dataclass(frozen=True, slots=True)
class Predicted:
    model: float
    """What the model gave."""
    said: float
    """What was said of it, with all that was learnt until then."""


@dataclass(frozen=True, slots=True)
class Outcome:
    predicted: Predicted
    happened: bool


@dataclass(frozen=True, slots=True)
class Bin:
    """All placements of which about the same was said."""

    low: float
    high: float
    count: int
    said: float
    happened: float


class Calibrator:
    """The last outcomes, and what they teach."""

    def __init__(self, outcomes: Iterable[Outcome] = ()) -> None:
        self.outcomes: deque[Outcome] = deque(outcomes, maxlen=_KEPT)
        self.slope, self.shift = 1.0, 0.0
        self._new = 0
        if self.outcomes:
            self._learn()

    def predict(self, model: float) -> Predicted:
        """What to say where the model gives this."""
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
    """Slope and shift that would have been best, held to 1 and 0."""
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


# -- how good it was ------------------------------------------------------------------------------------------


def base_rate(outcomes: Iterable[Outcome]) -> float | None:
    """How often it happened; None while nothing has."""
    found = [each.happened for each in outcomes]
    return sum(found) / len(found) if found else None


def brier(outcomes: Iterable[Outcome]) -> float | None:
    """The mean squared distance of what was said from what happened: 0 is best."""
    found = [(each.predicted.said - each.happened) ** 2 for each in outcomes]
    return sum(found) / len(found) if found else None


def base_rate_brier(outcomes: Iterable[Outcome]) -> float | None:
    """The same for somebody who knew the base rate beforehand, and always said that."""
    rate = base_rate(outcomes)
    return None if rate is None else rate * (1 - rate)


def reliability(outcomes: Iterable[Outcome], bins: int = BINS) -> tuple[Bin, ...]:
    """Of the placements of which about so much was said, how many went well; bins with none are left out."""
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
