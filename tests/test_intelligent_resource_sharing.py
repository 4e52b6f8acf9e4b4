"""Sharing by policy on a real cluster: who gets what, who waits, who yields. Ray says whether it is true."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import LiveGrid, hold_until, is_pending, on, until, where_am_i
from ray.util.scheduling_strategies import In, NodeLabelSchedulingStrategy
from sharing_cluster import CONFIG as SHARING
from sharing_cluster import (
    at_the_users_desk,  # noqa: F401 - a fixture for all tests here
    user_of,
)

from distributed_grid.client import GridClient
from distributed_grid.errors import NoCapacity, TargetNotFound
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager, ResourceBoostRequest
from distributed_grid.orchestration.resource_sharing_manager import ResourceSharingManager
from distributed_grid.orchestration.resource_sharing_orchestrator import ResourceSharingOrchestrator

pytestmark = pytest.mark.cluster

CONFIG = SHARING


@ray.remote(num_cpus=1, max_retries=-1)
def a_moment() -> None:
    time.sleep(0.2)


@ray.remote(num_cpus=1, max_retries=0)
def burn_until(path: str) -> None:
    while not Path(path).exists():
        sum(range(100_000))


def state_of(grid: LiveGrid, allocation: str) -> str:
    return str(grid.client.allocation(allocation)["state"])


def planned(grid: LiveGrid, *request: str) -> dict[str, Any]:
    """What `grid plan` says. Its exit code is the request's: 4 if the request would be refused now."""
    done = grid.cli("plan", *request, "--json")
    plan: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if plan["fits"] else 4), done.stderr
    return plan


def made_by_grid(grid: LiveGrid, target: str, cause: str) -> list[dict[str, Any]]:
    boosts = grid.client.boost_status()["boosts"]
    return [b for b in boosts if (b["target_node"], b["cause"], b["state"]) == (target, cause, "active")]


class TestResourceSharingManager:
    def test_a_request_that_fits_is_met_at_once_and_is_returned_when_released(self, grid: LiveGrid) -> None:
        async def use() -> None:
            async with ResourceSharingManager() as sharing:
                allocation = await sharing.request_resource("head", "cpu", 2, "high", 600)
                assert (await sharing.get_allocation(allocation))["state"] == "active"
                grid.total_is("head", "CPU", 4.0)
                # On a busy machine grid may have lent something by itself.
                assert allocation in [a["boost_id"] for a in (await sharing.get_resource_status())["allocations"]]

                assert await sharing.release_resource(allocation)
                grid.total_is("head", "CPU", 2.0)
                assert not await sharing.release_resource(allocation)
                history = [e["event"] for e in await sharing.history() if e["boost_id"] == allocation]
                assert history == ["granted", "returned"]

        asyncio.run(use())

    def test_a_request_that_does_not_fit_waits_and_is_met_when_capacity_comes_back(self, grid: LiveGrid) -> None:
        first = grid.boost("head", "cpu", 4, source_node="one", duration_seconds=900)

        async def use() -> None:
            async with ResourceSharingManager() as sharing:
                allocation = await sharing.request_resource("head", "cpu", 4, source="one")
                found = (await sharing.get_allocation(allocation))["waiting"]
                assert found["position"] == 1
                assert found["expected_start"] == first["expires_at"]  # nothing else is known to come back
                assert "one" in found["reason"]
                assert (await sharing.get_resource_status())["waiting"] == 1

                grid.release(first)
                until(lambda: state_of(grid, allocation) == "active", 10, "the request met")
                grid.total_is("one", "CPU", 0.0)

        asyncio.run(use())

    def test_a_waiting_request_outlives_the_controller(self, grid: LiveGrid) -> None:
        first = grid.boost("head", "cpu", 4, source_node="one")
        body = {"target_node": "head", "resource_type": "cpu", "amount": 2, "source_node": "one"}
        request = grid.client.request_allocation(body)
        assert request["state"] == "waiting"

        before = grid.controller_pid()
        os.kill(before, 9)
        until(lambda: grid.controller_pid() != before, 30, "another controller")

        assert [r["request_id"] for r in grid.client.queue()["requests"]] == [request["request_id"]]
        grid.release(first)
        until(lambda: state_of(grid, request["request_id"]) == "active", 15, "the request met")

    def test_what_makes_no_sense_is_said_at_once(self, grid: LiveGrid) -> None:
        async def use() -> None:
            async with ResourceSharingManager() as sharing:
                with pytest.raises(TargetNotFound):
                    await sharing.request_resource("nowhere", "cpu", 1)

        asyncio.run(use())


