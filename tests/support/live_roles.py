"""Runs on real clusters, as Ray has them and as they tell of themselves."""

from collections.abc import Iterator
from typing import Any

import pytest
import ray
from live_grid import LiveGrid, until

from distributed_grid.roles import Run
from distributed_grid.roles.supervision.hosting import NAMESPACE


@pytest.fixture(autouse=True)
def grid_is_found(grid: LiveGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid of the tests is the one that is found."""
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))


@pytest.fixture(scope="module", name="runs")
def shared_runs() -> Iterator[dict[str, Run]]:
    """Those that several tests of a module use; they end with it."""
    made: dict[str, Run] = {}
    yield made
    for run in made.values():
        run.shutdown()


def actors(name: str) -> list[str]:
    found = ray.util.list_named_actors(all_namespaces=True)
    return [one["name"] for one in found if one["namespace"] == NAMESPACE and one["name"].startswith(f"{name}/")]


def nothing_is_left_of(grid: LiveGrid, name: str, before: list[float]) -> None:
    until(lambda: not actors(name), what=f"no actor of {name} is left")
    until(lambda: not groups(name), what=f"no placement group of {name} is left")
    # More may be free: what an earlier test held is not seen to be free at once.
    until(lambda: all(now >= was for now, was in zip(free(grid), before, strict=True)), what="all is free")
    assert not [one for one in grid.client.boost_status()["boosts"] if one["label"].startswith(name)]


def groups(name: str) -> list[str]:
    found = ray.util.placement_group_table().values()
    return [one["name"] for one in found if one["name"].startswith(f"grid-roles-{name}-") and one["state"] != "REMOVED"]


def free(grid: LiveGrid) -> list[float]:
    """CPUs and GPUs of each node; Ray leaves out what is zero."""
    return [grid.free(name).get(kind, 0.0) for name in sorted(grid.ids) for kind in ("CPU", "GPU")]


def restarts(run: Run, role: str, rank: int) -> int:
    return int(shown(run, role, rank)["restarts"])


def shown(run: Run, role: str, rank: int) -> dict[str, Any]:
    return next(one for one in run.status()["members"] if (one["role"], one["rank"]) == (role, rank))


def told(run: Run) -> str:
    return " ".join(event["message"] for event in run.status()["events"])


def free_cpus(grid: LiveGrid, name: str) -> float:
    """Whole ones, once what earlier tests held is seen to be free."""
    return float(int(until(lambda: (found := grid.free(name).get("CPU", 0.0)) >= 3 and found, what="it is idle")))
