"""Forecasts per series: an expected value, an interval, and the accuracy of past forecasts."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from distributed_grid.errors import InvalidRequest
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.series import Accuracy, Forecast, Recorded
from distributed_grid.monitoring.forecasting.ladder import HORIZONS, Forecaster, ForecasterMaker
from distributed_grid.monitoring.forecasting.voting import BuiltInForecaster
from distributed_grid.monitoring.history import Sample

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

FORESEEN: Final = ("cpu", "memory", "gpu")
"""The series of a node that are forecast: the pressures. At 19 KB and 30 µs a sample each, not all series are."""

_MOST_LEARNT: Final = 20_000


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


class NodeForecasts:
    """A forecaster for each series of each node; it takes the same samples as `History`.

    A series that a node does not have costs nothing.
    """

    def __init__(self, make: ForecasterMaker, series: Iterable[str] = FORESEEN) -> None:
        self._make = make
        self._series = tuple(series)
        self._nodes: dict[NodeName, dict[str, Forecaster]] = {}

    def observe(self, at: float, samples: Mapping[NodeName, Sample]) -> None:
        for node, sample in samples.items():
            for name in self._series:
                self._take(node, name, at, sample.get(name))

    def _take(self, node: NodeName, name: str, at: float, value: float | None) -> None:
        if value is None or value != value:
            return
        forecasters = self._nodes.setdefault(node, {})
        forecaster = forecasters.get(name)
        if forecaster is None:
            forecaster = forecasters[name] = self._make()
        forecaster.observe(at, value)

    def learn(self, past: Recorded) -> None:
        """Take many samples at once, or, of very many, evenly chosen ones."""
        wanted = [i for i, name in enumerate(past.series) if name in self._series]
        series = tuple(past.series[i] for i in wanted)
        few = Recorded(past.nodes, series, past.times, past.values[:, wanted]).at_most(_MOST_LEARNT)
        for node, of_node in zip(few.nodes, few.values.tolist(), strict=True):
            for name, values in zip(few.series, of_node, strict=True):
                for at, value in zip(few.times.tolist(), values, strict=True):
                    self._take(node, name, at, value)

    def of(self, node: NodeName, name: str, *, now: float, horizon_s: float) -> Forecast | None:
        """The forecast for `horizon_s` from now; None where nothing is known.

        It starts at the latest sample. The older that sample is, the further the forecast reaches and the wider its
        interval.
        """
        forecaster = self._nodes.get(node, {}).get(name)
        if forecaster is None or forecaster.latest_at is None:
            return None
        return forecaster.forecast(horizon_s + max(0.0, now - forecaster.latest_at))

    def accuracies(self, node: NodeName, name: str) -> tuple[Accuracy, ...]:
        forecaster = self._nodes.get(node, {}).get(name)
        return forecaster.accuracies() if forecaster else ()

    def keep_only(self, nodes: Iterable[NodeName]) -> None:
        """Forget all other nodes."""
        for gone in self._nodes.keys() - set(nodes):
            del self._nodes[gone]
