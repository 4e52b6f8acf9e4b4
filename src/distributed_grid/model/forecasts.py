"""What is expected of a value, how sure that is, and how good such forecasts have been."""

from dataclasses import dataclass
from typing import Final

CONFIDENCE: Final = 0.9
"""How often the truth should lie inside of a forecast's interval."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How forecasts for one horizon went, measured on those whose time has come; the recent past counts most."""

    horizon_s: float
    checked: int
    """How many forecasts were held against what came."""
    error: float
    """By how much the forecast was off on average."""
    error_of_now: float
    """By how much "it stays as it is now" was off, at the same moments."""
    covered: float | None
    """The part of them whose interval held what came; None while there were no intervals yet."""

    def __str__(self) -> str:
        told = f"off by {self.error:.3f} on average at {self.horizon_s / 60:g} min, same-as-now {self.error_of_now:.3f}"
        return told if self.covered is None else f"{told}; {CONFIDENCE:.0%} interval covered {self.covered:.0%}"


@dataclass(frozen=True, slots=True)
class Forecast:
    """A fraction 0..1, `horizon_s` after `made_at`."""

    made_at: float
    horizon_s: float
    value: float
    low: float
    high: float
    """Between low and high with the confidence below. 0 and 1 while too little is known to say more."""
    confidence: float = CONFIDENCE
    accuracy: Accuracy | None = None
    """How such forecasts went so far, at the nearest horizon that is kept track of; None: none has come due yet."""
