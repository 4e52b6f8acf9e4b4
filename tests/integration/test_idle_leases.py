"""An idle GPU lease on a real cluster with real probes is lent on; one that is used is not. Only the driver is not
real."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from fake_driver import BUSY, ENV, IDLE_AFTER_S, ONE_GPU, driver, needs_a_compiler, quiet  # noqa: F401 - fixtures, too
from live_grid import GRID, LiveGrid, until

from distributed_grid.execution.groups import inside

pytestmark = [pytest.mark.cluster, needs_a_compiler]

CONFIG = ONE_GPU
PATIENCE_S = 90


@pytest.fixture(autouse=True)
def _none_waits(request: pytest.FixtureRequest) -> Iterator[None]:
    """A request that waits would get what the test before gives back."""
    yield
    grid = request.getfixturevalue("grid")  # only now: the cluster starts after its driver was made
    for waiting in grid.client.queue()["requests"]:
        grid.client.release_allocation(waiting["request_id"])
    grid.release_everything()


@ray.remote
class Holder:
    """Holds a GPU; uses CPU time only when called."""

    def work(self, seconds: float) -> int:
        """Takes a quarter of a core: enough by far to be no idle process, and it leaves the rest to other tests."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            while time.monotonic() < now + 0.02:
                pass
            time.sleep(0.06)
        return os.getpid()


def holder_in(boost: dict[str, Any]) -> Any:
    place = inside(boost["placement_group"])
    actor = Holder.options(num_gpus=1, num_cpus=0, scheduling_strategy=place).remote()  # type: ignore[attr-defined]
    ray.get(actor.work.remote(0.0), timeout=PATIENCE_S)
    return actor


def test_an_idle_gpu_is_lent_on_and_one_that_computes_is_not(grid: LiveGrid) -> None:
    held = grid.boost("head", "gpu", 1, priority="critical", wait_seconds=PATIENCE_S)
    BUSY.touch()
    actor = holder_in(held)
    waiting = grid.cli("resource-sharing", "request", "head", "gpu", "1", "--priority", "low")
    assert waiting.returncode == 0, waiting.stderr

    time.sleep(2 * IDLE_AFTER_S)
    assert grid.shown(held)["idle_since"] is None, "the device computes"
    assert ray.get(actor.work.remote(0.0), timeout=PATIENCE_S)

    BUSY.unlink()
    until(lambda: grid.events("idle"), PATIENCE_S, "its device and its process were quiet for long enough")
    until(lambda: grid.state(held) == "released", PATIENCE_S, "it was taken back")

    (lent,) = until(
        lambda: [b for b in grid.client.boost_status()["boosts"] if b["state"] == "active"],
        PATIENCE_S,
        "it was lent on",
    )
    assert (lent["priority"], lent["resource_type"], lent["source_node"]) == ("low", "gpu", "one")
    reclaimed = grid.events("reclaim_asked")[-1]
    assert reclaimed["details"]["ending"]["cause"] == "idle"


def test_work_that_starts_in_time_keeps_the_lease_of_an_actor_that_was_idle(grid: LiveGrid) -> None:
    held = grid.boost("head", "gpu", 1, grace_seconds=20, wait_seconds=PATIENCE_S)
    actor = holder_in(held)
    until(lambda: grid.shown(held)["idle_since"], PATIENCE_S, "it is idle")
    assert "idle: its work has not used it since" in " ".join(grid.cli("boost", "status").stdout.split())
    asked = grid.cli("resource-sharing", "request", "head", "gpu", "1", "--priority", "low")
    assert asked.returncode == 0, asked.stderr
    until(lambda: grid.shown(held)["notice"], PATIENCE_S, "it is being reclaimed")

    working = actor.work.remote(30.0)

    until(lambda: grid.shown(held)["notice"] is None, PATIENCE_S, "the notice was withdrawn")
    assert ray.get(working, timeout=PATIENCE_S)
    assert grid.state(held) == "active"
    assert grid.events("reclaim_withdrawn")


def test_an_idle_transfer_gives_up_only_what_the_waiting_request_needs(grid: LiveGrid) -> None:
    held = grid.boost("head", "cpu", 3, source_node="one", priority="critical", wait_seconds=PATIENCE_S)
    until(lambda: grid.shown(held)["idle_since"], PATIENCE_S, "its target uses nothing of it")

    asked = grid.boost("head", "cpu", 2, source_node="one", priority="low", wait_seconds=PATIENCE_S)

    assert (grid.shown(held)["amount"], grid.state(held)) == (2, "active")
    assert (asked["amount"], grid.state(asked)) == (2, "active")
    grid.total_is("one", "CPU", 0)
    grid.total_is("head", "CPU", 6)


# A program that holds the GPU with an actor. It computes while its first argument exists, and waits otherwise.
PROGRAM = """
import os, sys, time
import ray

ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote(num_gpus=1, num_cpus=0)
class Holder:
    def ready(self):
        return True

holder = Holder.remote()
ray.get(holder.ready.remote())
print("began", flush=True)
is_idle = False
while True:
    if os.path.exists(os.environ["GRID_IDLE_FILE"]) is not is_idle:
        is_idle = not is_idle
        print("idle" if is_idle else "in use", flush=True)
    if not os.path.exists(sys.argv[1]):
        time.sleep(0.2)
"""


