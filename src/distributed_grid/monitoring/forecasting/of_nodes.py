"""A forecaster for each series of each node."""

from collections.abc import Iterable, Mapping
from typing import Final

from distributed_grid.model.nodes import NodeName
from distributed_grid.model.series import Accuracy, Forecast
from distributed_grid.monitoring.forecasting.ladder import Forecaster, ForecasterMaker
from distributed_grid.monitoring.history import Sample

FORESEEN: Final = ("cpu", "memory", "gpu")
"""The series of a node that are forecast: the pressures. At 19 KB and 30 µs a sample each, not all series are."""


class NodeForecasts:
    """Takes the same samples as `History`. A series that a node does not have costs nothing."""

    def __init__(self, make: ForecasterMaker, series: Iterable[str] = FORESEEN) -> None:
        self._make = make
        self._series = tuple(series)
        self._nodes: dict[NodeName, dict[str, Forecaster]] = {}

    def observe(self, at: float, samples: Mapping[NodeName, Sample]) -> None:
        for node, sample in samples.items():
            forecasters = self._nodes.setdefault(node, {})
            for name in self._series:
                value = sample.get(name)
                if value is not None:
                    forecaster = forecasters.get(name)
                    if forecaster is None:
                        forecaster = forecasters[name] = self._make()
                    forecaster.observe(at, value)

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
