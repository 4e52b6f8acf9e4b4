"""Boosts and allocations are one: what the one way has taken, the other cannot, and work sees both alike."""

import asyncio

import pytest
import ray
from live_grid import LiveGrid, is_pending, on, where_am_i
from sharing_cluster import CONFIG as SHARING
from sharing_cluster import at_the_users_desk  # noqa: F401 - a fixture for all tests here

from distributed_grid.errors import NoCapacity
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
