"""The cluster of the tests about sharing by policy, and who uses it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_grid import LiveGrid

from distributed_grid.client.whereabouts import Whereabouts, remember
from distributed_grid.store.home import GridHome

CONFIG = """
name: sharing-test
embedded: true
resource_sharing:
  enabled: true
  mode: dynamic_balancing
  policy: balanced
  rebalance_interval_seconds: 1
  monitoring_interval_seconds: 1
  min_hold_seconds: 0
  grace_seconds: 6
  thresholds: {excess_threshold: 0, cpu_pressure_high: 0.3, cpu_pressure_low: 0.15, memory_pressure_high: 0.95}
  teams:
  - {name: red, guaranteed: {cpu: 4}}
  - {name: blue, guaranteed: {cpu: 4}}
nodes:
- {name: head, role: master, cpu_count: 2, memory_gb: 4, resource_sharing: {can_share: false}}
- {name: one, cpu_count: 4, memory_gb: 4}
- {name: two, cpu_count: 4, memory_gb: 4}
"""


def user_of(grid: LiveGrid, team: str, folder: Path, **token: Any) -> GridHome:
    """The home of a member of a team, who is logged in with a token of their own."""
    body = {"name": f"{team}-{folder.name}", "team": team, "scopes": ["view", "lend"]} | token
    made = grid.client.create_token(body)
    home = GridHome(folder / f"home-{team}").create()
    remember(home, Whereabouts(grid.client.url(), made["token"]))
    return home


@pytest.fixture(autouse=True)
def at_the_users_desk(grid: LiveGrid, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The Python classes find the cluster where `grid` would; and no call waits longer than a test."""
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))
    yield
    for request in grid.client.queue()["requests"]:
        grid.client.release_allocation(request["request_id"])
