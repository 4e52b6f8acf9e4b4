"""The forecaster that comes with grid: needs nothing but numpy."""

from collections.abc import Sequence

from distributed_grid.monitoring.forecasting.ladder import LadderForecaster
from distributed_grid.monitoring.forecasting.protocol import HORIZONS
from distributed_grid.monitoring.forecasting.season import DailySeason
from distributed_grid.monitoring.forecasting.voting import VotingMethod


class BuiltInForecaster(LadderForecaster):
    """Opinions that earn their say, for each horizon, and a daily season shared by all of them."""

    def __init__(self, horizons: Sequence[float] = HORIZONS) -> None:
        season = DailySeason()
        super().__init__(lambda horizon: VotingMethod(horizon, season), [season], horizons)