class Programs:
    """Programs in `grid run`, each with a GPU and a file that makes it compute."""

    def __init__(self, grid: LiveGrid, folder: Path) -> None:
        self._grid, self._folder = grid, folder
        self.work = folder / "work"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *options: str) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        """Once it runs: `grid run`, and its lease."""
        run = self._started("run", "--gpus", "1", "--priority", "critical", *options, "--", str(self._script()))
        (lease,) = [b for b in self._grid.client.boost_status()["boosts"] if b["purpose"] == "run"]
        return run, lease

    def start_in(self, boost: dict[str, Any]) -> subprocess.Popen[str]:
        """The same as a command in the shell of a boost."""
        return self._started("boost", "shell", boost["boost_id"], "--", sys.executable, str(self._script()))

    def _script(self) -> Path:
        script = self._folder / "program.py"
        script.write_text(PROGRAM)
        return script

    def _started(self, *words: str) -> subprocess.Popen[str]:
        command = [GRID, *words, str(self.work)]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        run = subprocess.Popen(command, env=self._grid.env, text=True, **pipes)  # type: ignore[call-overload]
        self.started.append(run)
        assert run.stdout.readline() == "began\n", run.communicate()[1]
        return run

    def end(self) -> None:
        for run in self.started:
            below = psutil.Process(run.pid).children(recursive=True) if run.poll() is None else []
            run.terminate()
            for process in below:  # a command in a shell is not ended with it
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.terminate()
            run.communicate(timeout=PATIENCE_S)


@pytest.fixture
def programs(grid: LiveGrid, tmp_path: Path) -> Iterator[Programs]:
    made = Programs(grid, tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("isolation", ["group", "cluster"])
def test_a_run_that_leaves_its_gpu_idle_is_reported_then_lent_on_after_its_notice(
    grid: LiveGrid, programs: Programs, isolation: str
) -> None:
    run, held = programs.start("--grace", "6", "--isolation", isolation)
    until(lambda: grid.shown(held)["idle_since"], PATIENCE_S, "its program, its actor and its device were quiet")
    assert grid.shown(held)["notice"] is None
    assert run.stdout.readline() == "idle\n", "its program hears of it"
    assert "1 lease of a running program (1 idle)" in grid.cli("boost", "status").stdout
    assert "idle: its work has not used it since" in " ".join(grid.cli("boost", "status", "--all").stdout.split())

    asked = grid.cli("resource-sharing", "request", "head", "gpu", "1", "--priority", "low")
    assert asked.returncode == 0, asked.stderr
    noticed = until(lambda: grid.shown(held)["notice"] and grid.shown(held), PATIENCE_S, "it is being reclaimed")
    assert (noticed["ending"]["cause"], noticed["state"]) == ("idle", "active")
    assert run.poll() is None

    said = run.communicate(timeout=PATIENCE_S)[1]
    assert run.returncode == 5, said
    assert said.count("is idle: its work has not used it since") == 1
    assert "and for longer if it uses it again by then" in said
    (lent,) = until(
        lambda: [b for b in grid.client.boost_status()["boosts"] if b["state"] == "active"], PATIENCE_S, "it is lent on"
    )
    assert (lent["priority"], lent["resource_type"], lent["source_node"]) == ("low", "gpu", "one")


def test_a_run_that_computes_keeps_the_gpu_that_it_leaves_idle(grid: LiveGrid, programs: Programs) -> None:
    programs.work.touch()
    run, held = programs.start("--grace", "20")
    asked = grid.cli("resource-sharing", "request", "head", "gpu", "1", "--priority", "low")
    assert asked.returncode == 0, asked.stderr
    time.sleep(2 * IDLE_AFTER_S)
    assert grid.shown(held)["idle_since"] is None, "its program computes"

    programs.work.unlink()
    until(lambda: grid.shown(held)["notice"], PATIENCE_S, "it waits, and is idle")
    programs.work.touch()
    until(lambda: grid.shown(held)["notice"] is None, PATIENCE_S, "it computes again, and the notice is withdrawn")
    assert grid.state(held) == "active"
    assert run.poll() is None


def test_a_command_in_the_shell_of_a_boost_counts_by_its_cpu_time(grid: LiveGrid, programs: Programs) -> None:
    held = grid.boost("head", "gpu", 1, wait_seconds=PATIENCE_S)
    command = programs.start_in(held)
    until(lambda: grid.shown(held)["idle_since"], PATIENCE_S, "it waits")
    assert command.stdout.readline() == "idle\n", "its program hears of it"

    programs.work.touch()
    until(lambda: grid.shown(held)["idle_since"] is None, PATIENCE_S, "it computes")
    assert command.stdout.readline() == "in use\n"


BLOCK = """
import asyncio, sys
import distributed_grid as grid

async def main():
    def hears(idle):
        print("idle", idle.resource_type, idle.amount, flush=True)
        return True

    async with (
        grid.ResourceBoostManager() as boosts,
        grid.lease(gpus=1, idle_after=sys.argv[1], on_idle=hears, manager=boosts) as lease,
    ):
        print("began", lease.id, flush=True)
        while (await boosts.get_boost(lease.id)).is_active:
            await asyncio.sleep(0.2)
    print("ended", flush=True)

asyncio.run(main())
"""


def test_a_block_that_waits_is_told_that_its_lease_is_idle_and_gives_it_up(grid: LiveGrid, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(BLOCK)
    command = [sys.executable, str(script), str(IDLE_AFTER_S)]
    with subprocess.Popen(command, env=grid.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as block:
        out, errors = block.communicate(timeout=PATIENCE_S)
    assert re.fullmatch(r"began \S+\nidle gpu 1(\.0)?\nended\n", out), (out, errors)
    assert [event["boost_id"] for event in grid.events("idle")][-1] == out.split()[1]


def test_a_run_that_says_that_it_is_never_idle_is_not_reported(grid: LiveGrid, programs: Programs) -> None:
    _, held = programs.start("--idle-after", "never")
    time.sleep(2 * IDLE_AFTER_S)
    assert grid.shown(held)["idle_since"] is None
