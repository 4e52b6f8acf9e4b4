"""Forecasts per series: an expected value, an interval, and the accuracy of past forecasts."""

from collections.abc import Callable, Mapping
from typing import Final

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.series import Accuracy, Forecast
from distributed_grid.monitoring.forecasting.ladder import HORIZONS, Forecaster, ForecasterMaker
from distributed_grid.monitoring.forecasting.of_nodes import NodeForecasts
from distributed_grid.monitoring.forecasting.voting import BuiltInForecaster

__all__ = [
    "FORECASTERS",
    "HORIZONS",
    "Accuracy",
    "BuiltInForecaster",
    "Forecast",
    "Forecaster",
    "ForecasterMaker",
    "NodeForecasts",
    "forecaster_maker",
]


def _with_river() -> ForecasterMaker:
    from distributed_grid.monitoring.forecasting.with_river import RiverForecaster, require_river

    require_river()
    return RiverForecaster


FORECASTERS: Final[Mapping[str, Callable[[], ForecasterMaker]]] = {
    "built-in": lambda: BuiltInForecaster,
    "river": _with_river,
}


def forecaster_maker(name: str = "built-in") -> ForecasterMaker:
    """Makes the forecasters of this name, one for each series. Raises `ExtraMissing` if its library is missing."""
    if name not in FORECASTERS:
        raise InvalidRequest(f"There is no forecaster {name!r}", try_next=f"One of: {', '.join(FORECASTERS)}")
    return FORECASTERS[name]()
