"""`grid tasks`: what the runs of this machine are, and where they and their work are."""

from pathlib import Path
from typing import Any

import pytest
from click import unstyle
from click.testing import CliRunner

from distributed_grid.cli.app import app
from distributed_grid.run import detached
from distributed_grid.run.records import Run, Runs
from distributed_grid.store.home import GridHome


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GridHome:
    monkeypatch.setenv("GRID_HOME", str(tmp_path))
    return GridHome(tmp_path)


def run(home: GridHome, command: str = "python -c 'print(1)'", isolation: str = "group", **changes: Any) -> Run:
    runs = Runs(home)
    began = runs.begin(command, isolation=isolation, detached=True, label="python -c ...")
    return runs.save(began, **{"state": "running", "source_node": "gpu1", "target_node": "gpu-master"} | changes)


def typed(*words: str, columns: int = 200) -> str:
    done = CliRunner().invoke(app, words, env={"COLUMNS": str(columns)}, catch_exceptions=False)
    return unstyle(done.output)


def test_a_run_is_listed_with_its_command_line_its_process_and_its_lender(home: GridHome) -> None:
    began = run(home)
    header, row = typed("tasks", "ls").splitlines()
    assert header.split("  ")[-1] == "Command"
    assert row.endswith("python -c 'print(1)'")
    assert row.split()[:4] == [began.id, "running", "-", str(began.pid)]
    assert "Local PID  Lender" in header


def test_a_long_command_line_is_cut_to_fit_the_terminal_and_cannot_write_to_it(home: GridHome) -> None:
    run(home, command="echo \x1b[31m" + "x" * 400)
    assert max(map(len, typed("tasks", "ls", columns=100).splitlines())) <= 100
    assert r"echo \x1b[31mxxx" in typed("tasks", "ls", columns=100)


def test_a_run_in_the_background_says_what_it_is_where_it_is_and_how_to_follow_and_end_it(
    home: GridHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Run] = []

    def start(runs: Runs, wanted: object, command: list[str], shown: str, *how: object, **options: object) -> Run:
        started.append(run(home, shown))
        return started[0]

    monkeypatch.setattr(detached, "start", start)
    reported = typed("run", "-d", "--gpus", "1", "--", "python", "-c", "print(1)")

    (began,) = started
    assert reported.splitlines() == [
        f"Run {began.id} is running: python -c 'print(1)'",
        f"  process {began.pid} on this machine; its Ray work runs on gpu1, in a lease for gpu-master",
        f"  grid tasks logs {began.id} --follow     its output",
        f"  grid tasks cancel {began.id}            end it, and give the lease back",
    ]


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({}, "process {pid} on this machine; its Ray work runs on gpu1, in a lease for gpu-master"),
        (
            {"isolation": "cluster"},
            "process {pid} on this machine; its Ray work runs in a private cluster on gpu1, in a lease for gpu-master",
        ),
        (
            {"state": "done", "ended": 2e9},
            "was process {pid} on this machine; its Ray work ran on gpu1, in a lease for gpu-master",
        ),
        ({"source_node": None}, "process {pid} on this machine, without a lease yet"),
    ],
)
def test_a_run_says_where_it_is_and_where_its_work_is(home: GridHome, changes: dict[str, Any], reported: str) -> None:
    began = run(home, **changes)
    assert typed("tasks", "show", began.id).splitlines()[1:3] == [
        f"  {began.command}",
        f"  {reported.format(pid=began.pid)}",
    ]
