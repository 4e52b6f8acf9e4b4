"""A controller that is killed and finds its files in disorder: it is back, its loans end on time, and it tells why."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faulty_files import replaced
from live_grid import ONE_LENDER, LiveGrid, until

pytestmark = pytest.mark.cluster

CONFIG = ONE_LENDER
CHANGES_ITS_CLUSTER = True

HOLD_THE_LOCK = """
import sys, time
from pathlib import Path
from distributed_grid.store.writer_lock import WriterLock
lock = WriterLock(Path(sys.argv[1]))
while not lock.held:
    try:
        lock.acquire()
    except Exception:
        time.sleep(0.001)
print("held", flush=True)
sys.stdin.read()
"""


def problems(grid: LiveGrid) -> str:
    return " ".join(grid.client.boost_status()["problems"])


def test_with_a_folder_for_its_boosts_and_endless_brackets_for_the_queue_it_is_back_and_ends_its_loan(
    grid: LiveGrid,
) -> None:
    loan = grid.boost("head", "cpu", 1, duration_seconds=10)
    grid.total_is("head", "CPU", 3.0)
    kept = grid.home.boosts.rename(grid.folder / "kept.json")
    grid.home.boosts.mkdir()
    grid.home.sharing.write_bytes(b"[" * 100_000)
    os.kill(pid := grid.controller_pid(), signal.SIGKILL)

    until(lambda: grid.controller_pid() != pid, 60, "another controller")
    until(lambda: "resource_boosts.json: Is a directory" in problems(grid), 30, "the problem in the status")
    assert "Is a directory" in grid.cli("cluster", "status").stdout
    assert "Is a directory" in grid.cli("boost", "status").stdout
    until(lambda: grid.state(loan) == "released", 30, "the loan's end")
    until(grid.is_at_base, 30, "every node at base")

    grid.home.boosts.rmdir()
    kept.rename(grid.home.boosts)
    until(lambda: not problems(grid), 30, "nothing told any more")
    assert not grid.client.boost_status()["boosts"]
    grid.release(grid.boost("head", "cpu", 1))


def test_a_lock_that_another_process_holds_is_waited_for_and_told_of(grid: LiveGrid) -> None:
    loan = grid.boost("head", "cpu", 1, duration_seconds=10)
    command = [sys.executable, "-c", HOLD_THE_LOCK, str(grid.home.lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        os.kill(pid := grid.controller_pid(), signal.SIGKILL)
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        until(lambda: grid.controller_pid() != pid, 60, "another controller")
        until(lambda: "already runs grid" in problems(grid), 30, "the problem in the status")
        refused = grid.cli("boost", "request", "head", "cpu", "1")
        assert refused.returncode == 5
        assert "has not started yet" in refused.stderr
        holder.kill()

    until(lambda: not problems(grid), 30, "nothing told any more")
    until(lambda: grid.state(loan) == "released", 30, "the loan's end")
    until(grid.is_at_base, 30, "every node at base")


def test_a_controller_that_ray_has_given_up_is_put_in_again_by_the_clusters_supervisor(grid: LiveGrid) -> None:
    import ray

    loan = grid.boost("head", "cpu", 1, duration_seconds=10)
    pid = grid.controller_pid()
    ray.kill(ray.get_actor("grid-controller", namespace="grid"), no_restart=True)

    until(lambda: grid.controller_pid() != pid, 90, "another controller")
    until(lambda: grid.state(loan) == "released", 30, "the loan's end")
    until(grid.is_at_base, 30, "every node at base")


@pytest.mark.parametrize("content", [None, b"[" * 100_000], ids=["missing", "deep"])
def test_the_supervisor_goes_on_whatever_becomes_of_the_clusters_record(grid: LiveGrid, content: bytes | None) -> None:
    import ray

    with replaced(grid.home.cluster, lambda path: None if content is None else path.write_bytes(content)):
        loan = grid.boost("head", "cpu", 1, duration_seconds=10)
        pid = grid.controller_pid()
        time.sleep(5.0)  # it looks every second or so, and used to end at the first look
        ray.kill(ray.get_actor("grid-controller", namespace="grid"), no_restart=True)

        until(lambda: grid.controller_pid() != pid, 90, "another controller")
        until(lambda: grid.state(loan) == "released", 30, "the loan's end")
        until(grid.is_at_base, 30, "every node at base")


def test_a_port_that_is_taken_is_an_error_before_anything_starts(grid: LiveGrid, tmp_path: Path) -> None:
    import json

    port = json.loads(grid.home.controller.read_text())["url"].rpartition(":")[2]
    other = LiveGrid(tmp_path, CONFIG)

    done = other.cli("cluster", "start", "--config", str(other.config), "--port", port)

    assert done.returncode == 5
    assert f"Port {port}" in done.stderr and "--port" in done.stderr
    assert not other.home.cluster.exists()


def test_what_watches_the_controller_is_replaced_if_it_dies(grid: LiveGrid) -> None:
    (first,) = grid.supervisors()
    again = grid.cli("cluster", "start", "--config", str(grid.config))
    assert (again.returncode, "already running" in again.stderr) == (5, True)
    assert "supervisor" not in again.stderr
    first.kill()
    until(lambda: not grid.supervisors(), 20, "no supervisor")
    again = grid.cli("cluster", "start", "--config", str(grid.config))
    assert (again.returncode, "already running" in again.stderr) == (5, True)
    assert "the supervisor was not running and has been restarted" in again.stderr
    assert len(grid.supervisors()) == 1 and grid.supervisors() != [first]
