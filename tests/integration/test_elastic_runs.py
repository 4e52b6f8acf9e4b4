"""Elastic leases on a real cluster: Ray starts work on what they grow by, and none is lost when they shrink."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray._private.state as ray_state
from live_grid import GRID, NOTICE_SOON, TWO_LENDERS, LiveGrid, until, where_am_i
from placed_programs import PLACES

import distributed_grid

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON

# Forty tasks always wait, many more than there is room for. What the program sees goes into a file.
SWEEP = (
    PLACES
    + """
import json, os, time

connect()

@ray.remote(num_cpus=1, max_retries=-1)
def step(number):
    time.sleep(0.2)
    return number, here()[0]

submitted, waiting, results, seen = 0, [], [], {"nodes": [], "capacity": []}
while waiting or not os.path.exists("stop"):
    while len(waiting) < 40 and not os.path.exists("stop"):
        waiting.append(step.remote(submitted))
        submitted += 1
    done, waiting = ray.wait(waiting, num_returns=min(10, len(waiting)), timeout=0.2)
    results += ray.get(done)
    seen["nodes"] = sorted({node for _, node in results[-40:]})
    with open(os.environ["GRID_CAPACITY_FILE"]) as file:
        capacity = json.load(file)["capacity"].get("cpu", 0)
    if seen["capacity"][-1:] != [capacity]:
        seen["capacity"].append(capacity)
    with open("seen.new", "w") as file:
        json.dump(seen, file)
    os.replace("seen.new", "seen.json")
numbers = [number for number, _ in results]
print(json.dumps({"all": sorted(numbers) == list(range(submitted)), "count": len(numbers)}))
"""
)


@pytest.fixture(autouse=True)
def nothing_is_left(grid: LiveGrid) -> Iterator[None]:
    yield
    until(grid.is_at_base, what="the lease is back, and all nodes have what they had")


class Sweep:
    """A running `grid run --cpus RANGE`."""

    def __init__(self, grid: LiveGrid, folder: Path, cpus: str) -> None:
        self.grid, self.folder = grid, folder
        (folder / "sweep.py").write_text(SWEEP)
        lenders = ("--source", "one", "--source", "two")
        command = [str(GRID), "run", "--cpus", cpus, *lenders, "--", "sweep.py"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=folder, env=grid.env, stdout=pipe, stderr=pipe, text=True)
        self.lease = until(self._lease, 60, "the run has its lease")["boost_id"]

    def _lease(self) -> dict[str, Any] | None:
        boosts = self.grid.client.boost_status()["boosts"]
        return next((one for one in boosts if one["purpose"] == "run" and one["state"] == "active"), None)

    @property
    def cpus(self) -> float:
        return self.grid.client.boost(self.lease)["capacity"].get("cpu", 0)

    def seen(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "seen.json").read_text())
        except FileNotFoundError:
            return {"nodes": [], "capacity": []}

    def ended(self) -> dict[str, Any]:
        """What it printed; all its tasks are done. Ray may print last, when it runs a task again."""
        (self.folder / "stop").touch()
        out, errors = self.process.communicate(timeout=200)
        assert self.process.returncode == 0, errors + out
        (found,) = (line for line in out.splitlines() if line.startswith('{"all"'))
        return json.loads(found)


def extension(grid: LiveGrid, name: str) -> float:
    """The CPUs that groups have on a node beside their bundles, as Ray shows it."""
    totals = ray_state.total_resources_per_node()[grid.ids[name]]
    return sum(amount for key, amount in totals.items() if key.startswith("CPU_group_9999_"))


def test_a_run_grows_when_another_ends_and_shrinks_for_a_request_and_no_task_is_lost(
    grid: LiveGrid, tmp_path: Path
) -> None:
    other = grid.boost("head", "cpu", 4, source_node="two", delivery="reserve")
    sweep = Sweep(grid, tmp_path, "2..8")
    until(lambda: sweep.cpus == 4, 60, "it has what is idle")
    assert grid.client.boost(sweep.lease)["source_node"] == "one"
    grid.release(other)

    until(lambda: sweep.cpus == 8, 60, "it grows when the other lease has ended")
    until(lambda: sweep.seen()["nodes"] == ["one", "two"], 60, "tasks that waited run on what it grew by")
    assert extension(grid, "one") + extension(grid, "two") == 6

    urgent = grid.boost("head", "cpu", 3, delivery="reserve", priority="high", wait_seconds=60)
    assert urgent["state"] == "active"
    until(lambda: sweep.cpus == 5, 60, "it has shrunk by what the request needed")
    ran_on = ray.get(where_am_i.options(**_in(urgent)).remote(), timeout=60)
    assert ran_on in ("one", "two"), "the request really has its CPUs"
    until(lambda: {8, 5} <= set(sweep.seen()["capacity"]), 60, "the program has seen both")
    grid.release(urgent)
    until(lambda: sweep.cpus == 8, 60, "it grows again")

    found = sweep.ended()
    assert found["all"] and found["count"] > 40
    assert grid.events("grew") and grid.events("shrank")


def _in(boost: dict[str, Any]) -> dict[str, Any]:
    from distributed_grid.sdk.boosts import ResourceBoost

    return ResourceBoost.from_dict(boost).options(num_cpus=1)  # type: ignore[arg-type]


def test_a_controller_that_is_killed_finds_the_growth_again_and_takes_it_back(grid: LiveGrid, tmp_path: Path) -> None:
    sweep = Sweep(grid, tmp_path, "1..6")
    until(lambda: sweep.cpus == 6, 60, "it has grown")
    os.kill(pid := grid.controller_pid(), signal.SIGKILL)
    until(lambda: grid.controller_pid() != pid, 60, "another controller")
    until(lambda: sweep.cpus == 6, 60, "it has the same again")
    assert extension(grid, "one") + extension(grid, "two") == 5
    assert sweep.ended()["all"]


def test_a_limit_without_a_reservation_uses_what_is_idle_and_stops_no_request(grid: LiveGrid, tmp_path: Path) -> None:
    full = [grid.boost("head", "cpu", 4, source_node=name, delivery="reserve") for name in ("one", "two")]
    sweep = Sweep(grid, tmp_path, "..6")
    assert sweep.cpus == 0, "it has begun, and waits"
    grid.release(full.pop())
    until(lambda: sweep.cpus == 4, 60, "it has what is idle")
    until(lambda: sweep.seen()["nodes"] == ["two"], 60, "its tasks run there")
    assert grid.boost("head", "cpu", 4, delivery="reserve", priority="low", wait_seconds=60)["state"] == "active"
    assert sweep.cpus == 0
    for boost in full:
        grid.release(boost)
    assert sweep.ended()["all"]


def test_a_program_sees_the_capacity_of_its_lease_and_uses_it(grid: LiveGrid) -> None:
    seen: list[float] = []

    async def use() -> list[str]:
        manager = distributed_grid.ResourceBoostManager(str(grid.config))
        async with distributed_grid.lease(
            cpus="2..4", source="two", manager=manager, on_capacity=lambda capacity: seen.append(capacity["cpu"])
        ) as lease:
            while lease.capacity["cpu"] < 4:  # noqa: ASYNC110 - what the program would look at
                await asyncio.sleep(0.1)
            two = where_am_i.options(**lease.boost.options(num_cpus=2))
            return ray.get([two.remote() for _ in range(2)], timeout=60)

    os.environ["GRID_HOME"] = str(grid.home.path)
    try:
        nodes = asyncio.run(asyncio.wait_for(use(), 120))
    finally:
        del os.environ["GRID_HOME"]
    assert seen[-1] == 4
    assert nodes == ["two", "two"]
