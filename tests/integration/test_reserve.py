"""Reserve: a placement group on the lender, for the borrower's work alone."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from builders import lease
from live_grid import BIG_AND_SMALL, LiveGrid, group_of, held_still, is_pending, until, where_am_i
from ray.util.placement_group import placement_group, remove_placement_group

from distributed_grid.errors import InvalidAmount, NoCapacity
from distributed_grid.execution import groups
from distributed_grid.execution.groups import ask, listed
from distributed_grid.execution.port import Mechanism
from distributed_grid.execution.ray_cluster import RayCluster
from distributed_grid.model.leases import Delivery
from distributed_grid.orchestration.resource_boost_manager import ResourceBoost

pytestmark = pytest.mark.cluster

CONFIG = BIG_AND_SMALL


@ray.remote(max_retries=3)
def sleepy(began: str) -> str:
    Path(began, str(os.getpid())).touch()
    time.sleep(300)
    return "done"


def test_the_group_is_on_the_lender_and_a_default_gpu_task_runs_in_it(grid: LiveGrid) -> None:
    boost = grid.boost("head", "gpu", 1)

    assert boost["delivery"] == "reserve"
    assert set(group_of(boost)["bundles_to_node_id"].values()) == {grid.ids["lender"]}
    assert group_of(boost)["bundles"] == {0: {"GPU": 1.0, "CPU": 1.0}}
    in_boost = ResourceBoost.from_dict(boost).options(num_gpus=1)
    assert ray.get(where_am_i.options(**in_boost).remote(), timeout=60) == "lender"
    assert grid.is_at_base()  # a reservation moves no totals


def test_only_its_holders_can_use_it(grid: LiveGrid) -> None:
    boost = grid.boost("head", "gpu", 1)

    outsider = where_am_i.options(num_gpus=1).remote()

    assert is_pending(outsider, 0.5)
    grid.release(boost)
    assert ray.get(outsider, timeout=60) == "lender"


def test_one_gpu_is_lent_once(grid: LiveGrid) -> None:
    grid.settled()
    grid.boost("head", "gpu", 1)

    with pytest.raises(NoCapacity) as refused:
        grid.boost("head", "gpu", 1)

    assert any("1 of at most 1 GPU lent, 1 requested" in line for line in refused.value.because)
    with pytest.raises(InvalidAmount):
        grid.boost("head", "gpu", 0.5)


def test_actors_and_nested_tasks_run_there_in_one_line(grid: LiveGrid) -> None:
    boost = ResourceBoost.from_dict(grid.boost("head", "cpu", 2, delivery="reserve"))

    @ray.remote
    class Counter:
        def where(self) -> str:
            return ray.get(where_am_i.remote())

    counter = Counter.options(**boost.options(num_cpus=1)).remote()

    assert ray.get(counter.where.remote(), timeout=60) == "lender"
    assert boost.placement_group is not None
    ray.kill(counter)


def test_release_of_an_empty_boost_is_done_at_once(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1, delivery="reserve")

    assert grid.release(boost, wait_seconds=20)["state"] == "released"

    until(lambda: group_of(boost)["state"] == "REMOVED", 5)
    grid.settled()


def test_release_waits_for_the_grace_period_then_cancels_what_is_left_and_nothing_hangs(
    grid: LiveGrid, tmp_path: Path
) -> None:
    grid.settled()
    boost = grid.boost("head", "cpu", 2, delivery="reserve")
    options = ResourceBoost.from_dict(boost).options(num_cpus=1)
    tasks = [sleepy.options(**options).remote(str(tmp_path)) for _ in range(5)]  # two run, three wait
    until(lambda: len([*tmp_path.iterdir()]) == 2, 20, "both running")

    releasing = grid.release(boost, grace_seconds=60, wait_seconds=0.2)

    assert releasing["state"] == "releasing"
    assert "terminated in" in releasing["warnings"][-1]
    assert "holds 1 CPU;" in releasing["warnings"][-1]  # of the reservation
    assert not ray.wait(tasks, timeout=0.3)[0]
    grid.release(boost, grace_seconds=1, wait_seconds=0)
    until(lambda: grid.state(boost) == "released", 15)
    for task in tasks:  # each ends with an error that says so; none hangs
        with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.TaskPlacementGroupRemoved)):
            ray.get(task, timeout=60)
    assert group_of(boost)["state"] == "REMOVED"
    grid.settled()


SCRIPT = """
import ray
ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote
def outer():
    return [me(), ray.get(inner.remote())]

@ray.remote
def inner():
    return me()

@ray.remote
class Actor:
    def where(self):
        return me()

