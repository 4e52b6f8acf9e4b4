"""grid cluster status, node ls and node show, as a person sees them: typed, on terminals of some width."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from looks import lively, names
from served_grid import ServedGrid

from distributed_grid.model.series import Accuracy, Forecast

GRID = str(Path(sys.executable).with_name("grid"))
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.fixture(scope="module", params=[3, 100])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    with lively(tmp_path_factory.mktemp("lively"), request.param) as found:
        yield found


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    with lively(tmp_path_factory.mktemp("three")) as found:
        yield found


def type_it(grid: ServedGrid, *words: str, code: int = 0, **env: str) -> str:
    """What a command prints, on stdout and stderr, to who reads it through a pipe."""
    done = subprocess.run(
        [GRID, *words],
        env={**os.environ, "GRID_HOME": str(grid.home.path), "PYTHONIOENCODING": "utf-8"} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def row(shown: str, node: str) -> str:
    """The one line of a node."""
    (found,) = [line for line in shown.splitlines() if line.startswith(f"{node} ")]
    return found


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("words", [("cluster", "status"), ("node", "ls"), ("boost", "status")])
def test_no_line_is_longer_than_the_terminal(seen: ServedGrid, words: tuple[str, ...], width: int) -> None:
    shown = type_it(seen, *words, COLUMNS=str(width))

    assert [line for line in shown.splitlines() if len(line) > width] == []


@pytest.mark.parametrize("width", [80, 120])
def test_nor_is_one_of_everything_about_a_node(seen: ServedGrid, width: int) -> None:
    for name in names(seen)[:3]:
        shown = type_it(seen, "node", "show", name, COLUMNS=str(width))

        assert [line for line in shown.splitlines() if len(line) > width] == []


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("words", [("cluster", "status"), ("node", "ls")])
def test_every_node_has_one_line_with_its_pressure_or_why_it_has_none(
    seen: ServedGrid, words: tuple[str, ...], width: int
) -> None:
    shown = type_it(seen, *words, COLUMNS=str(width))
    first, second, third, *others = names(seen)

    assert re.search(r"\b71%", row(shown, first))  # 0.3 x 1 + 0.3 x 0.25 + 0.4 x 0.83
    assert re.search(r"\bstale\b", row(shown, second)) and "%" not in row(shown, second)
    assert f"{second}: stale: its probe died" in shown
    for name in (third, *others):
        assert re.search(r"\b38%", row(shown, name))


def test_a_narrow_terminal_still_shows_who_lends_and_borrows(seen: ServedGrid) -> None:
    shown = type_it(seen, "cluster", "status", COLUMNS="80")
    first, second, *_ = names(seen)

    assert row(shown, first).endswith("2 CPUs") and row(shown, second).endswith("2 CPUs  -")
    base = 8 if len(names(seen)) == 3 else 64
    assert re.search(rf"{base + 2} */ *{base + 2} \({base}\)", row(shown, first))
    assert re.search(rf"{base - 2} */ *{base - 2} \({base}\)", row(shown, second))


def test_status_tells_what_waits_and_which_boosts_end_next(three: ServedGrid) -> None:
    shown = type_it(three, "cluster", "status", COLUMNS="80")

    assert "lab  3 nodes, 1 stale" in shown
    assert "Free 24 of 24 CPUs, 2 of 2 GPUs, 32 of 32 GB" in shown
    assert "Waiting: 3 requests, 3 do not fit" in shown
    assert re.search(r"3 x 640 CPUs, for \d+ s: does not fit: no node has more than 10 CPUs", shown)
    assert re.search(r"b +a +cpu +2 +transfer +active +\S+ +(\S+ \()?in 15 min", shown)


def test_through_a_pipe_everything_is_there_and_nothing_is_coloured(three: ServedGrid) -> None:
    shown = type_it(three, "node", "ls", COLUMNS="")

    assert all(heading in shown for heading in ("State", "Pressure", "cpu%", "mem%", "gpu%", "Memory GB", "Age"))
    assert not COLOUR.search(shown)
    assert "a (head)  ok     ███████▏░░  71%  100%   25%   83%" in shown


def test_an_encoding_without_blocks_gets_ascii(three: ServedGrid) -> None:
    for words in (("cluster", "status"), ("node", "ls"), ("node", "show", "a")):
        type_it(three, *words, COLUMNS="80", PYTHONIOENCODING="ascii").encode("ascii")

    assert "#######...  71%" in type_it(three, "node", "ls", COLUMNS="120", PYTHONIOENCODING="ascii")


def test_on_a_terminal_it_has_colours_and_the_width_of_the_terminal(three: ServedGrid) -> None:
    import fcntl
    import struct
    import termios

    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [GRID, "cluster", "status"],
        env=env | {"GRID_HOME": str(three.home.path), "TERM": "xterm-256color"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    printed = b""
    while True:
        try:
            printed += os.read(main, 65536)
        except OSError:  # its end is closed
            break
    os.close(main)

    assert process.wait(30) == 0
    assert COLOUR.search(printed.decode())
    plain = COLOUR.sub("", printed.decode()).splitlines()
    assert max(map(len, plain)) <= 80


def test_everything_about_a_node(three: ServedGrid) -> None:
    shown = type_it(three, "node", "show", "a", "--horizon", "5m", COLUMNS="80")

    assert re.search(r"a \(head\)  ok, measured [\d.]+ (s|min) ago", shown)
    assert "under pressure: cpu, gpu" in shown
    assert re.search(r"cpu +8 +- +2 +10 +0 +10 +2 +16 of 16", shown)  # base lent borrowed total used free own host
    assert re.search(r"memory GB +16 +- +- +16 +0 +16 +4 +16 of 64", shown)
    assert "NVIDIA H200  busy 83%  memory 40 of 140 GB  61 °C" in shown
    assert "4711 (39 GB)" in shown
    assert re.search(r"cpu +[█ ]+ 100% +\S+ +\S+ +\S+ +not enough history yet", shown)  # now, and the trends
    assert "In 5 min" in shown
    assert re.search(r"b +a +cpu +2", shown)


@pytest.mark.parametrize(
    ("low", "high", "enough", "shown"),
    [
        (0.0, 1.0, True, "not enough history yet"),
        (0.004, 0.996, True, "not enough history yet"),
        (0.0, 0.4, False, "not enough history yet"),
        (0.0, 0.4, True, r"13% \(0% to 40%\)"),
        (0.1, 1.0, True, r"13% \(10% to 100%\)"),
    ],
)
def test_an_interval_that_says_nothing_is_not_shown(
    three: ServedGrid, monkeypatch: pytest.MonkeyPatch, low: float, high: float, enough: bool, shown: str
) -> None:
    checked = Accuracy(3600.0, 200, 0.02, 0.03, 0.9)
    found = Forecast(0.0, 3600.0, 0.13, low, high, 0.9, checked, enough)
    assert three.engine.watching is not None
    monkeypatch.setattr(three.engine.watching.collector, "forecast", lambda *_: found)

    assert re.search(rf"^cpu .* {shown}$", type_it(three, "node", "show", "a", COLUMNS="120"), re.MULTILINE)


def test_a_node_that_fell_silent_shows_old_values_as_old(three: ServedGrid) -> None:
    shown = type_it(three, "node", "show", "b", COLUMNS="80")

    assert re.search(r"Pressure not known; it was 38% [\d.]+ (s|min) ago", shown)
    assert "b: stale: its probe died" in shown
    assert "These measurements are old." in shown
    assert "GPUs: none measured" in shown


def test_a_node_that_is_not_there(three: ServedGrid) -> None:
    assert "Nodes: a, b, c" in type_it(three, "node", "show", "nobody", code=3)
    assert "horizon" in type_it(three, "node", "show", "a", "--horizon", "soon", code=2)


def test_the_same_as_json(three: ServedGrid) -> None:
    def reported(*words: str) -> Any:
        return json.loads(type_it(three, *words, "--json"))

    listed = reported("node", "ls")["nodes"]
    assert [(node["name"], node["state"]) for node in listed] == [("a", "ok"), ("b", "stale"), ("c", "ok")]
    one = reported("node", "show", "c")
    assert one["history"]["series"]["cpu"][0] == 0.5
    expected = one["forecast"]["cpu"]
    shown = [expected[key] for key in ("value", "low", "high", "enough_history")]
    assert shown == [0.5, 0.0, 1.0, False]
    assert reported("cluster", "status")["cluster"] == "lab"


def test_a_node_that_is_down_says_so_and_has_no_amounts(tmp_path: Path) -> None:
    with lively(tmp_path) as grid:
        grid.cluster.kill_node("c")
        grid.measure()

        for words in (("cluster", "status"), ("node", "ls")):
            line = row(type_it(grid, *words, COLUMNS="80"), "c")
            assert re.search(r"\bdown\b", line) and not re.search(r"\d", line)
