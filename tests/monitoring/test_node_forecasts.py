"""Forecasts by node and series."""

from unittest.mock import ANY

import pytest

from distributed_grid.model.nodes import NodeName
from distributed_grid.monitoring.forecasting import BuiltInForecaster, NodeForecasts
from distributed_grid.monitoring.history import History

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
    assert value(A, "logical_cpu") is None  # not one of the series that are forecast
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


def test_what_was_measured_before_counts_as_if_it_had_been_followed() -> None:
    history, followed = History(10.0), NodeForecasts(BuiltInForecaster)
    for n in range(361):
        sample = {A: {"cpu": 0.2 + 0.001 * n}, B: {"cpu": None if n % 7 else 0.4}}
        history.record(10.0 * n, sample)
        followed.observe(10.0 * n, sample)

    learnt = NodeForecasts(BuiltInForecaster)
    learnt.learn(history.recorded())

    for node in (A, B):
        found, wanted = (one.of(node, "cpu", now=3600.0, horizon_s=900.0) for one in (learnt, followed))
        assert found is not None and wanted is not None and wanted.accuracy is not None
        assert (found.value, found.accuracy) == (pytest.approx(wanted.value, abs=1e-6), ANY)
        assert found.accuracy is not None and found.accuracy.checked == wanted.accuracy.checked
    assert learnt.of(A, "memory", now=3600.0, horizon_s=900.0) is None


def test_of_many_nodes_only_some_samples_are_learnt() -> None:
    history = History(10.0)
    many = {NodeName(f"n{number}"): {"cpu": 0.5, "memory": 0.5, "gpu": 0.5} for number in range(300)}
    for n in range(361):
        history.record(10.0 * n, many)
    taken = 0

    class Counting(BuiltInForecaster):
        def observe(self, at: float, value: float | None) -> None:
            nonlocal taken
            taken += 1
            super().observe(at, value)

    NodeForecasts(Counting).learn(history.recorded())

    assert 15_000 < taken <= 20_000
