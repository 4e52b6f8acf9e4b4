"""Strategies that an installed package brings along."""

import importlib
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from distributed_grid.decide.scheduling import strategies
from distributed_grid.orchestration import own_strategies

registered = importlib.import_module("distributed_grid.decide.scheduling.strategies")


def test_what_is_installed_is_known_and_what_cannot_be_loaded_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint("tight-fit", "distributed_grid.decide.scheduling.strategies:best_fit", own_strategies.GROUP),
        EntryPoint("broken", "nowhere:nothing", own_strategies.GROUP),
    ]
    monkeypatch.setattr(registered, "_REGISTERED", dict(registered.strategies()))

    def found(group: str) -> Any:
        return [entry for entry in entries if entry.group == group]

    monkeypatch.setattr(own_strategies, "entry_points", found)

    assert own_strategies.load_strategies() == ("tight-fit",)
    assert strategies()["tight_fit"].scorer is registered.best_fit
    assert "broken" not in strategies()
