"""An idle GPU lease on a real cluster with real probes is lent on; one that is used is not. Only the driver is not
real."""

import os
import time
from typing import Any

import pytest
import ray
from fake_driver import BUSY, ENV, IDLE_AFTER_S, ONE_GPU, driver, needs_a_compiler, quiet  # noqa: F401 - fixtures, too
from live_grid import LiveGrid, until

from distributed_grid.execution.groups import inside

pytestmark = [pytest.mark.cluster, needs_a_compiler]

CONFIG = ONE_GPU
PATIENCE_S = 90


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
