"""Runs are remembered, and one whose process is gone without a word is lost."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from distributed_grid.errors import RunNotFound
from distributed_grid.run.records import Runs
from distributed_grid.store.home import GridHome


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(GridHome(tmp_path))


def test_a_run_is_found_by_the_beginning_of_its_id(runs: Runs) -> None:
    run = runs.begin("train.py", isolation="group", detached=False)
    other = runs.begin("other.py", isolation="cluster", detached=True)
    assert runs.find(run.id[:10]) == run
    assert {found.id for found in runs.all()} == {run.id, other.id}
    for wrong in ("nothing", ""):
        with pytest.raises(RunNotFound):
            runs.find(wrong)


def test_how_it_ended_is_kept(runs: Runs) -> None:
    run = runs.begin("train.py", isolation="group", detached=False)
    ended = runs.save(run, state="failed", exit_code=3, ended=run.began + 5, messages=("outside the lease: f",))
    assert runs.find(run.id) == ended
    shown = ended.shown()
    assert (shown["task_id"], shown["state"], shown["exit_code"], shown["seconds"]) == (run.id, "failed", 3, 5)
    assert shown["began_at"].endswith("Z")


def test_one_whose_process_is_gone_is_lost_even_if_another_has_its_number_by_now(runs: Runs) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    run = runs.begin("train.py", isolation="group", detached=True)
    runs.save(run, state="running", pid=done.pid)
    assert runs.find(run.id).state == "lost"
    runs.save(run, state="running", pid_since=psutil.Process().create_time() - 100)
    assert runs.find(run.id).state == "lost"
    runs.save(run, state="running")
    assert runs.find(run.id).state == "running"


def test_what_is_not_a_record_is_passed_over(runs: Runs, tmp_path: Path) -> None:
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"id": "c"}')):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(text)
    assert runs.all() == []
