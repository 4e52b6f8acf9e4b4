"""A real process, moved to another node of a real cluster."""

import asyncio
import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import ONE_LENDER, LiveGrid, until
from ray._private import state as ray_state

from distributed_grid.client import GridClient
from distributed_grid.errors import CannotMove, GridError
from distributed_grid.execution.on_node_processes.proc import same, stat_of
from distributed_grid.model.offload import OffloadingRecommendation
from distributed_grid.orchestration.enhanced_offloading_executor import EnhancedOffloadingExecutor

pytestmark = pytest.mark.cluster
CONFIG = ONE_LENDER

COUNTS = """
import json, os, sys
from pathlib import Path
numbers = Path("numbers")
begin = len(numbers.read_text().splitlines()) if numbers.exists() else 0
Path(f"environment-{os.getpid()}").write_text(json.dumps(dict(os.environ)))
with numbers.open("a", buffering=1) as file:
    for number in range(begin, 10**9):
        file.write(f"{number} {os.getpid()}\\n")
        print(f"line {number} of {os.getpid()}", flush=True)
        sum(range(300_000))
"""
SAVES = """
import os, signal, time
from pathlib import Path

def on_term(*_):
    Path(f"told-{os.getpid()}").write_text(str(time.time()))
    raise SystemExit(9)

signal.signal(signal.SIGTERM, on_term)
print("ready", flush=True)
while True:
    sum(range(300_000))
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
LISTENS = "import socket; s = socket.create_server(('127.0.0.1', 0)); print('ready', flush=True)\nwhile True: pass"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator["Desk"]:
    with contextlib.closing(Desk(tmp_path)) as desk:
        yield desk


class Desk:
    """Where a person starts programs that go on by themselves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[tuple[int, float]] = []

    def start(self, code: str, **environment: str) -> int:
        """As with nohup and &: its parent is gone at once."""
        script = self.folder / f"program-{len(self._started)}.py"
        script.write_text(code)
        line = f'"{sys.executable}" {script.name} < /dev/null >> log 2>&1 & echo $!'
        env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")} | environment
        said = subprocess.run(["sh", "-c", line], cwd=self.folder, env=env, capture_output=True, text=True, check=True)
        pid = int(said.stdout)
        until(lambda: (self.folder / "log").read_text().strip(), 20, "the program running")
        stat = stat_of(pid)
        assert stat is not None
        self._started.append((pid, stat.created_at))
        return pid

    @contextlib.contextmanager
    def typing(self) -> Iterator[int]:
        """A program in a terminal."""
        keyboard, screen = pty.openpty()
        running = subprocess.Popen(["sleep", "600"], stdin=screen, stdout=screen, stderr=screen, start_new_session=True)
        try:
            yield running.pid
        finally:
            running.kill()
            running.wait()
            os.close(keyboard)
            os.close(screen)

    def numbers(self) -> list[tuple[int, int]]:
        lines = (self.folder / "numbers").read_text().splitlines()
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines if line.count(" ") == 1]

    def environment_of(self, pid: int) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.folder / f"environment-{pid}").read_text())
        return found

    def close(self) -> None:
        for pid, created_at in self._started:
            if same(pid, created_at) is not None:
                os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.state not in "ZX"


def place_of_runner(offload_id: str) -> str:
    """The node that Ray has its actor on."""
    actor = ray.get_actor(f"grid-runner-{offload_id}", namespace="grid")
    return str(ray_state.actors(actor._actor_id.hex())["Address"]["NodeID"])


def runners() -> list[str]:
    return [one["name"] for one in ray.util.list_named_actors(True) if one["name"].startswith("grid-runner")]


def one(grid: LiveGrid, offload_id: str) -> dict[str, Any]:
    return next(o for o in grid.client.offloads()["offloads"] if o["offload_id"] == offload_id)


