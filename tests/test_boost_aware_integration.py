"""Boosts and allocations are one: what the one way has taken, the other cannot, and work sees both alike."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import GB, NOTICE_SOON, TWO_LENDERS, LiveGrid, group_of, is_pending, on, until, where_am_i
from sharing_cluster import at_the_users_desk  # noqa: F401 - a fixture for all tests here

from distributed_grid.errors import NoCapacity
from distributed_grid.model.offload import OffloadingRecommendation
from distributed_grid.orchestration.enhanced_offloading_executor import EnhancedOffloadingExecutor, OffloadingMode
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

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON


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
                assert rejected.reasons[0] == "head: 2 of 2 CPUs free, 5 requested"
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
                await asyncio.to_thread(until, lambda: self.is_gone(decision), 10, "its group is gone")
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
                assert [member.node for member in gang.members].count("head") == 2  # the third finds no room there
                assert len(gang.members) == 3
                for done in (decision, gang):
                    assert await scheduler.complete_task(done.task_id)
                    await asyncio.to_thread(until, lambda done=done: self.is_gone(done), 10, "its group is gone")

        asyncio.run(use())
        assert grid.client.boost_status()["boosts"] == []
        grid.settled()


def where() -> str:
    return str(ray.get(where_am_i.options(num_cpus=0).remote()))  # a child goes where its parent is


def big(function: Callable[..., Any] = where, **more: Any) -> OffloadingRecommendation:
    """Three CPUs for the head, which has two."""
    return OffloadingRecommendation("head", **{"cpu": 3.0, "memory": 0, "function": function} | more)


def nothing_is_left(grid: LiveGrid) -> None:
    until(
        lambda: not [b for b in grid.client.boost_status()["boosts"] if b["purpose"] == "task"], 10, "no task's lease"
    )
    grid.settled()


def _executor(boosts: ResourceBoostManager) -> EnhancedOffloadingExecutor:
    """One that leaves work where it fits, however busy the machine is that all nodes share."""
    return EnhancedOffloadingExecutor(None, None, OffloadingMode.SHARE_AND_OFFLOAD, boosts)


OF_A_PACKAGE = """
import threading

LOCK = threading.Lock()

class Part:
    def __init__(self, size):
        self.size = size

def work(part, more=None):
    with LOCK:
        return f"{__name__} {part.size + more.size}"
"""

WITH_PACKAGES = """
import asyncio, sys
sys.path.append(sys.argv[1])  # as a package that was installed with `pip install -e` has it
import at_the_end, in_front
from distributed_grid import EnhancedOffloadingExecutor

async def main():
    async with EnhancedOffloadingExecutor(mode="offload_only") as executor:
        for module in (at_the_end, in_front):
            task = await executor.submit(module.work, module.Part(1), more=module.Part(2), target="head")
            print(await executor.get_result(task, timeout=60))

