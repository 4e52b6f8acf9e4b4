"""Forecasts by node and series."""

import pytest

from distributed_grid.model.nodes import NodeName
from distributed_grid.monitoring.forecasting import BuiltInForecaster, NodeForecasts

A, B = NodeName("a"), NodeName("b")


def test_each_series_of_each_node_has_its_own() -> None:
    forecasts = NodeForecasts(BuiltInForecaster)
    for n in range(10):
        forecasts.observe(10.0 * n, {A: {"cpu": 0.2, "memory": 0.4, "logical_cpu": 1.0}, B: {"cpu": 0.6, "gpu": None}})

    def value(node: NodeName, name: str) -> float | None:
        found = forecasts.of(node, name, now=90.0, horizon_s=900.0)
        return found and found.value

    assert value(A, "cpu") == pytest.approx(0.2)
    assert value(A, "memory") == pytest.approx(0.4)
    assert value(B, "cpu") == pytest.approx(0.6)
    assert value(B, "gpu") is None  # it has none
    assert value(A, "logical_cpu") is None  # nobody asked for that
    assert value(NodeName("c"), "cpu") is None
    assert forecasts.accuracies(A, "cpu") == ()


def test_a_stale_node_is_looked_at_from_its_last_sample() -> None:
    forecasts = NodeForecasts(BuiltInForecaster)
    forecasts.observe(0.0, {A: {"cpu": 0.2}})

    found = forecasts.of(A, "cpu", now=600.0, horizon_s=900.0)

    assert found is not None
    assert (found.made_at, found.horizon_s) == (0.0, 1500.0)


def test_a_node_that_is_gone_is_forgotten() -> None:
    forecasts = NodeForecasts(BuiltInForecaster)
    forecasts.observe(0.0, {A: {"cpu": 0.2}, B: {"cpu": 0.2}})

    forecasts.keep_only([B])

    assert forecasts.of(A, "cpu", now=0.0, horizon_s=900.0) is None
    assert forecasts.of(B, "cpu", now=0.0, horizon_s=900.0) is not None