class TestWhoYields:
    def test_a_critical_request_takes_a_low_boost_and_no_high_one(self, grid: LiveGrid, tmp_path: Path) -> None:
        colleague = GridClient(user_of(grid, "default", tmp_path))
        body = {"target_node": "head", "resource_type": "cpu", "amount": 4, "source_node": "one", "priority": "low"}
        low = colleague.request_boost(body)
        high = grid.boost("head", "cpu", 4, source_node="two", priority="high")

        plan = planned(grid, "head", "cpu", "4", "--priority", "critical")
        assert [boost["boost_id"] for boost in plan["preemption"]["victims"]] == [low["boost_id"]]
        critical = grid.boost("head", "cpu", 4, priority="critical", wait_seconds=30)

        assert critical["source_node"] == "one"
        assert grid.state(low) == "released"
        assert grid.state(high) == "active", [e["message"] for e in grid.client.events()][-25:]
        with pytest.raises(NoCapacity):
            grid.boost("head", "cpu", 4, priority="high")  # strictly lower ones yield, and there is none
        assert grid.state(critical) == "active"

    def test_a_team_gets_its_own_back_from_one_that_borrowed_all(self, grid: LiveGrid, tmp_path: Path) -> None:
        """The borrower is asked, saves its work, and has a long queue of tasks all the while."""
        red, blue = (user_of(grid, team, tmp_path) for team in ("red", "blue"))
        asked: list[Any] = []

        async def use() -> dict[str, Any]:
            os.environ["GRID_HOME"] = str(blue.path)
            async with ResourceBoostManager() as borrower:
                for source in ("one", "two"):
                    request = ResourceBoostRequest("head", "cpu", 4, preferred_source=source, on_reclaim=asked.append)
                    assert await borrower.request_boost(request) is not None
                grid.total_is("head", "CPU", 10.0)
                queue = [a_moment.options(**on("head")).remote() for _ in range(1600)]  # longer than is waited
                ray.wait(queue, num_returns=20, timeout=120)
                until(lambda: grid.free("head").get("CPU", 0.0) == 0.0, 30, "every CPU of the head in use")
                began = time.monotonic()
                body = {"target_node": "two", "resource_type": "cpu", "amount": 4, "source_node": "one"}
                granted = await asyncio.to_thread(GridClient(red).request_boost, body | {"wait_seconds": 30})
                granted["seconds"] = time.monotonic() - began
                for task in queue:
                    ray.cancel(task)
                return granted

        granted = asyncio.run(use())

        assert (granted["source_node"], granted["team"]) == ("one", "red")
        assert len(asked) == 1
        assert asked[0].amount == 4
        assert granted["seconds"] < 6 + 20  # the grace period of the configuration; a busy machine needs a while more
        grid.total_is("two", "CPU", 4.0)  # it lent 4 to the head, and has 4 of one's

    def test_a_node_that_cools_down_gives_everything_back_and_lends_nothing(self, grid: LiveGrid) -> None:
        boost = grid.boost("head", "cpu", 2, source_node="one")

        answer = grid.json("cooldown", "one")
        try:
            assert boost["boost_id"] in answer["returning"]  # on a busy machine grid may have lent more by itself
            until(lambda: grid.state(boost) == "released", 15)
            grid.total_is("one", "CPU", 4.0)
            with pytest.raises(NoCapacity, match="sufficient"):
                grid.boost("head", "cpu", 1, source_node="one")
        finally:
            grid.json("cooldown", "one", "--off")

        assert grid.boost("head", "cpu", 1, source_node="one")["state"] == "active"


