"""A controller that is killed and finds its files in disorder: it is back, its loans end on time, and it tells why."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from faulty_files import replaced
from live_grid import LiveGrid, until

pytestmark = pytest.mark.cluster

CONFIG = """
name: comeback
embedded: true
resource_sharing: {enabled: true, mode: share_and_offload, grace_seconds: 1, thresholds: {excess_threshold: 0}}
nodes:
- {name: head, role: master, cpu_count: 2, memory_gb: 2, resource_sharing: {can_share: false}}
- {name: lender, cpu_count: 4, memory_gb: 2}
"""
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


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGrid]:
    grid = LiveGrid(tmp_path_factory.mktemp("comeback"), CONFIG)
    grid.start()
    yield grid
    grid.stop()


def problems(live: LiveGrid) -> str:
    return " ".join(live.client.boost_status()["problems"])


def test_with_a_folder_for_its_boosts_and_endless_brackets_for_the_queue_it_is_back_and_ends_its_loan(
    live: LiveGrid,
) -> None:
    loan = live.boost("head", "cpu", 1, duration_seconds=10)
    live.total_is("head", "CPU", 3.0)
    kept = live.home.boosts.rename(live.folder / "kept.json")
    live.home.boosts.mkdir()
    live.home.sharing.write_bytes(b"[" * 100_000)
    os.kill(pid := live.controller_pid(), signal.SIGKILL)

    until(lambda: live.controller_pid() != pid, 60, "another controller")
    until(lambda: "resource_boosts.json: Is a directory" in problems(live), 30, "the problem in the status")
    assert "Is a directory" in live.cli("cluster", "status").stdout
    assert "Is a directory" in live.cli("boost", "status").stdout
    until(lambda: live.state(loan) == "released", 30, "the loan's end")
    until(live.is_at_base, 30, "every node at base")

    live.home.boosts.rmdir()
    kept.rename(live.home.boosts)
    until(lambda: not problems(live), 30, "nothing told any more")
    assert not live.client.boost_status()["boosts"]
    live.release(live.boost("head", "cpu", 1))


def test_a_lock_that_another_process_holds_is_waited_for_and_told_of(live: LiveGrid) -> None:
    loan = live.boost("head", "cpu", 1, duration_seconds=10)
    command = [sys.executable, "-c", HOLD_THE_LOCK, str(live.home.lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        os.kill(pid := live.controller_pid(), signal.SIGKILL)
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        until(lambda: live.controller_pid() != pid, 60, "another controller")
        until(lambda: "already runs grid" in problems(live), 30, "the problem in the status")
        refused = live.cli("boost", "request", "head", "cpu", "1")
        assert refused.returncode == 5
        assert "has not started yet" in refused.stderr
        holder.kill()

    until(lambda: not problems(live), 30, "nothing told any more")
    until(lambda: live.state(loan) == "released", 30, "the loan's end")
    until(live.is_at_base, 30, "every node at base")


def test_a_controller_that_ray_has_given_up_is_put_in_again_by_the_clusters_supervisor(live: LiveGrid) -> None:
    import ray

    loan = live.boost("head", "cpu", 1, duration_seconds=10)
    pid = live.controller_pid()
    ray.kill(ray.get_actor("grid-controller", namespace="grid"), no_restart=True)

    until(lambda: live.controller_pid() != pid, 90, "another controller")
    until(lambda: live.state(loan) == "released", 30, "the loan's end")
    until(live.is_at_base, 30, "every node at base")


@pytest.mark.parametrize("content", [None, b"[" * 100_000], ids=["missing", "deep"])
def test_the_supervisor_goes_on_whatever_becomes_of_the_clusters_record(live: LiveGrid, content: bytes | None) -> None:
    import ray

    with replaced(live.home.cluster, lambda path: None if content is None else path.write_bytes(content)):
        loan = live.boost("head", "cpu", 1, duration_seconds=10)
        pid = live.controller_pid()
        time.sleep(5.0)  # it looks every second or so, and used to end at the first look
        ray.kill(ray.get_actor("grid-controller", namespace="grid"), no_restart=True)

        until(lambda: live.controller_pid() != pid, 90, "another controller")
        until(lambda: live.state(loan) == "released", 30, "the loan's end")
        until(live.is_at_base, 30, "every node at base")


def test_a_port_that_is_taken_is_an_error_before_anything_starts(live: LiveGrid, tmp_path: Path) -> None:
    import json

    port = json.loads(live.home.controller.read_text())["url"].rpartition(":")[2]
    other = LiveGrid(tmp_path, CONFIG)

    done = other.cli("cluster", "start", "--config", str(other.config), "--port", port)

    assert done.returncode == 5
    assert f"Port {port}" in done.stderr and "--port" in done.stderr
    assert not other.home.cluster.exists()


def test_what_watches_the_controller_is_replaced_if_it_dies_and_ends_with_the_cluster(live: LiveGrid) -> None:
    def supervisors() -> list[psutil.Process]:
        return [
            p
            for p in psutil.process_iter(["cmdline"])
            if "distributed_grid.cluster.supervise" in (p.info["cmdline"] or [])
            and p.environ().get("GRID_HOME") == str(live.home.path)
        ]

    (first,) = supervisors()
    again = live.cli("cluster", "start", "--config", str(live.config))
    assert (again.returncode, "already running" in again.stderr) == (5, True)
    assert "supervisor" not in again.stderr
    first.kill()
    until(lambda: not supervisors(), 20, "no supervisor")
    again = live.cli("cluster", "start", "--config", str(live.config))
    assert (again.returncode, "already running" in again.stderr) == (5, True)
    assert "its supervisor was gone, and was started again" in again.stderr
    assert len(supervisors()) == 1 and supervisors() != [first]
    live.stop()
    until(lambda: not supervisors(), 20, "no supervisor")
