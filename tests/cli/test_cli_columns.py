"""Tables, bars and curves: whatever is in them, they fit, and what is not known is never drawn as low."""

from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.cli.cluster_view import cluster_view
from distributed_grid.cli.columns import Canvas, Column, Form, fit, fitted_table
from distributed_grid.cli.node_columns import bar, colour, curve, percent
from distributed_grid.cli.node_view import nodes_view

amount = st.floats(0, 99_999) | st.integers(0, 64)
name = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=60)
fraction = st.floats(0, 1)


@st.composite
def nodes(draw: st.DrawFn) -> list[dict[str, Any]]:
    custom = draw(st.lists(name, max_size=4))
    amounts = st.fixed_dictionaries(dict.fromkeys(("cpu", "gpu", "memory", *custom), amount))

    def node(name: str) -> dict[str, Any]:
        state = draw(st.sampled_from(("ok", "ok", "stale", "starting", "down")))
        measured = state in ("ok", "stale")
        return {
            "name": name,
            "is_head": draw(st.booleans()),
            "alive": state != "down",
            "closed": draw(st.none() | st.just(f"{name} is cordoned; to let it share again: " + "do something " * 9)),
            "state": state,
            "stale_because": "its probe died, and " + "the reason is unknown " * 9 if state == "stale" else None,
            "age_seconds": draw(st.floats(0, 10**6)) if measured else None,
            "pressure": {kind: draw(fraction) for kind in ("overall", "cpu", "memory", "gpu")} if measured else None,
            **{part: draw(amounts) for part in ("base", "total", "free", "lent", "borrowed")},
            "warnings": draw(
                st.lists(st.just("its machine is busy: 2.0 of 2 CPUs in use, " + "load 17.2 " * 9), max_size=1)
            ),
        }

    return [node(each) for each in draw(st.lists(name, max_size=5, unique=True))]


@st.composite
def suggestions(draw: st.DrawFn) -> list[dict[str, Any]]:
    def suggestion(node: str) -> dict[str, Any]:
        command = f"grid boost request {node} memory 8 --source {draw(name)} --duration 3600 --delivery reserve"
        return {
            "what": f"{node} will run out of memory in about 20 minutes; {draw(name)} can lend 8 GB of memory",
            "reason": "memory at 85% is expected then, the limit is 80% (now 62%)",
            "how_sure": "likely (71%): 200 such forecasts verified, off by 2% on average",
            "command": draw(st.none() | st.just(command)),
            "by_itself": draw(st.booleans()),
        }

    return [suggestion(each) for each in draw(st.lists(name, max_size=3))]


@given(nodes(), suggestions(), st.integers(80, 250), st.booleans())
def test_no_row_is_wider_than_the_terminal_whatever_the_nodes_are(
    found: list[dict[str, Any]], suggested: list[dict[str, Any]], width: int, blocks: bool
) -> None:
    canvas = Canvas(width, blocks)
    status = {
        "cluster": "a-cluster",
        "ray_address": "192.0.2.1:6379",
        "controller": {"state": "running", "url": "http://127.0.0.1:80", "pid": 1},
        "nodes": found,
        "demand": [],
        "suggestions": suggested,
        "problems": [],
        "boosts": {"total_active": 0, "resources": {}, "boosts": []},
    }

    for shown in (nodes_view(found, canvas), cluster_view(status, canvas)):
        assert [line for line in click.unstyle(shown).splitlines() if len(line) > width] == []
        if not blocks:
            shown.encode("ascii")


def test_a_table_gives_up_in_the_order_it_is_told() -> None:
    table = {
        "name": Column.of("Name", ["a long name"]),
        "bar": Column.of("Bar", ["#" * 20], Form("Bar", ["#" * 5])),
        "more": Column.of("More", ["much more"]),
    }

    def shown(width: int | None) -> str:
        return fitted_table(fit(table, ("bar", "more", "bar"), Canvas(width))).splitlines()[1]

    assert shown(None) == shown(44) == "a long name  ####################  much more"
    assert shown(43) == "a long name  #####  much more"
    assert shown(28) == "a long name  #####"
    assert shown(17) == "a long name"
    assert shown(8) == "a long …"


def test_an_optional_column_that_says_nothing_is_left_out_on_a_terminal_but_not_in_a_pipe() -> None:
    def shown(cells: list[str], width: int | None) -> list[list[str]]:
        table = {"name": Column.of("Name", ["a", "b"]), "for": Column.of("For", cells, optional=True)}
        shown = click.unstyle(fitted_table(fit(table, ("for",), Canvas(width))))
        return [line.split() for line in shown.splitlines()]

    assert shown(["", "-"], 80) == [["Name"], ["a"], ["b"]]
    assert shown(["", "-"], None) == [["Name", "For"], ["a", "-"], ["b", "-"]]
    assert shown(["x", ""], 80) == shown(["x", ""], None) == [["Name", "For"], ["a", "x"], ["b", "-"]]
    assert shown(["x", ""], 6) == [["Name"], ["a"], ["b"]]


@pytest.mark.parametrize(
    ("value", "blocks", "drawn"),
    [
        (0.0, True, "░░░░"),
        (0.001, True, "▏░░░"),
        (0.5, True, "██░░"),
        (0.53, True, "██▏░"),
        (1.0, True, "████"),
        (7.0, True, "████"),
        (0.5, False, "##.."),
    ],
)
def test_bars(value: float, blocks: bool, drawn: str) -> None:
    assert bar(value, 4, blocks) == drawn


@given(fraction, st.integers(1, 40), st.booleans())
def test_a_bar_has_the_width_it_was_asked_for(value: float, width: int, blocks: bool) -> None:
    assert len(bar(value, width, blocks)) == width


def test_curves_have_gaps_where_nothing_is_known() -> None:
    assert curve([0.0, None, 0.5, 1.0], 10) == "▁ ▅█"
    assert curve([0.0, None, 0.5, 1.0], 10, blocks=False) == "_ =#"
    assert curve([None, None, 0.2, 0.6, 1.0, None], 3) == " ▄█"  # two by two, by the mean of what is known


def test_percents_and_colours() -> None:
    assert [percent(value) for value in (None, 0.0, 0.004, 0.456, 1.0)] == ["-", "0%", "0%", "46%", "100%"]
    assert [colour(value) for value in (0.0, 0.6, 0.85)] == ["green", "yellow", "red"]
