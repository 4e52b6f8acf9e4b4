"""`grid audit log`, as typed: data on stdout, messages on stderr, and lines that a terminal can show."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from served_grid import ServedGrid

from distributed_grid.cli.audit import audit, entry_line

GRID = str(Path(sys.executable).with_name("grid"))
ENTRY: dict[str, Any] = {
    "at": "2025-06-01T12:00:03.5Z",
    "event": "granted",
    "who": "ana",
    "boost_id": "83bd2028-6661-4b6f-9ef6-5014d3562c34",
    "node": "gpu-master",
    "message": "2 CPUs from gpu1 to gpu-master until 2025-06-01T14:56:20Z",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    grid = ServedGrid(tmp_path_factory.mktemp("grid"))
    grid.client.request_boost({"target_node": "a", "resource_type": "cpu", "amount": 1})
    yield grid
    grid.close()


def log(served: ServedGrid, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [GRID, "audit", "log", *arguments],
        env=os.environ | {"GRID_HOME": str(served.home.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_what_happened_is_on_stdout_a_line_each(served: ServedGrid) -> None:
    done = log(served, "--event", "granted")

    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert line.split()[3] == "granted"
    assert done.stderr == ""


def test_where_nothing_is_found_stdout_is_empty_and_a_message_says_so(served: ServedGrid) -> None:
    done = log(served, "--who", "nobody")

    assert (done.returncode, done.stdout) == (0, "")
    assert "No entries match" in done.stderr
    assert json.loads(log(served, "--who", "nobody", "--json").stdout) == {"entries": []}


def test_what_is_piped_is_one_line_however_long() -> None:
    assert "\n" not in entry_line(ENTRY | {"message": "x " * 500})


@pytest.mark.parametrize("width", [80, 100, 120])
def test_on_a_terminal_no_line_is_wider_than_that(width: int) -> None:
    shown = click.unstyle(entry_line(ENTRY | {"message": "so much to say " * 20}, width)).splitlines()

    assert max(map(len, shown)) <= width
    assert re.match(r"2025-06-01 \d\d:\d\d:03 \S+ +granted", shown[0])
    assert all(line.startswith(" " * shown[0].index("granted")) for line in shown[1:])


def test_a_request_that_waited_is_named_by_its_id() -> None:
    entry = {**ENTRY, "event": "unqueued", "boost_id": None, "request_id": "f56692b7-ea50-4905-a4fe-1eae5558f763"}

    assert click.unstyle(entry_line(entry)).split()[3:6] == ["unqueued", "ana", "f56692b7"]


def test_what_fits_stays_on_its_line() -> None:
    assert entry_line(ENTRY, 200) == entry_line(ENTRY)


def test_following_ends_well_with_an_interrupt_that_comes_while_it_writes(
    served: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("distributed_grid.cli.audit.click.echo", interrupted)
    monkeypatch.setenv("GRID_HOME", str(served.home.path))

    assert CliRunner().invoke(audit, ["log", "--follow"]).exit_code == 0
