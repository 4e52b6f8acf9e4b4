"""Boosts from two lenders are used like any other: by programs on the target, and in all bundles of a reservation.

So are the places of a gang: each member has a bundle of its own.
"""

import asyncio
import sys
from pathlib import Path

import pytest
import ray
from live_grid import NOTICE_SOON, TWO_LENDERS, LiveGrid, group_of, until
from sharing_cluster import at_the_users_desk  # noqa: F401 - a fixture for all tests here

from distributed_grid.sdk.boosts import ResourceBoost
from distributed_grid.sdk.scheduler import IntelligentScheduler, SchedulingDecision, SchedulingRequest, ray_options

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON

PROGRAM = """
import time

import ray

ray.init(log_to_driver=False)


@ray.remote(num_gpus=1)
def where() -> str:
    time.sleep(2)  # so that the other one has no room here
    return ray.get_runtime_context().get_node_id()


print(" ".join(sorted(ray.get([where.remote(), where.remote()], timeout=60))))
"""


@ray.remote
class Actor:
    def where(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def test_what_two_nodes_lend_is_one_total_on_the_target(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 6)

    assert sorted(part["amount"] for part in boost["parts"]) == [2, 4]
    grid.total_is("head", "CPU", 8)
    given = grid.release(boost, amount=3, wait_seconds=10)
    assert (given["state"], given["amount"]) == ("released", 3)
    grid.total_is("head", "CPU", 5)
    grid.release(boost, wait_seconds=10)
    until(grid.is_at_base, 10, "all capacity is back")


def test_tasks_run_in_every_bundle_of_a_reservation(grid: LiveGrid) -> None:
    boost = grid.boost("head", "gpu", 2)

    assert set(group_of(boost)["bundles_to_node_id"].values()) == {grid.ids["one"], grid.ids["two"]}
    in_boost = ResourceBoost.from_dict(boost).options(num_gpus=1)
    actors = [Actor.options(**in_boost).remote() for _ in range(2)]
    places = ray.get([actor.where.remote() for actor in actors], timeout=60)
    assert set(places) == {grid.ids["one"], grid.ids["two"]}


def test_an_unmodified_program_uses_all_of_a_reservation(grid: LiveGrid, tmp_path: Path) -> None:
    boost = grid.boost("head", "gpu", 2)
    (program := tmp_path / "program.py").write_text(PROGRAM)

    done = grid.cli("boost", "shell", boost["boost_id"], "--", sys.executable, str(program))

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == sorted([grid.ids["one"], grid.ids["two"]])


@ray.remote
def node_here() -> str:
    return str(ray.get_runtime_context().get_node_id())


def runs_where_it_has_its_places(grid: LiveGrid, gang: SchedulingDecision) -> None:
    members = range(len(gang.members))
    found = [node_here.options(**ray_options(gang, member, num_cpus=3)).remote() for member in members]
    assert ray.get(found, timeout=60) == [grid.ids[place.node] for place in gang.members]


def test_each_member_of_a_gang_runs_in_its_own_bundle(grid: LiveGrid) -> None:
    async def use() -> None:
        async with IntelligentScheduler() as scheduler:
            gang = await scheduler.schedule_task(SchedulingRequest(cpu=3, count=2))
            assert {place.node for place in gang.members} == {"one", "two"}
            assert len({place.lease_id for place in gang.members}) == 1
            await asyncio.to_thread(runs_where_it_has_its_places, grid, gang)
            assert await scheduler.complete_task(gang.task_id)

    asyncio.run(use())
    until(grid.is_at_base, 10, "all capacity is back")


def test_a_gang_waits_in_the_queue_until_all_its_members_have_room(grid: LiveGrid) -> None:
    async def use() -> None:
        pairs = [("one", "two"), ("two", "one")]
        ahead = [grid.boost(to, "cpu", 3, source_node=lender, delivery="reserve") for lender, to in pairs]
        async with IntelligentScheduler() as scheduler:
            gang = await scheduler.schedule_task(SchedulingRequest(cpu=3, count=2, wait=True))
            assert gang.queued and gang.position == 1
            await asyncio.to_thread(grid.release, ahead[0], wait_seconds=10)
            assert (await scheduler.get_decision(gang.task_id)).queued, "one member has room, the other has none"
            await asyncio.to_thread(grid.release, ahead[1], wait_seconds=10)
            placed = await asyncio.wait_for(scheduler.wait_for_place(gang.task_id), 30)
            await asyncio.to_thread(runs_where_it_has_its_places, grid, placed)
            assert await scheduler.complete_task(gang.task_id)

    asyncio.run(use())
    until(grid.is_at_base, 10, "all capacity is back")
