"""grid roles up, status, scale, down as a person types and reads them: the real controller, records of a test."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from role_runs import a_member, a_role, a_run
from served_grid import ServedGrid

from distributed_grid.cli.columns import Canvas
from distributed_grid.cli.role_runs_view import ranks, run_view, runs_view

GRID = str(Path(sys.executable).with_name("grid"))
NOW = "2099-01-01T10:00:00+00:00"


@pytest.fixture(scope="module")
def one_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    served = ServedGrid(tmp_path_factory.mktemp("served"))
    yield served
    served.close()


@pytest.fixture
def served(one_for_all: ServedGrid) -> Iterator[ServedGrid]:
    one_for_all.role_records.write_record(a_run())
    yield one_for_all
    one_for_all.store.kept.clear()
    one_for_all.store.dead.clear()


def typed(served: ServedGrid, *words: str, code: int = 0, cwd: Path | None = None) -> tuple[str, str]:
    env = {**os.environ, "GRID_HOME": str(served.home.path), "COLUMNS": "100"}
    done = subprocess.run(
        [GRID, "roles", *words], env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


@contextmanager
def owner(served: ServedGrid, obey: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Iterator[None]:
    """The owner of the run: takes commands to it, and writes what `obey` makes of them."""
    done = threading.Event()

    def listen() -> None:
        while not done.wait(0.02):
            command = served.role_records.take_command("run-1")
            if command is not None and (record := obey(command)) is not None:
                served.role_records.write_record(record)

    thread = threading.Thread(target=listen)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def workers(wanted: int, up: int | None = None, **others: Any) -> dict[str, Any]:
    up = wanted if up is None else up
    role = a_role("rollout_worker", 2, 4, up=up) | {"wanted": wanted}
    return a_run(roles=[role], members=[a_member("rollout_worker", rank) for rank in range(up)], **others)


# -- status --------------------------------------------------------------------------------------------------


def test_all_runs_are_listed_with_what_is_to_be_said_of_them(served: ServedGrid) -> None:
    served.role_records.write_record(a_run("older", "failed", began_at="2020-01-01T10:00:00+00:00", why="no more GPUs"))

    lines = typed(served, "status")[0].splitlines()

    assert lines[0].split() == ["Name", "State", "Up", "Workload", "Owner", "Began"]
    assert lines[1].split()[:5] == ["run-1", "running", "3", "of", "3"]
    assert lines[2].split()[:2] == ["older", "failed"]
    assert lines[-1] == "older: no more GPUs"
    assert [run["name"] for run in json.loads(typed(served, "status", "--json")[0])["runs"]] == ["run-1", "older"]


def test_without_runs_it_says_how_to_start_one(served: ServedGrid) -> None:
    served.store.kept.clear()

    assert typed(served, "status")[0] == "No runs of roles.\nTo start one:  grid roles up FILE\n"


def test_one_run_shows_every_member(served: ServedGrid) -> None:
    served.role_records.write_record(a_run(events=[{"at": NOW, "message": "rollout_worker 1 died; it restarts"}]))

    lines = typed(served, "status", "run-1")[0].splitlines()

    assert lines[0].startswith("run-1  running   3 of 3 members up   workload rl   since ")
    assert lines[-10:-1] == [
        "trainer         1 of 1          1         0  1 CPU, 1 GPU",
        "rollout_worker  2 of 2     2 to 4         0  1 CPU",
        "",
        "Role            Rank  Node  GPUs  State  Restarts  Running  Queue",
        "trainer            0  a     0     up            0        0      0",
        "rollout_worker     0  b     -     up            0        0      0",
        "rollout_worker     1  c     -     up            1        1      3",
        "",
        "Last:",
    ]
    assert lines[-1].endswith("rollout_worker 1 died; it restarts")
    assert json.loads(typed(served, "status", "run-1", "--json")[0])["members"] == a_run()["members"]


def test_a_run_whose_owner_is_gone_is_shown_as_lost(served: ServedGrid) -> None:
    served.store.dead.add("worker-of-run-1")

    shown = typed(served, "status", "run-1")[0]

    assert shown.startswith("run-1  lost   0 of 3 members up")
    assert "the process that owned it, 4711 on a, is gone; Ray ended its actors" in shown


def test_a_name_that_no_run_has_is_not_found(served: ServedGrid) -> None:
    assert "No run of roles has the name 'nobody'" in typed(served, "status", "nobody", code=3)[1]


# -- how it looks --------------------------------------------------------------------------------------------


def big(count: int) -> dict[str, Any]:
    def worker(rank: int) -> dict[str, Any]:
        state, why = ("restarting", "it died: no such environment") if rank == 3 else ("up", "")
        return a_member("rollout_worker", rank, f"node-{rank % (count // 4)}", queue=1, state=state, why=why)

    trainers = [a_member("trainer", rank, f"gpu{rank}", gpus=[0, 1]) for rank in range(2)]
    roles = [a_role("trainer", 2, pool="gpu_pool"), a_role("rollout_worker", count, count * 2, scaling="queue above 4")]
    return a_run(roles=roles, members=[*trainers, *map(worker, range(count))], why="1 member is away")


def plain(shown: str) -> list[str]:
    return click.unstyle(shown).splitlines()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("count", [8, 60, 1000])
def test_no_line_is_longer_than_the_terminal_and_the_screen_holds_it(count: int, width: int) -> None:
    lines = plain(run_view(big(count), Canvas(width)))

    assert [line for line in lines if len(line) > width] == []
    assert len(lines) < 60
    assert any("rollout_worker 3: it died: no such environment" in line for line in lines)


def test_members_that_are_alike_are_one_line_with_their_sums() -> None:
    lines = plain(run_view(big(60), Canvas()))

    assert "rollout_worker  0, 15, 30, 45   node-0   -     up                 0        0      4" in lines
    assert "Equal members share a line, with their sums; to see each: --all" in lines
    many = plain(run_view(big(1000), Canvas()))
    assert any("0-2, 4-999" in line and "250 nodes" in line and line.endswith("999") for line in many)


def test_each_member_has_its_line_where_that_is_asked_for() -> None:
    assert len(run_view(big(60), Canvas(), each=True).splitlines()) > 62


@pytest.mark.parametrize(
    ("numbers", "reported"), [([0], "0"), ([0, 1, 2], "0-2"), ([5, 1, 0, 3], "0-1, 3, 5"), ([], "")]
)
def test_ranks_are_reported_as_spans(numbers: list[int], reported: str) -> None:
    assert ranks(numbers) == reported


def test_the_list_fits_a_narrow_terminal() -> None:
    run = a_run("a-name-of-some-length-for-a-run") | {"up": 60, "wanted": 60}

    assert max(map(len, plain(runs_view({"runs": [run]}, Canvas(80))))) <= 80


# -- scale and down ------------------------------------------------------------------------------------------


def test_scaling_is_back_when_it_is_so(served: ServedGrid) -> None:
    with owner(served, lambda command: workers(command["counts"]["rollout_worker"])):
        shown, _ = typed(served, "scale", "run-1", "rollout_worker", "4")

    assert shown == "run-1: 4 rollout_worker members are up.\n"


def test_scaling_without_waiting_only_asks(served: ServedGrid) -> None:
    assert typed(served, "scale", "run-1", "rollout_worker", "4", "--no-wait")[0] == (
        "run-1: 4 rollout_worker members requested.\n"
    )
    assert "requested, but not yet read by the run: scale rollout_worker to 4" in typed(served, "status", "run-1")[0]


def test_a_role_that_does_not_get_there_is_an_error_that_says_how_far_it_came(served: ServedGrid) -> None:
    with owner(served, lambda _: workers(4, up=3, state="degraded", why="no node has 1 CPU free")):
        _, said = typed(served, "scale", "run-1", "rollout_worker", "4", "--wait", "4", code=4)

    assert "rollout_worker of run-1 does not have 4 members after 4 s" in said
    assert "rollout_worker: 3 of 4 up" in said and "no node has 1 CPU free" in said


def test_a_run_that_fails_meanwhile_ends_the_wait(served: ServedGrid) -> None:
    with owner(served, lambda _: workers(4, up=3, state="failed", why="its budget is spent")):
        _, said = typed(served, "scale", "run-1", "rollout_worker", "4", code=4)

    assert "The run run-1 is failed" in said and "its budget is spent" in said


@pytest.mark.parametrize(("role", "count", "code"), [("rollout_worker", "9", 2), ("nobody", "1", 3)])
def test_what_cannot_be_is_refused_at_once(served: ServedGrid, role: str, count: str, code: int) -> None:
    typed(served, "scale", "run-1", role, count, code=code)


def test_down_is_back_when_it_is_gone_and_forgotten(served: ServedGrid) -> None:
    with owner(served, lambda command: a_run(state="ended") if command["down"] else None):
        shown, _ = typed(served, "down", "run-1")

    assert shown == "run-1 is down.\n"
    assert served.store.kept == {}


def test_down_of_a_lost_run_forgets_it(served: ServedGrid) -> None:
    served.store.dead.add("worker-of-run-1")

    assert typed(served, "down", "run-1")[0] == "run-1 was already lost; its record is removed.\n"
    assert served.store.kept == {}


def test_an_owner_that_does_not_hear_is_named(served: ServedGrid) -> None:
    _, said = typed(served, "down", "run-1", "--wait", "0.5", code=5)

    assert "The run run-1 has not ended after 0.5 s" in said
    assert "kill 4711" in said


# -- up: what is refused before anything starts --------------------------------------------------------------


def test_a_role_without_a_class_is_named(served: ServedGrid, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("roles: {a: {class: 'm:A'}, b: {}, c: {}}\n")

    _, said = typed(served, "up", "w.yaml", cwd=tmp_path, code=2)

    assert "w.yaml gives no class for b, c" in said


def test_a_name_that_a_living_run_has_is_refused(served: ServedGrid, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("name: run-1\nroles: {a: {class: 'm:A'}}\n")

    _, said = typed(served, "up", "w.yaml", cwd=tmp_path, code=4)

    assert "A run named run-1 already exists and is running" in said and "--name" in said


@pytest.mark.parametrize("how", [(), ("--foreground",)])
def test_why_the_keeper_cannot_start_comes_back_with_its_exit_code(
    served: ServedGrid, tmp_path: Path, how: tuple[str, ...]
) -> None:
    """Here: the controller is real, but no Ray is where it says."""
    (tmp_path / "w.yaml").write_text("roles: {a: {class: 'm:A'}}\n")

    shown, said = typed(served, "up", "w.yaml", "--name", "mine", *how, cwd=tmp_path, code=5)

    assert shown == ""
    assert said.count("No Ray cluster answers at 127.0.0.1:1") == 1
    if not how:
        log, _ = typed(served, "logs", "mine")
        assert "No Ray cluster answers at 127.0.0.1:1" in log
        assert (served.home.roles / "mine" / "output.log").stat().st_mode & 0o777 == 0o600


def test_there_is_no_output_of_a_run_that_was_started_elsewhere(served: ServedGrid) -> None:
    assert "This machine has no output of a run named 'run-1'" in typed(served, "logs", "run-1", code=3)[1]
