"""Boosts from two lenders are used like any other: by programs on the target, and in all bundles of a reservation."""

import sys
from pathlib import Path

import pytest
import ray
from live_grid import TWO_LENDERS, LiveGrid, group_of, until

from distributed_grid.sdk.boosts import ResourceBoost

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS

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
