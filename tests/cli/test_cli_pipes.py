"""What a program reads through a pipe: every table has all of its columns, whatever is in it, and nothing is cut."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from builders import process
from role_runs import a_member, a_role, a_run
from served_grid import ServedGrid

from distributed_grid.cli.columns import Canvas
from distributed_grid.cli.findings import findings_view
from distributed_grid.cli.role_runs_view import run_view
from distributed_grid.cli.roles_view import plan_view
from distributed_grid.model.findings import Code, ok
from distributed_grid.run.records import Runs

GRID = str(Path(sys.executable).with_name("grid"))
PIPE = Canvas()
CPU = {"target_node": "a", "source_node": "b", "resource_type": "cpu", "amount": 1}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGrid]:
    found = ServedGrid(tmp_path)
    yield found
    found.close()


def piped(grid: ServedGrid, *words: str) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [GRID, *words],
        env=env | {"GRID_HOME": str(grid.home.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def fields(line: str) -> list[str]:
    """Columns are at least two spaces apart."""
    return [field for field in line.split("  ") if field]


def table(lines: list[str], first: str) -> list[list[str]]:
    """The heading that begins with this word, and the rows below it."""
    start = next(number for number, line in enumerate(lines) if line.split()[:1] == [first])
    end = next((number for number, line in enumerate(lines) if number > start and not line), len(lines))
    return [[field.strip() for field in fields(line)] for line in lines[start:end]]


def viewed(shown: str, first: str) -> list[list[str]]:
    return table(click.unstyle(shown).splitlines(), first)


def test_boosts_have_the_same_columns_with_and_without_labels(served: ServedGrid) -> None:
    served.client.request_boost(CPU)
    without = table(piped(served, "boost", "status"), "ID")
    served.client.request_boost({**CPU, "label": "nightly run"})
    with_labels = table(piped(served, "boost", "status"), "ID")

    assert with_labels[0] == without[0] and "For" in without[0]
    place = without[0].index("For")
    assert [row[place] for row in (without[1], *with_labels[1:])] == ["-", "-", "nightly run"]
    assert {len(row) for row in with_labels} == {len(without[0])}


def test_a_run_without_a_lease_or_an_end_has_as_many_fields_as_any_other(served: ServedGrid) -> None:
    runs = Runs(served.home)
    started = runs.begin("sleep 9", isolation="group", detached=True, label="sleep")
    done = runs.begin("python train.py", isolation="group", detached=True, label="python")
    runs.save(done, state="done", source_node="gpu1", target_node="a", exit_code=0, ended=done.began + 1)

    heading, *rows = table(piped(served, "tasks", "ls"), "ID")

    assert {len(row) for row in rows} == {len(heading)}
    found = {row[0]: dict(zip(heading, row, strict=True)) for row in rows}
    assert (found[started.id]["Exit"], found[started.id]["Lender"]) == ("-", "-")
    assert (found[done.id]["Exit"], found[done.id]["Lender"]) == ("0", "gpu1")


def test_a_long_command_is_whole_where_processes_are_listed(served: ServedGrid) -> None:
    command = ("/usr/bin/python3", "train.py", "--data", "x" * 100)
    here = next(raylet.node_id for raylet in served.cluster.raylets() if raylet.labels["grid/name"] == "a")
    served.control.add(here, process(4711, "a", command=command, cpu=3.9, environment=("HOME",)), HOME="/")
    served.control.add(here, process(815, "a", command=command, listening=1, cpu=1.0))

    lines = piped(served, "offload", "scan", "--all")
    movable, others = (row for row in lines if " ".join(command) in row)

    assert movable.split()[0] == "4711" and others.split()[0] == "815"
    moved = served.client.offload({"pid": 4711, "to": "b"})["offload"]
    assert moved is not None and len(moved["label"]) > 60
    assert moved["label"] in table(piped(served, "offload", "status"), "ID")[1]


def test_roles_of_a_run_have_the_same_columns_whatever_they_say() -> None:
    plain = viewed(run_view(a_run(), PIPE), "Role")
    more = a_role("trainer", 1, pool="gpus", colocation_group="training", scaling="queue")

    assert viewed(run_view(a_run(roles=[more]), PIPE), "Role")[0] == plain[0]
    assert plain[0][-3:] == ["Pool", "Colocated", "Scales by"]
    assert plain[1][-3:] == ["-", "-", "-"]
    assert "Pool" not in click.unstyle(run_view(a_run(), Canvas(200)))


def test_members_have_the_same_columns_whether_or_not_they_share_lines() -> None:
    few, many = (a_run(members=[a_member("worker", rank) for rank in range(count)]) for count in (2, 30))
    few_lines, many_lines = (run_view(run, PIPE).partition("Scales by")[2] for run in (few, many))

    assert viewed(few_lines, "Role")[0] == viewed(many_lines, "Role")[0]
    assert viewed(many_lines, "Role")[1][1] == "0-29"


def a_plan(pool: str | None = None, group: str | None = None, **planned: float) -> Any:
    node = {"name": "a", "closed": None, "total": {"cpu": 8}, "free": {"cpu": 8}, "planned": {"cpu": 1, **planned}}
    role = {"role": "worker", "min": 1, "max": 1, "placed": 1, "nodes": 1, "each": {"cpu": 1}}
    return {
        "workload": "rl",
        "fits": True,
        "actors": 1,
        "units": 1,
        "roles": [role | {"pool": pool, "colocation_group": group, "colocation": group and "process"}],
        "pools": [],
        "nodes": [node | {"free": {"cpu": 8, **planned}, "units": [{"members": [{"role": "worker", "index": 0}]}]}],
    }


def test_a_plan_has_the_same_columns_whatever_it_uses() -> None:
    plain, full = plan_view(a_plan(), PIPE), plan_view(a_plan("p", "g", gpu=1, memory=2), PIPE)

    assert viewed(plain, "Role")[0] == viewed(full, "Role")[0]
    assert viewed(plain, "Node")[0] == viewed(full, "Node")[0] == ["Node", "CPUs", "GPUs", "GB", "Actors"]
    assert viewed(plain, "Node")[1][:4] == ["a", "1/8", "-", "-"]


@pytest.mark.parametrize("subject", ["", "gpu1"])
def test_findings_have_the_same_columns_whatever_they_are_about(subject: str) -> None:
    finding = ok(Code.RAY, "Ray 2.60.0").to_dict() | {"subject": subject}

    heading, row = viewed(findings_view([("ok", finding)], PIPE, heading="Check"), "Check")

    assert heading == ["Check", "About", "Status", "Detail"]
    assert row == ["ray", subject or "-", "ok", "Ray 2.60.0"]
