"""How likely a forecast makes it that a threshold is passed; and how that is said."""

import math
from typing import Final

from distributed_grid.model.forecasts import CONFIDENCE, Forecast

_HALF_WIDTH: Final = 1.645
"""So many standard deviations either side hold nine tenths of a normal distribution."""
_FEW: Final = 10
"""With so many checked forecasts a track record counts three quarters."""
_IN_WORDS: Final = ((0.85, "very likely"), (0.65, "likely"), (0.45, "possible"), (0.0, "a guess"))


def how_sure(forecast: Forecast, threshold: float) -> tuple[float, str]:
    """0..1 that the value is at or above the threshold then, and that in words with what it rests on."""
    likely = passes(forecast, threshold)
    accuracy = forecast.accuracy
    if accuracy is None:
        sure = likely / 2
        return sure, f"{in_words(sure)} ({sure:.0%}): no such forecast has come due yet"
    sure = likely * (1 - _FEW / 2 / (_FEW + accuracy.checked))
    if accuracy.covered is not None:  # intervals that were too narrow promised too much
        sure *= min(1.0, accuracy.covered / CONFIDENCE)
    checked = f"{accuracy.checked} such forecast{'s' * (accuracy.checked != 1)}"
    return sure, f"{in_words(sure)} ({sure:.0%}): {checked} came due, off by {accuracy.error:.0%} on average"


def passes(forecast: Forecast, threshold: float) -> float:
    """The part of the forecast's distribution that is not below the threshold. Either side of it is half a normal."""
    away = threshold - forecast.value
    reach = forecast.high - forecast.value if away > 0 else forecast.value - forecast.low
    if reach <= 0:
        return 0.0 if away > 0 else 1.0
    return 0.5 * (1 - math.erf(away * _HALF_WIDTH / reach / math.sqrt(2)))


def in_words(sure: float) -> str:
    return next(word for least, word in _IN_WORDS if sure >= least)