class TestRebalancing:
    def test_a_node_under_pressure_is_boosted_without_a_request_until_the_pressure_ends(
        self, grid: LiveGrid, tmp_path: Path
    ) -> None:
        end = tmp_path / "end"
        # On all its CPUs, since on a busy machine each task gets a part of a core; the fewer, the longer this takes.
        work = [burn_until.options(**on("one")).remote(str(end)) for _ in range(4)]
        try:
            boost = until(lambda: made_by_grid(grid, "one", "pressure"), 40, "a boost for the node under pressure")[0]
            assert (boost["source_node"], boost["priority"]) == ("two", "low")
            reported = grid.client.why(boost["boost_id"])
            assert "cpu" in " ".join([reported["summary"], *reported["facts"]]).lower()
        finally:
            end.touch()
        ray.get(work, timeout=60)
        until(lambda: grid.state(boost) == "released", 40, "the boost returned after the pressure")
        assert any(event["details"].get("reason") for event in grid.events("rebalanced"))

    def test_a_task_that_waits_for_a_node_makes_that_node_borrow_what_it_needs(self, grid: LiveGrid) -> None:
        task = where_am_i.options(**on("one", num_cpus=6)).remote()
        assert is_pending(task)

        assert ray.get(task, timeout=120) == "one"  # it never had six CPUs
        reasons = [str(event["details"].get("reason")) for event in grid.events("rebalanced")]
        assert [reason for reason in reasons if "its labels match only one, which has 4 CPUs" in reason]

    def test_a_task_that_a_scheduling_strategy_pins_to_a_small_node_makes_that_node_borrow(
        self, grid: LiveGrid
    ) -> None:
        pinned = NodeLabelSchedulingStrategy(hard={"grid/name": In("head")})
        task = where_am_i.options(num_cpus=4, scheduling_strategy=pinned).remote()
        assert is_pending(task)

        assert ray.get(task, timeout=120) == "head"  # it has two CPUs, and others have four
        reasons = [str(event["details"].get("reason")) for event in grid.events("rebalanced")]
        assert [reason for reason in reasons if "strategy matches only head, which has 2 CPUs" in reason]


class TestResourceSharingOrchestrator:
    def test_it_shows_and_shares_the_cluster(self, grid: LiveGrid) -> None:
        async def use() -> None:
            async with ResourceSharingOrchestrator(grid.config, None) as orchestrator:
                status = await orchestrator.get_cluster_status()
                assert {node["name"] for node in status["nodes"]} == {"head", "one", "two"}
                assert status["resource_sharing"]["policy"] == "balanced"
                request = await orchestrator.request_resources(
                    node_id="head", resource_type="cpu", amount=2.0, priority="high", duration_minutes=30
                )
                grid.total_is("head", "CPU", 4.0)
                until(lambda: orchestrator.get_node_resource_snapshots().keys() == {"head", "one", "two"}, 10)
                assert await orchestrator.release_resources(request)
                grid.total_is("head", "CPU", 2.0)

        asyncio.run(use())


def test_plans_come_true(grid: LiveGrid, tmp_path: Path) -> None:
    """What `grid plan` says, and what then happens; the same for 200 random states is shown without Ray."""
    stop = tmp_path / "stop"
    busy = hold_until.options(**on("two", num_cpus=3)).remote(str(stop))
    until(lambda: grid.free("two").get("CPU", 0.0) == 1.0, 15)
    try:
        plan = planned(grid, "head", "cpu", "4")
        assert (plan["fits"], plan["source_node"], plan["delivery"]) == (True, "one", "transfer")
        first = grid.boost("head", "cpu", 4)
        assert first["source_node"] == "one"

        plan = planned(grid, "head", "cpu", "4")
        assert (plan["fits"], plan["largest_now"]) == (False, {"amount": 1, "source_node": "two"})
        assert plan["expected_start"] == first["expires_at"]
        with pytest.raises(NoCapacity):
            grid.boost("head", "cpu", 4)
        assert grid.boost("head", "cpu", plan["largest_now"]["amount"])["source_node"] == "two"
    finally:
        stop.touch()
        ray.get(busy, timeout=60)


def test_why(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 3, source_node="one")
    reported = {node["node"]: node["verdict"] for node in grid.json("why", boost["boost_id"][:8])["nodes"]}
    assert reported == {"head": "IsTarget", "one": "chosen", "two": "NotTheSource"}

    request = grid.client.request_allocation(
        {"target_node": "head", "resource_type": "cpu", "amount": 4, "source_node": "one", "wait_seconds": 600}
    )
    answer = grid.json("why", request["request_id"])
    assert answer["state"] == "waiting"
    assert {node["node"]: node["verdict"] for node in answer["nodes"]}["one"] == "NoCapacity"


def test_the_policy_can_be_changed_while_it_runs(grid: LiveGrid) -> None:
    done = grid.json("resource-sharing", "policy", "set", "conservative", "--mode", "share_and_offload")
    try:
        assert (done["policy"], done["numbers"]["headroom_of_idle"]) == ("conservative", 0.5)
        with pytest.raises(NoCapacity) as refused:
            grid.boost("head", "cpu", 3, source_node="one")
        assert "policy conservative keeps 2 CPUs free" in " ".join(refused.value.because)
        assert grid.boost("head", "cpu", 2, source_node="one")["state"] == "active"
    finally:
        grid.json("resource-sharing", "policy", "set", "configured", "--mode", "configured")
