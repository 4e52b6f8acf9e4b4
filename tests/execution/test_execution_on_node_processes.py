"""What is seen of real processes, and how they are ended."""

import contextlib
import os
import pty
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from distributed_grid.decide.offload.movable import obstacles_here, with_gpus
from distributed_grid.decide.offload.recommend import HEAVY_CPU
from distributed_grid.execution.on_node_processes import details
from distributed_grid.execution.on_node_processes.ending import stop
from distributed_grid.execution.on_node_processes.looking import environment, find_here, look_at, scan
from distributed_grid.execution.on_node_processes.proc import same, stat_of
from distributed_grid.execution.processes import elsewhere_from, facts_from
from distributed_grid.model.offload import FileRole, ObstacleCode, ProcessFacts, StreamKind
from distributed_grid.model.resources import GB
from distributed_grid.model.snapshots import GpuProcess, GpuReading

SAYS_SO = "print('ready', flush=True); "
WAITS = "import sys, time; " + SAYS_SO + "time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); " + SAYS_SO + "time.sleep(600)"
PARENT = (
    "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    + SAYS_SO
    + "time.sleep(600)"
)

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a Python program and waits until it says that it is ready."""
    with contextlib.ExitStack() as stack:

        def starting(code: str, **options: Any) -> "subprocess.Popen[bytes]":
            output = tmp_path / f"output-{len(list(tmp_path.iterdir()))}"
            options = {"stdin": subprocess.DEVNULL, "cwd": tmp_path} | options
            with output.open("ab") as file:
                started = subprocess.Popen([sys.executable, "-c", code], **{"stdout": file, "stderr": file} | options)
            stack.callback(started.wait)
            stack.callback(started.kill)
            while b"ready" not in output.read_bytes():
                assert started.poll() is None
            return started

        yield starting


def facts_of(pid: int) -> ProcessFacts:
    (found,) = facts_from("here", look_at(pid))
    return found


def created(pid: int) -> float:
    stat = stat_of(pid)
    assert stat is not None
    return stat.created_at


def test_a_process_is_seen_as_it_is(start: Start, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_text("1, 2, 3")
    code = f"kept = open({str(data)!r}); out = open('result', 'w'); " + WAITS
    running = start(code, env={"PATH": os.environ["PATH"], "MY_TOKEN": "s3cret"})

    found = facts_of(running.pid)

    assert (found.pid, found.cwd, found.uid, found.worker_uid) == (running.pid, str(tmp_path), os.getuid(), os.getuid())
    assert found.command == (sys.executable, "-c", code)
    assert (found.can_be_started, found.terminal, found.listening, found.established) == (True, None, 0, 0)
    assert {"MY_TOKEN", "PATH"} <= set(found.environment)
    assert found.ancestors[0].pid == os.getpid()
    roles = {Path(file.path).name: file.role for file in found.files}
    assert roles["data"] is FileRole.READ
    assert roles["result"] is FileRole.WRITTEN
    assert roles[tmp_path.name] is FileRole.FOLDER
    assert roles[Path(sys.executable).name] is FileRole.PROGRAM
    assert [stream.kind for stream in found.streams] == [StreamKind.NOTHING, StreamKind.FILE, StreamKind.FILE]
    assert "s3cret" not in str(found)


def test_sockets_in_use_are_seen(start: Start) -> None:
    listening = facts_of(start("import socket; s = socket.create_server(('127.0.0.1', 0)); " + WAITS).pid)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connected = facts_of(start(f"import socket; s = socket.create_connection(('127.0.0.1', {port})); " + WAITS).pid)
    own = facts_of(start("import socket; pair = socket.socketpair(); " + WAITS).pid)

    assert (listening.listening, listening.established) == (1, 0)
    assert (connected.listening, connected.established) == (0, 1)
    assert (own.listening, own.established) == (0, 0), "it talks to itself"


def test_a_terminal_and_a_pipe_are_seen(start: Start) -> None:
    theirs, ours = pty.openpty()
    try:
        typed = facts_of(start(WAITS, stdin=ours).pid)
    finally:
        os.close(theirs)
        os.close(ours)
    piped = facts_of(start(WAITS, stdin=subprocess.PIPE).pid)

    assert typed.has_terminal
    assert ObstacleCode.TERMINAL in [found.code for found in obstacles_here(typed)]
    assert piped.streams[0].kind is StreamKind.PIPE


def test_what_a_process_started_counts_with_it(start: Start) -> None:
    running = start(PARENT)

    found = facts_of(running.pid)

    assert (found.children, len(found.family)) == (1, 2)


def test_a_ray_node_is_not_counted_with_the_process_that_started_it(start: Start) -> None:
    named = "import ctypes; ctypes.CDLL(None).prctl(15, b'raylet', 0, 0, 0); "
    node = named + SAYS_SO + "\nwhile True: pass"
    running = start(
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {node!r}]); time.sleep(600)"
    )
    (raylet,) = psutil.Process(running.pid).children()
    try:
        found = facts_of(running.pid)
        device = GpuReading(0, "u", "H200", 1.0, GB, GB, processes=(GpuProcess(raylet.pid, GB),))

        assert (found.holds_ray, found.family, found.children) == (True, (running.pid,), 0)
        assert found.cpu < 0.5
        assert with_gpus(found, [device]).gpus == 0
        assert with_gpus(facts_of(raylet.pid), [device]).gpus == 1
        assert ObstacleCode.RAYS_OWN in [obstacle.code for obstacle in obstacles_here(found)]
        heavy = {one["pid"] for one in scan(True, 0.3, 2**60, os.getpid())["processes"]}
        assert running.pid not in heavy
    finally:
        raylet.kill()


def test_a_busy_process_is_found_and_below_another_raylet_it_is_not(start: Start) -> None:
    running = start(SAYS_SO + "\nwhile True: pass")

    def pids(whole_machine: bool, raylet: int) -> set[int]:
        return {one["pid"] for one in scan(whole_machine, 0.05, 2**60, raylet)["processes"]}

    assert running.pid in pids(True, os.getpid())
    assert running.pid in pids(False, os.getpid())
    assert running.pid not in pids(False, running.pid + 1_000_000), "it is no part of that node"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count who waits")
def test_a_process_that_gets_little_of_a_busy_core_is_judged_by_what_it_would_use(start: Start) -> None:
    one_core = min(os.sched_getaffinity(0))
    crowded = f"import os; os.sched_setaffinity(0, {{{one_core}}})\n" + SAYS_SO + "\nwhile True: pass"
    running = {start(crowded).pid for _ in range(4)}

    reported = {one["pid"]: one for one in scan(True, HEAVY_CPU, 2**60, os.getpid())["processes"]}

    assert running <= reported.keys()
    starved = [pid for pid in running if reported[pid]["cpu"] < HEAVY_CPU]
    assert starved, "four share one core"
    assert all(reported[pid]["cpu_wanted"] >= HEAVY_CPU for pid in running)


def test_a_process_that_is_not_there_is_reported_as_such() -> None:
    assert look_at(2**22 + 1)["processes"] == []


def test_values_are_read_by_name_and_only_of_the_process_that_is_meant(start: Start) -> None:
    running = start(WAITS, env={"A": "1", "B": "2", "EMPTY": ""})

    assert environment(running.pid, created(running.pid), ["A", "EMPTY", "C"]) == {"A": "1", "EMPTY": ""}
    with pytest.raises(ProcessLookupError):
        environment(running.pid, created(running.pid) - 1, ["A"])


def test_what_is_here_is_found(tmp_path: Path) -> None:
    there = elsewhere_from("here", find_here([str(tmp_path), str(tmp_path / "nothing"), sys.executable]))

    assert set(there.files) == {str(tmp_path), sys.executable}
    assert there.files[str(tmp_path)].is_folder
    assert there.files[sys.executable].may_execute
    assert there.uid == os.getuid()


def test_a_process_ends_when_it_is_asked(start: Start) -> None:
    running = start(WAITS)

    assert stop(running.pid, created(running.pid), 60.0) == {"was_there": True, "ended": True, "killed": 0}
    assert running.wait() == -15


def test_one_that_does_not_listen_is_killed_after_its_grace(start: Start) -> None:
    running = start(STUBBORN)

    assert stop(running.pid, created(running.pid), 0.1) == {"was_there": True, "ended": True, "killed": 1}
    assert running.wait() == -9


def test_all_that_it_started_ends_with_it(start: Start) -> None:
    running = start(PARENT)
    family = facts_of(running.pid).family
    children = [(pid, created(pid)) for pid in family if pid != running.pid]

    assert stop(running.pid, created(running.pid), 60.0)["ended"]
    assert [one for one in children if (left := same(*one)) is not None and left.state != "Z"] == []


def test_another_process_with_the_same_number_is_left_alone(start: Start) -> None:
    running = start(WAITS)

    assert not stop(running.pid, created(running.pid) - 5, 1.0)["was_there"]
    assert running.poll() is None


def test_what_the_kernel_makes_at_some_cost_is_read_once_in_a_look(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens = (
        "import multiprocessing, socket, sys, time; "
        "held = socket.create_server(('127.0.0.1', 0)); "
        "children = [multiprocessing.get_context('fork').Process(target=time.sleep, args=[600]) for _ in range(3)]; "
        "[child.start() for child in children]; " + SAYS_SO + "time.sleep(600)"
    )
    parent = start(listens)
    paths: list[str] = []
    read = details.read

    def counted(path: str) -> str:
        paths.append(path)
        return read(path)

    monkeypatch.setattr(details, "read", counted)
    try:
        found = {one["pid"]: one for one in scan(False, 0.0, 0, parent.pid)["processes"]}
    finally:
        for child in psutil.Process(parent.pid).children():
            child.kill()

    assert len(found[parent.pid]["pids"]) == 4 and found[parent.pid]["listening"] == 1
    assert all(len(one["pids"]) == 1 and one["listening"] == 1 for pid, one in found.items() if pid != parent.pid)
    costly = [path for path in paths if path.endswith(("smaps_rollup", "net/tcp", "net/unix"))]
    assert len(costly) == 4 + 1 + 1