asyncio.run(main())
"""


class TestEnhancedOffloadingExecutor:
    """Work that is too big for its node is offloaded, and kept with enough boosts."""

    async def _run(self, executor: EnhancedOffloadingExecutor, what: OffloadingRecommendation) -> dict[str, Any]:
        task_id = await executor.execute_offloading(what)
        result = await executor.get_result(task_id, timeout=60)
        return await executor.get_task_status(task_id) | {"result": result}

    def test_without_a_boost_it_is_offloaded_and_with_one_or_several_it_is_kept(self, grid: LiveGrid) -> None:
        async def use() -> None:
            async with ResourceBoostManager() as boosts, _executor(boosts) as executor:
                away = await self._run(executor, big())
                assert (away["offloaded"], away["result"] in ("one", "two")) == (True, True), away
                small = await self._run(executor, big(cpu=1.0))
                assert (small["kept_on_target"], small["result"]) == (True, "head"), small

                first = await boosts.request_boost(ResourceBoostRequest("head", "cpu", 1))
                await asyncio.to_thread(until, lambda: grid.free("head").get("CPU") == 3.0, 10, "it is seen")
                kept = await self._run(executor, big())
                assert (kept["kept_on_target"], kept["result"]) == (True, "head"), kept["reasons"]
                assert (await self._run(executor, big(cpu=4.0)))["offloaded"]
                second = await boosts.request_boost(ResourceBoostRequest("head", "cpu", 1))
                await asyncio.to_thread(until, lambda: grid.free("head").get("CPU") == 4.0, 10, "it is seen")
                kept = await self._run(executor, big(cpu=4.0))
                assert (kept["kept_on_target"], kept["result"]) == (True, "head"), kept["reasons"]

                for boost in (first, second):
                    assert boost is not None and await boosts.release_boost(boost)

        asyncio.run(use())
        nothing_is_left(grid)

    def test_with_a_memory_boost_it_is_kept(self, grid: LiveGrid) -> None:
        needs = OffloadingRecommendation("head", cpu=1.0, memory=5 * GB // 2, function=where)

        async def use() -> None:
            async with ResourceBoostManager() as boosts, _executor(boosts) as executor:
                waits = await executor.execute_offloading(needs)  # no node has so much at once
                while (await executor.get_task_status(waits))["state"] != "waiting":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                boost = await boosts.request_boost(ResourceBoostRequest("head", "memory", 1))
                # The boost can carry it: it starts by itself.
                assert await executor.get_result(waits, timeout=60) == "head"
                assert (await executor.get_task_status(waits))["kept_on_target"]
                assert boost is not None and await boosts.release_boost(boost)

        asyncio.run(use())
        nothing_is_left(grid)

    def test_no_boost_manager_and_every_kind_of_work(self, grid: LiveGrid, tmp_path: Path) -> None:
        async def slowly(x: int) -> int:
            await asyncio.sleep(0)
            print("from an async function")
            return x + 1

        def fails() -> None:
            raise ValueError("as it should")

        script = tmp_path / "script.py"
        script.write_text("import os, sys; print('in', os.getcwd(), sorted(os.environ)); sys.exit(3)")

        async def use() -> None:
            async with EnhancedOffloadingExecutor(None, None, mode="offload_only") as executor:
                plus = await executor.submit(slowly, 1, target="head")
                assert await executor.get_result(plus, timeout=60) == 2
                assert "from an async function" in await executor.get_logs(plus)
                assert (await executor.get_task_status(plus))["offloaded"]

                wrong = await executor.submit(fails)
                with pytest.raises(ValueError, match="as it should"):
                    await executor.get_result(wrong, timeout=60)

                command = await executor.run_command([str(script)], cwd=str(tmp_path), env=["MINE=here"])
                assert await executor.get_result(command, timeout=60) == 3
                printed = await executor.get_logs(command)
                assert f"in {tmp_path}" in printed
                assert "MINE" in printed and "SECRET_TOKEN" not in printed

                hangs = await executor.run_command(["sleep", "600"])
                while (await executor.get_task_status(hangs))["state"] != "running":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                assert await executor.cancel_task(hangs)
                assert not await executor.cancel_task(hangs)
                states = {task["task_id"]: task["state"] for task in await executor.get_history()}
                assert states == {plus: "done", wrong: "failed", command: "failed", hangs: "cancelled"}
                assert (await executor.get_status())["counts"]["running"] == 0

        asyncio.run(use())
        nothing_is_left(grid)

    def test_functions_of_packages_that_are_not_installed_are_imported_where_they_run(
        self, grid: LiveGrid, tmp_path: Path
    ) -> None:
        """They could not be sent: there is a lock in them. Nodes were started elsewhere, without these folders."""
        for name in ("in_front", "at_the_end", "elsewhere"):
            (tmp_path / name).mkdir()
            (tmp_path / name / f"{name}.py").write_text(OF_A_PACKAGE)
        program = tmp_path / "program.py"
        program.write_text(WITH_PACKAGES)

        done = subprocess.run(
            [sys.executable, str(program), str(tmp_path / "at_the_end")],
            env=grid.env | {"PYTHONPATH": str(tmp_path / "in_front")},
            cwd=tmp_path / "elsewhere",
            capture_output=True,
            text=True,
            timeout=240,
        )

        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["at_the_end 3", "in_front 3"]
        nothing_is_left(grid)

    def test_when_its_node_is_lost_work_starts_again_elsewhere(self, grid: LiveGrid, tmp_path: Path) -> None:
        begun, go = tmp_path / "begun", tmp_path / "go"

        def waits_for(path: str) -> str:
            with Path(begun).open("a") as file:
                file.write(where() + "\n")
            while not Path(path).exists():
                time.sleep(0.02)
            return where()

        async def use() -> None:
            async with EnhancedOffloadingExecutor(mode=OffloadingMode.SHARE_AND_OFFLOAD) as executor:
                task = await executor.execute_offloading(big(waits_for, args=(str(go),)))
                await asyncio.to_thread(until, lambda: begun.exists() and begun.read_text(), 60, "it has begun")
                [lost] = begun.read_text().split()
                await asyncio.to_thread(grid.kill_node, lost)
                go.touch()
                assert await executor.get_result(task, timeout=120) == ({"one", "two"} - {lost}).pop()
                assert (await executor.get_task_status(task))["attempts"] == 2
                await asyncio.to_thread(grid.start_node, lost)

        asyncio.run(use())
        until(lambda: len(grid.live_nodes()) == 3, 60, "all nodes are there again")
        nothing_is_left(grid)
