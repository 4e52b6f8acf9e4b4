"""Boosts and allocations are one: what the one way has taken, the other cannot, and work sees both alike."""

import asyncio
from dataclasses import replace

import pytest
import ray
from live_grid import LiveGrid, group_of, is_pending, on, until, where_am_i
from sharing_cluster import CONFIG as SHARING
from sharing_cluster import at_the_users_desk  # noqa: F401 - a fixture for all tests here

from distributed_grid.errors import NoCapacity
from distributed_grid.orchestration.intelligent_scheduler import (
    IntelligentScheduler,
    SchedulingDecision,
    SchedulingRequest,
    ray_options,
)
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager, ResourceBoostRequest
from distributed_grid.orchestration.resource_sharing_manager import ResourceSharingManager
from distributed_grid.orchestration.resource_sharing_orchestrator import ResourceSharingOrchestrator

pytestmark = pytest.mark.cluster

CONFIG = SHARING


def test_what_a_boost_has_no_allocation_gets_and_the_other_way_round(grid: LiveGrid) -> None:
    async def use() -> None:
        async with ResourceBoostManager() as boosts, ResourceSharingManager() as sharing:
            boost = await boosts.request_boost(ResourceBoostRequest("head", "cpu", 4, preferred_source="one"))
            waiting = await sharing.request_resource("head", "cpu", 1, source="one")
            assert (await sharing.get_allocation(waiting))["state"] == "waiting"
            allocation = await sharing.request_resource("head", "cpu", 4, source="two")
            with pytest.raises(NoCapacity):
                grid.boost("head", "cpu", 1, source_node="two")
            grid.total_is("head", "CPU", 10.0)
            assert {b.boost_id for b in await boosts.get_active_boosts("head")} == {boost, allocation}

    asyncio.run(use())


def test_an_allocation_can_be_renewed_and_released_as_a_boost(grid: LiveGrid) -> None:
    async def use() -> None:
        async with ResourceBoostManager() as boosts, ResourceSharingManager() as sharing:
            allocation = await sharing.request_resource("head", "cpu", 2, duration=600)
            before = (await boosts.get_boost(allocation)).expires_at
            assert (await boosts.renew_boost(allocation, 1200)).expires_at > before
            assert await boosts.release_boost(allocation)
            assert not await sharing.release_resource(allocation)
            grid.total_is("head", "CPU", 2.0)

    asyncio.run(use())


def test_several_boosts_add_up_for_a_task_that_waits(grid: LiveGrid) -> None:
    """When enough is there, waiting work that it can carry starts by itself."""
    task = where_am_i.options(**on("head", num_cpus=5)).remote()
    first = grid.boost("head", "cpu", 1)
    assert is_pending(task, 0.5)

    async def use() -> None:
        async with ResourceSharingManager() as sharing:
            await sharing.request_resource("head", "cpu", 2)
            assert await asyncio.to_thread(ray.get, task, timeout=60) == "head"

    asyncio.run(use())
    assert grid.state(first) == "active"


def test_an_orchestrator_takes_the_boost_manager_that_is_in_use(grid: LiveGrid) -> None:
    async def use() -> None:
        async with (
            ResourceBoostManager() as boosts,
            ResourceSharingOrchestrator(grid.config, None, boost_manager=boosts) as orchestrator,
        ):
            assert orchestrator.boost_manager is boosts
            boost = await boosts.request_boost(ResourceBoostRequest("head", "cpu", 1))
            status = await orchestrator.get_cluster_status()
            assert [b["boost_id"] for b in status["boosts"]["boosts"]] == [boost]
            assert next(n for n in status["nodes"] if n["name"] == "head")["borrowed"]["cpu"] == 1

    asyncio.run(use())


class TestIntelligentScheduler:
    """Active boosts count as the target's capacity; a place is Ray's own, and is gone when the task is done."""

    @staticmethod
    async def runs_on(decision: SchedulingDecision) -> str:
        """Where work in the place really runs."""
        work = where_am_i.options(**ray_options(decision, num_cpus=1)).remote()
        return str(await asyncio.to_thread(ray.get, work, timeout=60))

    @staticmethod
    def is_gone(decision: SchedulingDecision) -> bool:
        return str(group_of({"placement_group": decision.placement_group})["state"]) == "REMOVED"

    def test_a_task_is_rejected_without_boosts_and_accepted_with_several_that_add_up(self, grid: LiveGrid) -> None:
        asked = SchedulingRequest(cpu=5, target="head", strategy="node-specific", duration_seconds=60)

        async def use() -> None:
            async with ResourceBoostManager() as boosts:
                scheduler = IntelligentScheduler(grid.config, boosts)
                rejected = await scheduler.schedule_task(asked)
                assert not rejected
                assert rejected.reasons[0] == "head: 2 of 2 CPUs free, 5 asked"
                await boosts.request_boost(ResourceBoostRequest("head", "cpu", 1))
                waiting = await scheduler.schedule_task(replace(asked, wait=True))
                assert waiting.queued
                await boosts.request_boost(ResourceBoostRequest("head", "cpu", 2))
                decision = await scheduler.wait_for_place(waiting.task_id)
                assert (decision.node, decision.delivery) == ("head", "reserve")
                assert 0 < decision.confidence < 1
                assert await self.runs_on(decision) == "head"
                assert not await scheduler.schedule_task(replace(asked, cpu=1)), "all of it is promised"
                assert await scheduler.complete_task(decision.task_id)
                assert self.is_gone(decision)
                assert not await scheduler.complete_task(decision.task_id)

        asyncio.run(use())
        until(lambda: grid.free("head").get("CPU") == 5.0, 10, "all that was promised free again")

    def test_a_reserved_boost_carries_the_targets_tasks_as_long_as_it_has_room(self, grid: LiveGrid) -> None:
        boost = grid.boost("head", "cpu", 4, delivery="reserve", source_node="one")
        asked = SchedulingRequest(cpu=3, node="head")

        async def use() -> None:
            async with ResourceBoostManager() as boosts, IntelligentScheduler(boost_manager=boosts) as scheduler:
                decision = await scheduler.schedule_task(asked)
                assert (decision.node, decision.delivery) == ("head", "boost")
                assert (decision.boost_id, decision.placement_group) == (boost["boost_id"], boost["placement_group"])
                assert await self.runs_on(decision) == "one"
                assert not await scheduler.schedule_task(asked), "one CPU is left there, and two on the head"
                assert await scheduler.complete_task(decision.task_id)
                assert await scheduler.schedule_task(asked)
                (placed,) = (await scheduler.get_scheduling_status())["tasks"]
                assert await scheduler.complete_task(placed["task_id"])

        asyncio.run(use())
        assert grid.state(boost) == "active"

    def test_without_a_boost_manager_a_task_goes_where_there_is_room(self, grid: LiveGrid) -> None:
        async def use() -> None:
            async with IntelligentScheduler() as scheduler:
                decision = await scheduler.schedule_task(SchedulingRequest(cpu=3))
                gang = await scheduler.schedule_task(SchedulingRequest(cpu=1, count=3))
                assert decision.node in ("one", "two")
                assert await self.runs_on(decision) == decision.node
                assert sorted({member.node for member in gang.members}) == [
                    "head",
                    "one" if decision.node == "two" else "two",
                ]
                for done in (decision, gang):
                    assert await scheduler.complete_task(done.task_id)
                    assert self.is_gone(done)

        asyncio.run(use())
        assert grid.client.boost_status()["boosts"] == []
        grid.settled()
