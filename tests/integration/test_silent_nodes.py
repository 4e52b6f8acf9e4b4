"""A node whose probe says nothing: it is told as such, and lends nothing until it speaks again."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from live_grid import NOTICE_SOON, TWO_LENDERS, LiveGrid, until
from watching import NAMES, PATIENCE_S, nodes, pressures, probe_pid, samples, sought

from distributed_grid.errors import NoCapacity
from distributed_grid.model.times import parse_instant

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that is there and does nothing; killed in the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_node_whose_probe_is_silent_is_stale_and_lends_nothing_and_a_killed_probe_comes_back(grid: LiveGrid) -> None:
    pressures(grid, "cpu")
    pid = probe_pid(grid.ids["one"])

    with stopped(pid):
        silent = sought(lambda: nodes(grid)["one"], _is_silent, "stale")
        sought(
            lambda: samples(grid, "grid_node_stale"),
            lambda reported: [reported.get((name,)) for name in NAMES] == [0.0, 1.0, 0.0],
            "told as stale, and no other",
        )
        refused = until(lambda: refusal(grid, "one"), PATIENCE_S, "refused")
        as_measured = samples(grid, "grid_node_pressure_ratio")
        other = grid.boost("head", "cpu", 1, source_node="two", wait_seconds=PATIENCE_S)
        killed_at = datetime.now(UTC)

    assert silent["age_seconds"] > 0
    assert silent["pressure"] is not None  # what was measured last, and how long ago
    assert not [labels for labels in as_measured if "one" in labels]  # Prometheus is not told old values as new ones
    assert any(line.startswith("one: ") and line.endswith("[Stale]") for line in refused.because)
    assert other["source_node"] == "two"

    sought(lambda: nodes(grid)["one"], lambda node: node["state"] == "ok", "back")
    assert probe_pid(grid.ids["one"]) != pid
    assert missed_since(grid, "one", killed_at) <= 8
    lent = grid.boost("head", "cpu", 1, source_node="one", wait_seconds=PATIENCE_S)
    assert lent["source_node"] == "one"


def _is_silent(node: dict[str, Any]) -> bool:
    return node["state"] == "stale" and "its probe has not answered" in node["stale_because"]


def refusal(grid: LiveGrid, source: str) -> NoCapacity | None:
    try:
        granted = grid.boost("head", "cpu", 1, source_node=source)
    except NoCapacity as refused:
        return refused
    grid.release(granted)
    return None


def missed_since(grid: LiveGrid, name: str, since: datetime) -> int:
    """So many intervals passed without a measurement of the node, until there was one again."""

    def values() -> list[float | None]:
        history = grid.client.node(name)["history"]
        pairs = zip(history["times"], history["series"]["cpu"], strict=True)
        return [value for at, value in pairs if parse_instant(at) > since]

    found = sought(values, lambda values: values[-1] is not None, "measured again")
    return next(place for place, value in enumerate(found) if value is not None)
