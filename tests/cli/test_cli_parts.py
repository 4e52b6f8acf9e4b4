"""Boosts from several lenders at the command line: who may lend, what each lends, and who gets what back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner, Result
from served_grid import ServedGrid

from distributed_grid.cli.app import app
from distributed_grid.errors import InvalidRequest, NoCapacity, SameNode


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    found = ServedGrid(tmp_path_factory.mktemp("parts"))  # for b, a and c can lend 8 CPUs and a GPU each
    found.measure()
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(autouse=True)
def _at_home(served: ServedGrid, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GRID_HOME", str(served.home.path))
    monkeypatch.setenv("COLUMNS", "200")
    yield
    for boost in served.client.boost_status()["boosts"]:
        served.client.release_boost(boost["boost_id"], {"grace_seconds": 0})


def typed(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code, done.output
    return done.output


def failed(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def asked(*words: str) -> dict[str, Any]:
    return json.loads(typed("boost", "request", "b", *words, "--json"))


def test_the_card_of_a_boost_shows_each_lenders_part() -> None:
    lines = typed("boost", "request", "b", "cpu", "12").splitlines()
    assert lines[1:4] == [
        "  12 CPUs from a and c to b, priority normal",
        "    8 CPUs from a: the most that a can lend",
        "    4 CPUs from c: the rest",
    ]


def test_a_reservation_is_on_all_its_lenders_and_so_are_its_companions() -> None:
    card = typed("boost", "request", "b", "gpu", "2")
    assert "    1 GPU from a: the most that a can lend\n    1 GPU from c: the rest\n" in card
    assert "  with 2 CPUs, also from a and c\n" in card
    assert "  The GPU is reserved on a and c for your Ray tasks." in card


def test_the_table_shows_how_much_each_lends() -> None:
    asked("cpu", "12")
    heading, row = typed("boost", "status").splitlines()[2:4]
    assert row[heading.index("Source") :].startswith("a (8), c (4)  b ")
    (row,) = [line for line in typed("boost", "status", "--node", "c").splitlines() if "transfer" in line]
    assert "a (8), c (4)" in row


@pytest.mark.parametrize("width", ["60", "80"])
def test_the_table_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    monkeypatch.setenv("COLUMNS", width)
    asked("cpu", "12")
    assert not [line for line in typed("boost", "status").splitlines() if len(line) > int(width)]


def test_a_plan_shows_the_parts() -> None:
    shown = typed("plan", "b", "cpu", "12")
    assert shown.startswith("Fits: yes   12 CPUs for b: a and c together lend it now (transfer)\n")
    assert "\n  8 CPUs from a: the most that a can lend\n  4 CPUs from c: the rest\n  delivery: transfer" in shown


def test_named_sources_lend_together_and_no_others() -> None:
    boost = asked("cpu", "10", "--source", "c", "--source", "a")
    assert [(part["source_node"], part["amount"]) for part in boost["parts"]] == [("a", 8), ("c", 2)]
    assert isinstance(failed("boost", "request", "b", "cpu", "12", "--source", "c").exception, NoCapacity)
    assert isinstance(failed("plan", "b", "cpu", "1", "--source", "a", "--source", "b").exception, SameNode)


def test_one_lender_is_all_that_a_request_may_allow() -> None:
    error = failed("boost", "request", "b", "cpu", "12", "--max-sources", "1").exception
    assert isinstance(error, NoCapacity)
    assert error.try_next == "8 CPUs can be lent by a: grid boost request b cpu 8 --source a"
    assert typed("plan", "b", "cpu", "12", "--max-sources", "1", code=4).startswith("Fits: no ")
    assert asked("cpu", "8", "--max-sources", "1")["parts"] == []


@pytest.mark.parametrize("most", ["0", "-1", "1.5", "many"])
def test_a_number_of_lenders_is_at_least_one(most: str) -> None:
    done = failed("boost", "request", "b", "cpu", "12", f"--max-sources={most}")
    assert done.exit_code == 2
    assert "--max-sources" in done.output


def test_more_lenders_than_a_boost_can_have_are_refused() -> None:
    error = failed("boost", "request", "b", "cpu", "12", "--max-sources", "65").exception
    assert isinstance(error, InvalidRequest)
    assert error.message == "The number of lenders must be a whole number from 1 to 64, not 65"


@pytest.mark.parametrize(
    ("amount", "said"),
    [
        ("3", "c has its 3 CPUs back"),
        ("4", "c has its 4 CPUs back"),
        ("6", "a and c have their 6 CPUs back"),
        ("12", "a and c have their 12 CPUs back"),
    ],
)
def test_a_release_names_the_lenders_that_have_something_back(amount: str, said: str) -> None:
    boost = asked("cpu", "12")["boost_id"]
    assert typed("boost", "release", boost, "--amount", amount, "--wait", "10").endswith(f": {said}\n")


def test_what_a_boost_has_left_is_its_lenders() -> None:
    boost = asked("cpu", "12")["boost_id"]
    typed("boost", "release", boost, "--amount", "4", "--wait", "10")
    assert typed("boost", "release", boost, "--wait", "10").endswith(": a has its 8 CPUs back\n")


def test_completion_offers_nodes_and_says_who_lends_a_boost() -> None:
    boost = asked("cpu", "12")["boost_id"]

    def offered(*words: str) -> dict[str, str | None]:
        *before, last = words
        found = ShellComplete(app, {}, "grid", "_GRID_COMPLETE").get_completions(before, last)
        return {item.value: item.help for item in found}

    assert {"a", "b", "c"} <= offered("boost", "request", "b", "cpu", "12", "--source", "a", "--source", "").keys()
    assert "--max-sources" in offered("boost", "request", "b", "cpu", "12", "--max")
    described = offered("boost", "release", "")
    assert described.get(boost, described.get(boost[:8])) == "12 cpu from a and c to b, active"
