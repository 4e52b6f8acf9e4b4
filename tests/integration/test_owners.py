"""What belongs to one team, against the tokens of another: on a real cluster, through the commands that people use."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import ONE_LENDER, LiveGrid

from distributed_grid.client import GridClient
from distributed_grid.errors import InvalidRequest, NotOwner
from distributed_grid.store.home import GridHome

pytestmark = pytest.mark.cluster

CONFIG = ONE_LENDER


class Person:
    """A user of the cluster with an own token and an own GRID_HOME, as on another machine."""

    def __init__(self, grid: LiveGrid, folder: Path, name: str, *options: str) -> None:
        self._grid = grid
        self.home = GridHome(folder / name)
        made = grid.json("token", "create", name, "--scope", "view,lend,run", *options)
        done = self.cli("login", grid.client.url(), stdin=made["token"])
        assert done.returncode == 0, done.stderr
        self.client = GridClient(self.home)

    def cli(self, *args: str, **options: Any) -> "subprocess.CompletedProcess[str]":
        return self._grid.cli(*args, env={"GRID_HOME": str(self.home.path)}, **options)


@pytest.fixture
def person(grid: LiveGrid, tmp_path: Path) -> Callable[..., Person]:
    def made(name: str, *options: str) -> Person:
        return Person(grid, tmp_path, name, *options)

    return made


def log(grid: LiveGrid, boost: dict[str, Any], event: str) -> list[str]:
    """Who is named in the audit log for such events of a boost."""
    return [entry["who"] for entry in grid.client.audit_log(boost=boost["boost_id"], event=event)]


def test_another_teams_token_cannot_release_or_renew_a_boost_and_its_own_team_can(
    grid: LiveGrid, person: Callable[..., Person]
) -> None:
    ana, bo = person("ana", "--team", "vision"), person("bo", "--team", "vision")
    eve = person("eve", "--team", "audio")
    asked = ana.cli("boost", "request", "head", "cpu", "2", "--delivery", "transfer", "--json")
    assert asked.returncode == 0, asked.stderr
    boost = json.loads(asked.stdout)
    grid.total_is("head", "CPU", 4.0)

    refused = eve.cli("boost", "release", boost["boost_id"][:8])

    assert refused.returncode == 6, refused.stderr
    assert (
        f"Boost {boost['boost_id'][:8]} belongs to ana of team vision, and you are eve of team audio" in refused.stderr
    )
    assert "Ask ana or a user of team vision to do it, or use a token with the scope admin" in refused.stderr
    assert eve.cli("boost", "release", boost["boost_id"], "--amount", "1").returncode == 6
    assert eve.cli("boost", "renew", boost["boost_id"]).returncode == 6
    assert grid.state(boost) == "active"
    assert grid.totals("head")["CPU"] == 4.0
    assert log(grid, boost, "access_refused") == ["eve"] * 3

    assert bo.cli("boost", "renew", boost["boost_id"]).returncode == 0
    assert bo.cli("boost", "release", boost["boost_id"]).returncode == 0
    grid.total_is("head", "CPU", 2.0)
    assert (log(grid, boost, "renewed"), log(grid, boost, "release_asked")) == (["bo"], ["bo"])


def test_a_waiting_request_is_taken_back_by_its_owner_and_not_by_another_team(
    grid: LiveGrid, person: Callable[..., Person]
) -> None:
    ana, eve = person("ana", "--team", "vision"), person("eve", "--team", "audio")
    asked = ana.client.request_allocation({"target_node": "head", "resource_type": "cpu", "amount": 100})

    with pytest.raises(NotOwner, match="belongs to ana of team vision"):
        eve.client.release_allocation(asked["request_id"])
    assert [one["request_id"] for one in grid.client.queue()["requests"]] == [asked["request_id"]]
    assert ana.client.release_allocation(asked["request_id"])["state"] == "cancelled"


def test_a_priority_above_the_tokens_is_refused_and_the_message_says_what_to_do(
    grid: LiveGrid, person: Callable[..., Person]
) -> None:
    ana, urgent = person("ana", "--team", "vision"), person("urgent", "--max-priority", "critical")

    refused = ana.cli("boost", "request", "head", "cpu", "1", "--priority", "high")

    assert refused.returncode == 6, refused.stderr
    assert "The priority high is above normal" in refused.stderr
    assert "grid token create ana --max-priority high" in refused.stderr
    assert grid.client.boost_status()["boosts"] == []
    assert ana.cli("run", "--cpus", "1", "--priority", "high", "--", sys.executable, "-c", "").returncode == 6
    assert urgent.cli("boost", "request", "head", "cpu", "1", "--priority", "critical").returncode == 0
    grid.release_everything()


@pytest.mark.timeout(400)
def test_a_private_raylet_is_for_the_boosts_owner_joins_no_strange_head_and_is_in_the_audit_log(
    grid: LiveGrid, person: Callable[..., Person]
) -> None:
    ana, eve = person("ana", "--team", "vision"), person("eve", "--team", "audio")
    boost = ana.client.request_boost(
        {"target_node": "head", "resource_type": "cpu", "amount": 1, "delivery": "reserve"}
    )

    def raylets() -> list[str]:
        named = ray.util.list_named_actors(all_namespaces=True)
        return [one["name"] for one in named if one["name"] == f"grid-raylet-{boost['boost_id']}"]

    with pytest.raises(NotOwner, match="belongs to ana of team vision"):
        eve.client.join_private_cluster(boost["boost_id"], "127.0.0.1:6400")
    with pytest.raises(NotOwner):
        eve.client.leave_private_cluster(boost["boost_id"])
    for strange in ("203.0.113.9:6379", "evil.example:6379", grid.address):  # the last would offer the lease twice
        with pytest.raises(InvalidRequest, match="cannot be the head of a private Ray"):
            ana.client.join_private_cluster(boost["boost_id"], strange)
    assert raylets() == []
    assert log(grid, boost, "access_refused") == ["eve", "eve"]
    assert log(grid, boost, "raylet_failed") == ["ana"] * 3

    ran = ana.cli(
        *("run", "--isolation", "cluster", "--boost", boost["boost_id"], "--"),
        *(sys.executable, "-c", "import ray; ray.init(); print(ray.cluster_resources()['CPU'])"),
        timeout=300,
    )

    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "1.0"), ran.stderr
    assert raylets() == []
    assert log(grid, boost, "raylet_asked") == ["ana"] * 4
    assert (log(grid, boost, "raylet_started"), log(grid, boost, "raylet_stopped")) == (["ana"], ["ana"])
    assert eve.cli("boost", "release", boost["boost_id"]).returncode == 6
    assert ana.cli("boost", "release", boost["boost_id"]).returncode == 0
