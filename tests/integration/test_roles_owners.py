"""Who keeps a run, and what becomes of it when that ends: on a real cluster, as Ray tells it."""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import ray
from live_grid import NOTICE_SOON, TWO_LENDERS, LiveGrid, until
from live_roles import grid_is_found  # noqa: F401 - a fixture for all tests here
from role_classes import Teller, small

from distributed_grid.errors import GridError, Unavailable
from distributed_grid.execution.role_records import NAMESPACE, RayKeyValueStore, RoleRecords
from distributed_grid.roles import RoleSpec, Workload, attach, launch
from distributed_grid.roles.supervision import places

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON
FREE_WITHIN_S = 10.0
"""Promised in docs/roles.md."""


def workload(name: str, cls: type = Teller, **more: Any) -> Workload:
    return Workload(name, (small("teller", cls, **more),))


def an_owner() -> Any:
    """An actor that keeps runs, while the driver that made it lives on. Local classes travel: nodes have no tests."""

    class Kept:
        def count(self) -> int:
            return 1

    class Owner:
        def keep(self, home: str, leases: dict[str, bool]) -> int:
            os.environ["GRID_HOME"] = home
            places.LEASE_S = 3600.0  # type: ignore[misc] # what comes free does not come free by expiring
            specs = (RoleSpec("teller", Kept, cpus=0.1),)
            self.runs = [launch(Workload(name, specs), leases=leased) for name, leased in leases.items()]
            return os.getpid()

    return ray.remote(Owner).options(num_cpus=0).remote()


def groups(name: str) -> list[str]:
    found = ray.util.placement_group_table().values()
    return [one["name"] for one in found if one["name"].startswith(f"grid-roles-{name}-") and one["state"] != "REMOVED"]


def leases(grid: LiveGrid, name: str) -> list[str]:
    return [one["boost_id"] for one in grid.client.boost_status()["boosts"] if one["label"] == name]


def actors() -> list[str]:
    found = ray.util.list_named_actors(all_namespaces=True)
    return [one["name"] for one in found if one["namespace"] == NAMESPACE and one["name"].startswith("kept-")]


class SinceKilled:
    """How long ago an owner was killed, against what docs/roles.md promises.

    Meanwhile a thread sleeps: if that takes longer than asked, this machine has no time for anything, and all of grid
    may take as much longer.
    """

    def __init__(self) -> None:
        self._killed, self._slept, self._over = time.monotonic(), 0.0, threading.Event()
        self._thread = threading.Thread(target=self._sleep, daemon=True)
        self._thread.start()

    def _sleep(self) -> None:
        while not self._over.is_set():
            time.sleep(0.05)
            self._slept += 0.05

    def all_is_free(self) -> None:
        took = time.monotonic() - self._killed
        self._over.set()
        self._thread.join()
        slower = max(1.0, (time.monotonic() - self._killed) / self._slept)
        print(f"free {took:.1f} s after its owner was killed; sleeps took {slower:.2f} times as long as asked")
        assert took <= FREE_WITHIN_S * slower


def test_runs_of_an_actor_that_is_gone_are_lost_and_cleared_away_when_they_are_ended(grid: LiveGrid) -> None:
    names = ("kept-a", "kept-b")
    owner = an_owner()  # held, or Ray would end it
    pid = ray.get(owner.keep.remote(str(grid.home.path), {"kept-a": False, "kept-b": True}))

    # One that does not hear is waited for, but not for ever.
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(Unavailable, match="kept-a has not ended") as caught:
        attach("kept-a").shutdown(wait_s=0.1)
    assert f"process {pid} on " in caught.value.because[0]

    os.kill(pid, signal.SIGKILL)
    killed = SinceKilled()
    until(lambda: {grid.client.role_run(name)["state"] for name in names} == {"lost"}, what="all are lost")
    until(lambda: not actors(), what="Ray has ended their actors")
    until(lambda: not leases(grid, "kept-b"), what="the controller has ended the leases of a dead owner")
    until(lambda: not groups("kept-a"), what="the controller has removed its groups, which Ray would with the job")
    killed.all_is_free()
    assert grid.client.role_run("kept-a")["state"] == "lost", "which is still to be seen"
    reported = [event["message"] for event in grid.client.events() if event["event"] == "role_run_cleared"]
    assert reported == ["kept-a: its owner is gone; removed its 1 placement group"]

    attach("kept-a").shutdown()
    with launch(workload("kept-b"), leases=False, wait_s=60) as next_one:
        assert next_one["teller"].call("count") == [1]
        assert len(groups("kept-b")) == 1
    until(lambda: not any(groups(name) or leases(grid, name) for name in names), what="nothing is left of them")
    assert not {*names} & {*RoleRecords.connected().names()}


