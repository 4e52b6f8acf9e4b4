"""Guarantees stand above priorities, and every command gives one answer: on a real cluster with two teams."""

import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import LiveGrid, group_of, hold_until, on, until
from sharing_cluster import user_of

from distributed_grid.client import GridClient
from distributed_grid.errors import NoCapacity

pytestmark = pytest.mark.cluster

GRACE_S = 6
CONFIG = f"""
name: guarantees-test
embedded: true
resource_sharing:
  enabled: true
  mode: share_and_offload
  policy: balanced
  min_hold_seconds: 3
  grace_seconds: {GRACE_S}
  thresholds: {{excess_threshold: 0}}
  teams:
  - {{name: first, guaranteed: {{cpu: 6}}}}
  - {{name: second, guaranteed: {{cpu: 6}}, max_priority: critical}}
nodes:
- {{name: head, role: master, cpu_count: 2, memory_gb: 4, resource_sharing: {{can_share: false}}}}
- {{name: one, cpu_count: 6, memory_gb: 4}}
- {{name: two, cpu_count: 6, memory_gb: 4}}
"""


def ask_for(user: GridClient, amount: int, priority: str, **more: Any) -> dict[str, Any]:
    return user.request_boost(
        {"target_node": "head", "resource_type": "cpu", "amount": amount, "priority": priority} | more
    )


def start_of(answer: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(answer["expected_start"])


def test_a_team_gets_what_is_guaranteed_to_it_from_one_that_took_everything_at_critical(
    grid: LiveGrid, tmp_path: Path
) -> None:
    """And while it waits, `grid plan`, the queue and `grid why` say the same about when."""
    homes = {team: user_of(grid, team, tmp_path) for team in ("first", "second")}
    first, second = GridClient(homes["first"]), GridClient(homes["second"])
    taken = [ask_for(second, 6, "critical") for _ in range(2)]
    grid.total_is("head", "CPU", 14.0)

    with pytest.raises(NoCapacity):  # it has its guarantee: a third time is above it, and takes nothing from the first
        ask_for(second, 6, "critical")
    assert [grid.state(boost) for boost in taken] == ["active", "active"]

    as_first = {"GRID_HOME": str(homes["first"].path)}
    plan = first.plan({"target_node": "head", "resource_type": "cpu", "amount": 6})
    assert not plan["fits"]
    assert plan["preemption"]["takes_own"]
    assert plan["expected_wait_s"] <= 3 + GRACE_S + 5, "not when the hour of the boost that yields is over"
    done = grid.cli("boost", "request", "head", "cpu", "6", "--priority", "normal", "--wait", "60", env=as_first)
    assert done.returncode == 0, done.stderr

    held = {team["name"]: team["held"].get("cpu", 0) for team in grid.client.sharing_status()["teams"]}
    assert (held["first"], held["second"]) == (6, 6)
    (left,) = [boost for boost in taken if grid.state(boost) == "active"]
    with pytest.raises(NoCapacity):  # what is within the guarantee of either stays, at every priority
        ask_for(second, 6, "critical")
    assert grid.state(left) == "active"


def test_a_task_within_its_teams_guarantee_has_its_place_though_another_team_holds_everything_at_critical(
    grid: LiveGrid, tmp_path: Path
) -> None:
    first, second = (GridClient(user_of(grid, team, tmp_path)) for team in ("first", "second"))
    taken = [ask_for(second, 6, "critical", delivery="reserve") for _ in range(2)]
    task = {"task_id": f"task-{tmp_path.name}", "cpu": 6, "priority": "low", "wait": True}
    assert first.schedule_task(task)["queued"]
    (queued,) = first.queue()["requests"]
    assert (queued["team"], queued["position"]) == ("first", 1)

    until(lambda: first.task(task["task_id"])["accepted"], 60, "the task has its place")
    place = first.task(task["task_id"])
    assert first.boost(place["lease_id"])["source_node"] == place["node"]
    assert group_of(place)["state"] == "CREATED"
    assert [grid.state(boost) for boost in taken].count("active") == 1
    first.complete_task(task["task_id"])


def test_plan_queue_and_why_expect_a_request_for_which_others_yield_after_their_grace_period(
    grid: LiveGrid, tmp_path: Path
) -> None:
    """So does every status: what waits in grid's own queue is listed in each, with the same start and reason."""
    first, second = (GridClient(user_of(grid, team, tmp_path)) for team in ("first", "second"))
    taken = [ask_for(second, 6, "critical", grace_seconds=24, on_grace_end="hold") for _ in range(2)]
    grid.total_is("head", "CPU", 14.0)
    # Work in the boosts, so that the one that yields is returned when its grace period is over, and not before.
    work = hold_until.options(**on("head", num_cpus=14), max_retries=0).remote(str(tmp_path / "go"))
    until(lambda: grid.free("head").get("CPU", 0.0) == 0.0, 60, "the work running")
    body = {"target_node": "head", "resource_type": "cpu", "amount": 6}
    began = time.monotonic()
    plan = first.plan(body)
    assert plan["expected_wait_s"] <= 3 + 24 + 5, "not when the hour of the boost that yields is over"
    request = first.request_allocation(body | {"wait_seconds": 600})["request_id"]
    until(lambda: any(grid.state(boost) == "releasing" for boost in taken), 30, "a boost yields")
    passed = timedelta(seconds=time.monotonic() - began)
    (yielding,) = [boost for boost in taken if grid.state(boost) == "releasing"]
    due = grid.shown(yielding)["ending"]["deadline"]

    def in_queue() -> dict[str, Any]:
        (queued,) = [one for one in first.queue()["requests"] if one["request_id"] == request]
        return queued

    queued = until(lambda: in_queue() if in_queue()["expected_start"] == due else None, 20, "a round has seen that")
    assert first.why(request)["expected_start"] == due
    # The plan meant "if it is asked for now": it differs by the time that passed until it was asked for.
    assert timedelta(0) <= start_of(queued) - start_of(plan) <= passed + timedelta(seconds=1)

    for status in (grid.json("cluster", "status"), grid.json("resource-sharing", "status")):
        assert status["waiting"] == 1
        (shown,) = status["queue"]
        told = ("request_id", "target_node", "amount", "position", "expected_start", "expected_source", "reason")
        assert [shown[key] for key in told] == [in_queue()[key] for key in told]
    page = grid.cli("cluster", "status").stdout
    assert "Waiting in the queue: 1 request\n" in page
    assert f"{request[:8]}: 6 CPUs for head, priority normal, expected in " in page
    assert "Waiting: nothing" not in page

    until(lambda: first.allocation(request)["state"] == "active", 120, "the request is met")
    granted = first.allocation(request)["boost"]
    assert datetime.fromisoformat(granted["allocated_at"]) <= start_of(queued) + timedelta(seconds=15)
    assert grid.json("cluster", "status")["waiting"] == 0
    ray.cancel(work, force=True)
