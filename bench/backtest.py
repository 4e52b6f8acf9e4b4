"""Scores a forecaster on a known series: rolling origin, and at each moment only the past is known."""

from dataclasses import dataclass

import numpy as np

from distributed_grid.model.series import Forecast, Series
from distributed_grid.monitoring.forecasting.ladder import Forecaster


@dataclass(frozen=True, slots=True)
class Score:
    """Means over all moments at which a forecast was made and the true value is known."""

    horizon_s: float
    checked: int
    error: float
    """Mean absolute error."""
    error_of_now: float
    """The same error for the forecast "same as now"."""
    covered: float
    """The share of intervals that contained the true value."""
    width: float
    """The mean width of the intervals."""
    changed: float
    """The share of moments at which the value had changed by the end. No interval can cover less than the rest."""

    @property
    def ratio(self) -> float:
        """Below 1: better than "same as now". 1 if nothing ever changed."""
        return self.error / self.error_of_now if self.error_of_now else 1.0


def backtest(
    forecaster: Forecaster, series: Series, horizon_s: float, *, every_s: float = 60.0, since: float = -np.inf
) -> Score | None:
    """Feed the series to the forecaster, ask it at regular times, and compare; None if nothing could be compared.

    The true value is the first sample at or after the forecast time. If no sample comes within a tenth of the horizon,
    there is none. `since`: when counting begins; earlier samples are only learnt from.
    """
    known = series.known()
    made: list[tuple[float, Forecast]] = []
    ask_at = since
    for at, value in zip(series.times.tolist(), series.values.tolist(), strict=True):
        forecaster.observe(at, value)
        if at >= ask_at and value == value:
            forecast = forecaster.forecast(horizon_s)
            if forecast is not None:
                made.append((value, forecast))
            ask_at = at + every_s
    due = np.array([forecast.made_at + horizon_s for _, forecast in made])
    place = known.times.searchsorted(due)
    there = place < len(known.times)
    there[there] = known.times[place[there]] - due[there] <= horizon_s / 10
    if not there.any():
        return None
    truth = known.values[place[there]].astype(np.float64)
    now, value, low, high = np.array([(now, f.value, f.low, f.high) for now, f in made])[there].T
    tolerance = 1e-6  # samples are float32
    return Score(
        horizon_s,
        int(there.sum()),
        error=float(np.abs(truth - value).mean()),
        error_of_now=float(np.abs(truth - now).mean()),
        covered=float(((truth >= low - tolerance) & (truth <= high + tolerance)).mean()),
        width=float((high - low).mean()),
        changed=float((np.abs(truth - now) > tolerance).mean()),
    )