def test_a_process_moves_and_goes_on_without_its_secrets(grid: LiveGrid, desk: Desk) -> None:
    grid.settled()
    free = grid.free("lender")["CPU"]
    pid = desk.start(COUNTS, DB_PASSWORD="s3cret-1", MY_MODE="fast", API_TOKEN="s3cret-2")

    def candidate() -> dict[str, Any] | None:
        return next((c for c in grid.json("offload", "scan", "head")["candidates"] if c["pid"] == pid), None)

    seen = until(candidate, 20, "the process among those that could move")
    assert all(other["obstacles"] for other in grid.client.offload_candidates("lender")["others"])
    assert (seen["destination"], seen["kind"], seen["obstacles"]) == ("lender", "python", [])
    assert seen["confidence"] > 0.3

    said = grid.cli("offload", "execute", str(pid), "--to", "auto", "--env", "MY_MODE", "--env", "NEW=1")
    assert said.returncode == 0, said.stderr
    moved = grid.client.offloads()["offloads"][0]
    offload_id, there = moved["offload_id"], moved["pid"]

    assert not is_running(pid)
    assert place_of_runner(offload_id) == grid.ids["lender"]
    assert "not copied: API_TOKEN, DB_PASSWORD" in said.stderr
    assert offload_id in said.stdout

    until(lambda: desk.numbers()[-1][1] == there, 20, "numbers from the other node")
    written = desk.numbers()
    assert [number for number, _ in written] == list(range(len(written))), "it goes on where it was, and only once"
    assert [who for _, who in written] == sorted((who for _, who in written), key=[pid, there].index)
    until(lambda: f"of {there}" in (desk.folder / "log").read_text(), 20, "its output going on in its old log")
    assert grid.cli("offload", "log", offload_id[:8]).stdout.startswith("line ")

    has = desk.environment_of(there)
    assert (has["MY_MODE"], has["NEW"], has["PATH"]) == ("fast", "1", os.environ["PATH"])
    assert not {"DB_PASSWORD", "API_TOKEN"} & set(has)

    boost = grid.client.boost(offload_id)
    assert (boost["source_node"], boost["target_node"], boost["purpose"]) == ("lender", "head", "task")
    until(lambda: grid.free("lender")["CPU"] == free - boost["resources"]["cpu"], 10, "its lease taken from the lender")

    ended = grid.json("offload", "cancel", offload_id[:8], "--grace", "5")
    assert (ended["state"], ended["exit_code"]) == ("cancelled", -15)
    until(lambda: grid.state(boost) == "released", 10, "its lease released")
    assert not is_running(there)
    until(
        lambda: not [a for a in ray.util.list_named_actors(True) if a["name"].startswith("grid-runner")], 10, "no actor"
    )
    assert grid.client.offload_log(offload_id)["text"].startswith("line "), "its log is still there"
    reported = grid.home.audit_log.read_text() + json.dumps(grid.client.offloads()) + said.stdout + said.stderr
    assert "s3cret" not in reported


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count who waits")
def test_processes_that_starve_each_other_are_found_and_shown_with_what_they_would_use(
    grid: LiveGrid, desk: Desk
) -> None:
    """Four on one core: none gets half of it, from which a process is worth moving."""
    one_core = min(os.sched_getaffinity(0))
    crowded = f"import os\nos.sched_setaffinity(0, {{{one_core}}})\nprint('ready', flush=True)\nwhile True: pass"
    pids = {desk.start(crowded) for _ in range(4)}

    def found() -> dict[int, dict[str, Any]] | None:
        reported = {one["pid"]: one for one in grid.json("offload", "scan", "head")["candidates"]}
        return reported if pids <= reported.keys() else None

    reported = until(found, 20, "all four among those that could move")

    assert [pid for pid in pids if reported[pid]["cpu"] < 0.5], "four share one core"
    assert all(reported[pid]["cpu_wanted"] >= 0.5 for pid in pids), "and each would use more"


def test_what_cannot_move_is_refused_and_left_alone(grid: LiveGrid, desk: Desk) -> None:
    pid = desk.start(LISTENS)

    refused = grid.cli("offload", "execute", str(pid), "--to", "lender")

    assert refused.returncode == 4
    assert "it has sockets in use: 1 on which it listens [Sockets]" in refused.stderr
    assert is_running(pid)
    with desk.typing() as typed_into, pytest.raises(CannotMove) as terminal:
        grid.client.offload({"pid": typed_into, "to": "lender"})
    assert [line for line in terminal.value.because if "it uses the terminal /dev/pts/" in line]
    assert not grid.client.boost_status()["boosts"]


def test_a_controller_that_starts_again_knows_what_runs_and_sees_it_end(grid: LiveGrid, desk: Desk) -> None:
    pid = desk.start(COUNTS)
    moved = grid.client.offload({"pid": pid, "to": "lender", "cpus": 1, "gpus": 1})["offload"]
    there, before = moved["pid"], grid.controller_pid()
    until(lambda: (desk.folder / f"environment-{there}").exists(), 20, "the process running there")
    assert desk.environment_of(there)["CUDA_VISIBLE_DEVICES"] == "0", "it sees the GPU of its lease"

    os.kill(before, signal.SIGKILL)

    until(lambda: grid.controller_pid() != before, 30, "a new controller")
    found = until(lambda: grid.client.offloads()["offloads"], 20, "the process known again")
    assert [(o["offload_id"], o["state"], o["pid"]) for o in found] == [(moved["offload_id"], "running", there)]
    os.kill(there, signal.SIGKILL)
    until(lambda: one(grid, moved["offload_id"])["state"] == "ended", 20, "its end seen")
    assert one(grid, moved["offload_id"])["exit_code"] == -9
    until(lambda: not grid.client.boost_status()["boosts"], 10, "its lease released")


