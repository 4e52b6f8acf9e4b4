"""Raylets that die, with loans to and from them: what is left returns, and its users learn what happened."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import GRID, NOTICE_SOON, TWO_LENDERS, LiveGrid, group_of, held_still, hold_until, on, until, where_am_i

from distributed_grid.orchestration.resource_boost_manager import ResourceBoost

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON
SETTLED_S = 10


def settles(condition: Callable[[], Any], what: str) -> Any:
    """Once Ray has seen the node come or go."""
    return until(condition, SETTLED_S, what)


@pytest.fixture
def lost(grid: LiveGrid) -> Iterator[str]:
    """A node that the test kills; it is back for the next one."""
    yield "one"
    grid.start_node("one")
    until(lambda: _alive(grid) == {"head", "one", "two"}, what="grid sees all nodes again")
    until(grid.is_at_base, what="every node at base")


def kill(grid: LiveGrid, name: str) -> None:
    grid.kill_node(name)
    until(lambda: name not in grid.live_nodes(), 60, "Ray knows that it is dead")


def _alive(grid: LiveGrid) -> set[str]:
    return {node["name"] for node in grid.client.cluster_status()["nodes"] if node["alive"]}


def is_told(grid: LiveGrid, boost: dict) -> bool:
    return any(event["boost_id"] == boost["boost_id"] and "one" in event["message"] for event in grid.events("lost"))


def test_a_lender_that_dies_takes_its_loan_along(grid: LiveGrid, lost: str) -> None:
    boost = grid.boost("two", "cpu", 2, source_node=lost)
    grid.total_is("two", "CPU", 6.0)

    kill(grid, lost)

    settles(lambda: grid.totals("two") == grid.base["two"], "two has its own CPUs only")
    settles(lambda: grid.state(boost) == "released", "the boost is over")
    assert is_told(grid, boost)


def test_what_uses_a_dead_lenders_loan_is_not_killed_for_it(grid: LiveGrid, lost: str, tmp_path: Path) -> None:
    boost = grid.boost("two", "cpu", 2, source_node=lost, grace_seconds=60)
    end = tmp_path / "end"
    work = hold_until.options(**on("two", num_cpus=6, max_retries=0)).remote(str(end))
    until(lambda: grid.free("two").get("CPU", 0.0) == 0.0, 20, "the work runs")

    kill(grid, lost)

    settles(lambda: grid.state(boost) == "lost", "the boost is lost")
    settles(lambda: any("hold_until" in reported for reported in grid.shown(boost)["warnings"]), "who holds it is told")
    end.touch()
    assert ray.get(work, timeout=60) == "two"
    settles(lambda: grid.totals("two") == grid.base["two"], "two has its own CPUs only")


def test_a_borrower_that_dies_gives_back_what_it_had(grid: LiveGrid, lost: str) -> None:
    boosts = [grid.boost(lost, kind, amount, source_node="two") for kind, amount in (("cpu", 2), ("memory", 1))]
    grid.total_is("two", "CPU", 2.0)

    kill(grid, lost)

    settles(lambda: grid.totals("two") == grid.base["two"], "two has all its own again")
    settles(lambda: all(is_told(grid, boost) for boost in boosts), "it is told")


def test_a_reservation_ends_with_its_lender_and_lasts_without_its_borrower(grid: LiveGrid, lost: str) -> None:
    ends = grid.boost("two", "gpu", 1, source_node=lost)
    lasts = grid.boost(lost, "gpu", 1, source_node="two")

    kill(grid, lost)

    settles(lambda: grid.state(ends) == "released", "the reservation on the dead node is over")
    assert is_told(grid, ends)
    assert grid.state(lasts) == "active"  # its place is alive; its borrower is only a name


def test_a_node_that_comes_back_can_lend_again(grid: LiveGrid) -> None:
    kept = grid.boost("two", "memory", 1, source_node="one", duration_seconds=600)
    kill(grid, "one")
    grid.start_node("one")
    settles(lambda: _alive(grid) == {"head", "one", "two"}, "grid sees it")

    # Back within a moment it keeps its loan, later it has none: either way Ray shows what grid says.
    gib = 2.0**30
    settles(lambda: grid.totals("one").get("memory") == (1 if grid.state(kept) == "active" else 2) * gib, "agreement")
    grid.release_everything()
    boost = grid.boost("two", "cpu", 3, source_node="one")
    grid.total_is("one", "CPU", 1.0)
    grid.total_is("two", "CPU", 7.0)
    grid.release(boost)
    settles(grid.is_at_base, "every node at base")


def test_a_reservation_whose_lender_died_and_came_back_is_made_again(grid: LiveGrid) -> None:
    """Ray would try for ever to place the old group, on a node that will not return."""
    boost = grid.boost("head", "gpu", 1, source_node="one")

    with held_still(grid.controller_pid()):  # else it would end with its lender, if that takes long to come back
        kill(grid, "one")
        grid.start_node("one")
    again = until(lambda: found if (found := grid.shown(boost))["placement_group"] != boost["placement_group"] else {})

    assert (again["boost_id"], again["state"]) == (boost["boost_id"], "active")
    assert set(group_of(again)["bundles_to_node_id"].values()) == {grid.ids["one"]}
    assert group_of(boost)["state"] == "REMOVED"
    in_boost = ResourceBoost.from_dict(again).options(num_gpus=1)
    assert ray.get(where_am_i.options(**in_boost).remote(), timeout=60) == "one"


def test_a_run_whose_node_dies_ends_and_says_so(grid: LiveGrid, lost: str, tmp_path: Path) -> None:
    script, begun = tmp_path / "script.py", tmp_path / "begun"
    script.write_text(
        "import pathlib, sys, time, ray\n"
        "ray.init(logging_level='ERROR', log_to_driver=False)\n"
        "@ray.remote(max_retries=-1)\n"
        "def forever(path):\n"
        "    pathlib.Path(path).touch()\n"
        "    time.sleep(3600)\n"
        "ray.get(forever.remote(sys.argv[1]))\n"
    )
    run = subprocess.Popen(
        [GRID, "run", "--source", lost, "--duration", "6", "--", str(script), str(begun)],
        env=grid.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(begun.exists, 30, "the task runs")

    kill(grid, lost)

    _, reported = run.communicate(timeout=60)
    assert (run.returncode, "the lease is gone" in reported) == (5, True), reported
    until(lambda: not grid.client.boost_status()["boosts"], 10, "no lease is left")
