"""How good a forecaster would have been on a known series: rolling origin, at each moment only the past is known."""

from dataclasses import dataclass

import numpy as np

from distributed_grid.model.series import Forecast, Series
from distributed_grid.monitoring.forecasting.ladder import Forecaster


@dataclass(frozen=True, slots=True)
class Score:
    """Means over all moments at which a forecast was made and the truth is known."""

    horizon_s: float
    checked: int
    error: float
    """Mean absolute error."""
    error_of_now: float
    """The same of "it stays as it is now"."""
    covered: float
    """The part of the intervals that held what came."""
    width: float
    """How wide the intervals were."""
    changed: float
    """At how many of the moments the value was another one in the end; no interval can cover less than the rest."""

    @property
    def ratio(self) -> float:
        """Below 1: better than "same as now". 1 where nothing ever changed."""
        return self.error / self.error_of_now if self.error_of_now else 1.0


def backtest(
    forecaster: Forecaster, series: Series, horizon_s: float, *, every_s: float = 60.0, since: float = -np.inf
) -> Score | None:
    """Feed the series to the forecaster, ask it every so often, and compare; None if nothing could be compared.

    The truth is the first sample at or after the moment foretold; where none came for a tenth of the horizon, there is
    none. `since`: from when on to count; what comes before is learnt from only.
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