OWNER = """
import asyncio, sys, time
import ray
import distributed_grid as grid
from distributed_grid.roles import RayResourceManager
from distributed_grid.roles.supervision import places

class Kept:
    def step(self):
        time.sleep(3600)

places.LEASE_S = 3600.0
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")

async def main():
    async with grid.lease(cpus=1, duration=3600, label="kept-lease"):
        manager = RayResourceManager("kept-roles")
        manager.register_role("worker", Kept, None, count=3)
        manager.create_all_actors()
        steps = [one.step.remote() for one in manager.get_actor_wrapper("worker")]
        print("holds", flush=True)
        time.sleep(3600)

asyncio.run(main())
"""


def test_the_capacity_of_a_program_that_was_killed_is_free_within_ten_seconds(grid: LiveGrid) -> None:
    def held() -> list[str]:
        return [boost_id for name in ("kept-lease", "kept-roles") for boost_id in leases(grid, name)]

    def free() -> float:
        return sum(grid.free(name).get("CPU", 0.0) for name in grid.ids)

    grid.settled()
    before = free()
    command = [sys.executable, "-c", OWNER, grid.address]
    with subprocess.Popen(command, env=grid.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None and program.stderr is not None
        assert program.stdout.readline() == "holds\n", program.stderr.read()
        assert len(held()) >= 2
        until(lambda: free() <= before - 4, what="Ray shows that it holds a CPU and three")
        program.kill()
        killed = SinceKilled()

    until(lambda: free() == before, what="Ray has all CPUs free")
    killed.all_is_free()
    until(lambda: not held(), what="its leases have ended")
    reported = [event for event in grid.client.events() if "the process that held it is gone" in str(event)]
    assert reported, "why they ended is told"
    attach("kept-roles").shutdown()


def test_a_run_that_is_being_ended_is_seen_to_be(grid: LiveGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    run = launch(workload("ends", count=(1, 2)), leases=False)
    other = attach("ends")
    give_back, may_go_on = run.parts.places.give_back, threading.Event()
    monkeypatch.setattr(run.parts.places, "give_back", lambda held: may_go_on.wait(60) and give_back(held))
    ending = threading.Thread(target=run.shutdown)
    ending.start()
    try:
        until(lambda: other.status()["state"] == "stopping", what="who is attached sees it")
        assert run.state == "stopping" and not run.wait(0.0)
        assert grid.client.role_run("ends")["state"] == "stopping"
        with pytest.raises(GridError, match="is stopping"):
            other.scale("teller", 2)
    finally:
        may_go_on.set()
        ending.join()

    other.shutdown()
    assert run.state == "ended" and run.wait(0.0) and not groups("ends")


def test_a_run_ends_though_its_record_cannot_be_removed_and_hides_no_error(
    grid: LiveGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object) -> bool:
        raise Unavailable("Ray's control service does not answer")

    with (
        monkeypatch.context() as patch,
        pytest.raises(KeyError, match="mine"),
        launch(workload("untold"), leases=False) as run,
    ):
        patch.setattr(RayKeyValueStore, "remove", silent)
        raise KeyError("mine")

    assert run.wait(0.0) and run.state == "ended" and not groups("untold")
    assert RoleRecords.connected().remove_record("untold")


class ToldLater:
    """Nothing of it is asynchronous but this; and what it answers cannot travel."""

    async def on_peers(self, peers: Any) -> Any:
        self.known = [peer.rank for peer in peers["teller"]]
        return threading.Lock()

    def tell(self) -> list[int]:
        return self.known


def test_only_being_told_of_the_others_may_be_asynchronous(grid: LiveGrid) -> None:
    with launch(workload("told", ToldLater, count=2), leases=False) as run:
        assert run["teller"].call("tell") == [[0, 1], [0, 1]]