def me():
    node = ray.get_runtime_context().get_node_id()
    return next(n["Labels"]["grid/name"] for n in ray.nodes() if n["NodeID"] == node)

actor = Actor.remote()
print(ray.get(outer.remote()), ray.get(actor.where.remote()))
"""


def test_an_unmodified_script_in_the_shell_runs_on_the_borrowed_node(grid: LiveGrid, tmp_path) -> None:
    boost = grid.boost("head", "cpu", 3, delivery="reserve")
    script = tmp_path / "unmodified.py"
    script.write_text(SCRIPT)

    done = grid.cli("boost", "shell", boost["boost_id"][:8], "--", sys.executable, str(script))

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['lender', 'lender'] lender"


def test_the_shell_passes_on_exit_codes_and_input(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1, delivery="reserve")

    assert grid.cli("boost", "shell", boost["boost_id"], "--", "sh", "-c", "exit 7").returncode == 7
    until(lambda: any("ended with 7" in event["message"] for event in grid.events("ran")), 5)
    shell = subprocess.run(
        [grid_command(), "boost", "shell", boost["boost_id"]],
        input="echo in $GRID_BOOST\n",
        env=grid.env | {"SHELL": "/bin/sh"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert f"in {boost['boost_id']}" in shell.stdout
    missing = grid.cli("boost", "shell", boost["boost_id"], "--", "no-such-command-here")
    assert (missing.returncode, "Traceback" in missing.stderr) == (2, False)


def test_a_transfer_has_no_shell_and_says_what_to_do(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1)

    done = grid.cli("boost", "shell", boost["boost_id"], "--", "true")

    assert done.returncode == 4
    assert "RAY_ADDRESS=" in done.stderr


def test_auto_reserves_where_the_hardware_cannot_carry_more(grid: LiveGrid) -> None:
    """The head offers two CPUs; what its machine has is known once it was measured."""
    wanted = "transfer" if len(os.sched_getaffinity(0)) > 2 else "reserve"

    def is_as_wanted() -> bool:
        boost = grid.boost("head", "cpu", 1, delivery="auto")
        grid.release(boost)
        return bool(boost["delivery"] == wanted)

    until(is_as_wanted, 20)


@pytest.fixture
def quiet(grid: LiveGrid) -> Iterator[None]:
    """The controller holds still: it would remove groups that bear grid's names and are no boost's."""
    with held_still(grid.controller_pid()):
        yield


def test_groups_are_known_without_reading_the_list_of_all_that_ever_were(
    grid: LiveGrid, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reservations = RayCluster(grid.address).mechanisms[Delivery.RESERVE]
    assert not reservations.there()
    monkeypatch.setattr(groups, "listed", lambda _: pytest.fail("the list was read again"))

    # Groups of other programs, one with another name and one with a name like grid's; and one of our own.
    others = [placement_group([{"CPU": 1}], name=name) for name in ("other", "grid-boost-nobodys")]
    assert all(group.wait(10) for group in others)
    ours = reservations.make(lease("known", delivery=Delivery.RESERVE), [grid.ids["lender"]], 5)

    assert ours in {group.id for group in reservations.there()}  # though the nodes may not show it yet
    until(lambda: {group.name for group in reservations.there()} == {"grid-boost-known", "grid-boost-nobodys"}, 5)
    assert set(reservations.there()) == set(listed(grid.address))
    # Once the nodes show them, what is known is not asked for.
    until(lambda: not requested(reservations, monkeypatch), 5)
    assert {group.id for group in reservations.there()} == {ours, others[1].id.hex()}

    reservations.remove(ours)
    assert ours not in {group.id for group in reservations.there()}  # though the nodes may still show it
    for group in others:
        remove_placement_group(group)
    until(lambda: not reservations.there(), 5)
    grid.settled()


def test_a_group_that_waits_for_room_is_found_by_a_close_look(grid: LiveGrid, quiet: None) -> None:
    reservations = RayCluster(grid.address).mechanisms[Delivery.RESERVE]
    assert not reservations.there()
    waiting = placement_group([{"CPU": 64}], name="grid-boost-of-nobody")

    assert not reservations.there()
    found = reservations.there(afresh=True)
    assert [(group.name, group.stands) for group in found] == [("grid-boost-of-nobody", False)]
    assert [group.name for group in reservations.there()] == ["grid-boost-of-nobody"]
    remove_placement_group(waiting)
    until(lambda: not reservations.there(), 5)


def requested(reservations: Mechanism, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups that one look asks Ray about."""
    asked: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(groups, "ask", lambda address, group_id: asked.append(group_id) or ask(address, group_id))
        reservations.there()
    return asked


def grid_command() -> str:
    from live_grid import GRID

    return GRID
