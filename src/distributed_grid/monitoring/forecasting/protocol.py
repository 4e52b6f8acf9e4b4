"""What every forecaster can do."""

from collections.abc import Sequence
from typing import Final, Protocol

from distributed_grid.model.forecasts import Accuracy, Forecast

HORIZONS: Final = (300.0, 900.0, 3600.0, 14_400.0)
"""What is forecast, checked and learnt. What lies between is read off the line between neighbours."""


class Forecaster(Protocol):
    """Follows one series of fractions 0..1. Learns as samples come; there is no training that anybody waits for."""

    @property
    def latest_at(self) -> float | None:
        """The time of the latest sample; None before the first one."""

    def observe(self, at: float, value: float | None) -> None:
        """Take the sample of this time, in seconds. None or NaN: it did not come, and nothing is made of it.

        A time that was there before is passed over; after a clock was set back, what was learnt stays.
        """

    def forecast(self, horizon_s: float) -> Forecast | None:
        """What to expect so long after the latest sample; None before the first one."""

    def accuracies(self) -> tuple[Accuracy, ...]:
        """How forecasts went so far, by rising horizon; without horizons for which none has come due."""


class ForecasterMaker(Protocol):
    """Makes a forecaster for one series."""

    def __call__(self, horizons: Sequence[float] = HORIZONS) -> Forecaster: ...
