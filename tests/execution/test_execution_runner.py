"""A command that runs on a node: started once, followed, ended; nothing of it outlives its owner."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_grid import until
from ray import cloudpickle

from distributed_grid.execution.on_node_processes.proc import same, stat_of
from distributed_grid.execution.on_node_runner import ENDED, FAILED, PREPARED, Runner, read_piece

Make = Callable[..., Runner]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A runner that has a Python program to run."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made: list[Runner] = []

    def making(code: str, **order: Any) -> Runner:
        runner = Runner(f"run-{len(made)}", {"command": "shown"})
        made.append(runner)
        given = order.pop("given", {})
        copied = order.pop("env", {"PATH": os.environ["PATH"]})
        plain = {"command": [sys.executable, "-c", code], "cwd": str(tmp_path), "stdin": None, "stderr": None}
        runner.prepare(plain | order, copied, given)
        return runner

    yield making
    for runner in made:
        runner.end(0.0, 60.0)


def text_of(runner: Runner) -> str:
    return str(runner.read(0)["text"])


def is_there(pid: int, created_at: float) -> bool:
    found = same(pid, created_at)
    return found is not None and found.state != "Z"


def test_it_runs_when_it_is_told_and_tells_how_it_ended(make: Make) -> None:
    runner = make("print('hello'); raise SystemExit(7)")
    runner.note({"stopping": True})
    assert runner.about()["stopping"]
    assert runner.about()["state"] == PREPARED

    runner.go()

    until(lambda: runner.about()["state"] == ENDED)
    assert runner.about()["exit_code"] == 7
    assert text_of(runner) == "hello\n"
    assert runner.about()["command"] == "shown"


def test_told_twice_it_runs_once(make: Make, tmp_path: Path) -> None:
    runner = make("open('times', 'a').write('x')")

    runner.go()
    runner.go()

    until(lambda: runner.about()["state"] == ENDED)
    runner.go()
    assert (tmp_path / "times").read_text() == "x"


def test_it_has_the_environment_that_it_was_given_and_nothing_else(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    runner = make(
        "import json, os; print(json.dumps(dict(os.environ)))",
        env={"A": "copied", "B": "copied", "CUDA_VISIBLE_DEVICES": "0"},
        given={"B": "given"},
    )

    runner.go()

    until(lambda: runner.about()["state"] == ENDED)
    seen = json.loads(text_of(runner))
    assert {name: seen[name] for name in ("A", "B", "CUDA_VISIBLE_DEVICES")} == {
        "A": "copied",
        "B": "given",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    assert "OF_THE_WORKER" not in seen


def test_its_output_goes_on_in_a_file_that_is_there(make: Make, tmp_path: Path) -> None:
    log = tmp_path / "old.log"
    log.write_text("before\n")
    runner = make("print('after')", stdout=str(log))

    runner.go()

    until(lambda: runner.about()["state"] == ENDED)
    assert log.read_text() == "before\nafter\n"
    assert text_of(runner) == "after\n"


def test_what_cannot_be_started_says_why(make: Make) -> None:
    runner = make("", command=["/nowhere/at/all"])

    said = runner.go()

    assert said["state"] == FAILED
    assert "/nowhere/at/all" in said["why"]


def test_it_is_ended_gently_and_then_not(make: Make) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    gentle, hard = make("print('ready', flush=True); import time; time.sleep(600)"), make(stubborn)
    for runner in (gentle, hard):
        runner.go()
        until(lambda runner=runner: "ready" in text_of(runner))

    assert gentle.end(60.0, 60.0)["exit_code"] == -15
    assert hard.end(0.1, 60.0)["exit_code"] == -9


def test_one_that_was_never_started_can_be_given_up(make: Make) -> None:
    runner = make("print('never')")

    assert runner.end(0.0, 60.0)["state"] == FAILED
    runner.go()
    assert text_of(runner) == ""


def test_what_a_command_leaves_behind_ends_with_it(make: Make, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        "start_new_session=True); print(left.pid, flush=True)"
    )
    runner = make(code)

    runner.go()

    until(lambda: runner.about()["state"] == ENDED)
    assert stat_of(int(text_of(runner))) is None


def test_when_its_runner_is_killed_nothing_is_left(tmp_path: Path) -> None:
    """The actor dies as Ray's workers do, without a word."""
    program = (
        "import sys, time; from ray import cloudpickle; runner = cloudpickle.load(sys.stdin.buffer)(); "
        "print(runner.go()['pid'], flush=True); time.sleep(600)"
    )

    def run() -> Runner:
        runner = Runner("killed", {})
        code = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"
        order = {"command": [sys.executable, "-c", code], "cwd": "/", "stdin": None, "stderr": None}
        runner.prepare(order, dict(os.environ), {})
        return runner

    actor = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert actor.stdin is not None and actor.stdout is not None
    actor.stdin.write(cloudpickle.dumps(run))
    actor.stdin.close()
    pid = int(actor.stdout.readline())
    stat = stat_of(pid)
    assert stat is not None

    actor.kill()
    actor.wait()
    actor.stdout.close()

    until(lambda: not is_there(pid, stat.created_at))


def test_a_log_is_read_in_pieces_that_end_between_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed_grid.execution.on_node_runner.LARGEST_PIECE", 4)
    log = tmp_path / "log"
    log.write_text("....aäöü\n")

    pieces, begin = [], 0
    while (piece := read_piece(str(log), 4, begin))["text"]:
        pieces.append(piece["text"])
        begin = piece["next"]

    assert "".join(pieces) == "aäöü\n"
    assert read_piece(str(tmp_path / "none"), 0, 5) == {"text": "", "next": 5, "more": False}
