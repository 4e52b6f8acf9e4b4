"""Strategies that an installed package brings along."""

import importlib
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from distributed_grid.decide.scheduler import strategies
from distributed_grid.scheduler import placement

registered = importlib.import_module("distributed_grid.decide.scheduler.strategies")


def test_what_is_installed_is_known_and_what_cannot_be_loaded_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint("tight-fit", "distributed_grid.decide.scheduler.strategies:best_fit", placement.GROUP),
        EntryPoint("broken", "nowhere:nothing", placement.GROUP),
    ]
    monkeypatch.setattr(registered, "REGISTERED", dict(registered.strategies()))

    def found(group: str) -> Any:
        return [entry for entry in entries if entry.group == group]

    monkeypatch.setattr(placement, "entry_points", found)

    assert placement.load_strategies() == ("tight-fit",)
    assert strategies()["tight_fit"].scorer is registered.best_fit
    assert "broken" not in strategies()