def test_a_process_that_was_cancelled_before_the_controller_started_again_is_cancelled(
    grid: LiveGrid, desk: Desk
) -> None:
    pid = desk.start(STUBBORN)
    moved = grid.client.offload({"pid": pid, "to": "lender", "cpus": 1, "keep": True})["offload"]
    offload_id, there, before = moved["offload_id"], moved["pid"], grid.controller_pid()
    until(lambda: "ready" in grid.client.offload_log(offload_id)["text"], 20, "the process running there")

    def cancel() -> None:
        with contextlib.closing(GridClient(grid.home, retry_s=0.0)) as hasty, contextlib.suppress(GridError):
            hasty.cancel_offload(offload_id, 300.0)

    asking = threading.Thread(target=cancel)
    asking.start()
    cancelled = f'"offload": "{offload_id}"'
    lines = grid.home.audit_log.read_text
    until(lambda: any("offload_cancelled" in line and cancelled in line for line in lines().splitlines()), 20, "asked")
    time.sleep(1.0)  # its runner is told
    os.kill(before, signal.SIGKILL)
    asking.join(60)

    until(lambda: grid.controller_pid() != before, 30, "a new controller")
    until(lambda: grid.client.offloads()["offloads"], 20, "the process known again")
    assert is_running(there), "it has its grace period"
    os.kill(there, signal.SIGKILL)
    until(lambda: one(grid, offload_id)["state"] == "cancelled", 20, "its end seen")


def test_when_its_lease_ends_so_does_the_process(grid: LiveGrid, desk: Desk) -> None:
    pid = desk.start(COUNTS)
    moved = grid.client.offload({"pid": pid, "to": "lender", "cpus": 1, "keep": True})["offload"]
    assert is_running(pid) and is_running(moved["pid"])

    grid.release(moved["offload_id"], grace_seconds=0)

    until(lambda: not is_running(moved["pid"]), 20, "the process gone with its lease")
    until(lambda: one(grid, moved["offload_id"])["state"] in ("lost", "cancelled"), 20, "that is known")
    assert is_running(pid), "the old one was to be kept"


def test_when_its_lease_is_taken_back_the_process_goes_on_until_the_deadline_and_may_save_its_work(
    grid: LiveGrid, desk: Desk
) -> None:
    pid = desk.start(SAVES)
    moved = grid.client.offload({"pid": pid, "to": "lender", "cpus": 1, "keep": True})["offload"]
    offload_id, there = moved["offload_id"], moved["pid"]
    log = until(lambda: grid.client.offload_log(offload_id)["text"], 20, "the process running there")
    assert "ready" in log

    grid.release(offload_id, grace_seconds=15, wait_seconds=0)
    deadline = grid.client.boost(offload_id)["ending"]["deadline"]

    until(lambda: not is_running(there), 60, "the process gone")
    reported = desk.folder / f"told-{there}"
    assert reported.exists(), "it got SIGTERM and had time to write"
    assert float(reported.read_text()) >= datetime.fromisoformat(deadline).timestamp()
    ended = until(
        lambda: (one(grid, offload_id)["state"] == "cancelled") and one(grid, offload_id), 20, "that is known"
    )
    assert ended["exit_code"] == 9
    until(lambda: not grid.client.boost_status()["boosts"], 20, "its lease is returned")
    assert is_running(pid), "the old one was to be kept"


def test_the_executor_moves_what_it_recommends(grid: LiveGrid, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))
    pid = desk.start(COUNTS)

    async def use() -> None:
        async with EnhancedOffloadingExecutor() as executor:
            found: list[OffloadingRecommendation] = []
            while not found:
                found = [one for one in await executor.recommend("head") if one.process and one.process.pid == pid]
            task_id = await executor.execute_offloading(found[0])
            status = await executor.get_task_status(task_id)
            assert (status["state"], status["offloaded"], status["runs_on"]) == ("running", True, "lender")
            assert await executor.cancel_task(task_id)
            assert (await executor.get_task_status(task_id))["state"] == "cancelled"
            assert not await executor.cancel_task(task_id)
            assert await executor.get_result(task_id, timeout=30) is not None
            assert isinstance(await executor.get_logs(task_id), str)

    asyncio.run(use())
    until(lambda: not grid.client.boost_status()["boosts"], 20, "its lease is returned")
