"""grid top as a person sees and uses it, by Textual's pilot, against a real API."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import reading
from click.testing import CliRunner
from eyes import Eyes, on_screen
from live_grid import until
from looks import lively
from served_grid import ServedGrid
from textual.widgets import Input, Select

from distributed_grid.cli import top
from distributed_grid.cli.top.dialogs import KEYS
from distributed_grid.cli.top.feed import Feed
from distributed_grid.cli.top.overview import countdown
from distributed_grid.errors import ExtraMissing, GridError


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGrid]:
    with lively(tmp_path) as grid:
        yield grid


def test_the_screen_gets_news_after_an_unforeseen_error() -> None:
    reported: list[object] = []

    def tell(seen: object) -> None:
        reported.append(seen)
        if len(reported) == 1:
            raise ZeroDivisionError

    client: Any = None  # an answer that makes no sense is told as an error
    feed = Feed(client, tell, every_s=0.01)
    feed.start()
    until(lambda: len(reported) > 2, what="there is news after it")
    feed.stop()
    assert all(isinstance(one, GridError) for one in reported)


def test_nodes_boosts_events_totals_and_what_waits_in_80_by_24(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        assert re.search(r"71% .*10/10 \(8\).*1/1.* 2 CPUs", await eyes.sees("^ a "))
        await eyes.sees(r"^ b +stale \d+ s .* 2 CPUs")
        await eyes.sees(r"lab  3 nodes, 1 stale   Free 24 of 24 CPUs")
        await eyes.sees(r"Waiting 3 requests, 3 do not fit   Controller http://127")
        await eyes.sees(r"^ +14:\d\d +2 CPUs +b +a +active +transfer")
        await eyes.sees(r"granted 2 CPUs from b to a")
        await eyes.sees("Open.*Sort.*Filter.*Boost.*Release.*Help.*Quit")
        assert len(eyes.lines) == 24 and {len(line) for line in eyes.lines} == {80}

    on_screen(served.home, look)


def test_grids_own_queue_is_in_the_head(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees(r"Waiting 3 requests, 3 do not fit")
        body = {"target_node": "a", "resource_type": "cpu", "amount": 9}
        for _ in range(3):
            served.client.request_allocation(body)
        await eyes.sees(r"Waiting in the queue: 3 requests")
        await eyes.sees(r"\w{8}: 9 CPUs for a, priority normal, no estimate: no node can ever lend 9 CPUs")
        await eyes.sees(r"1 more: grid resource-sharing queue")
        served.telemetry.waiting = ()
        served.measure()
        await eyes.until(lambda: not any("do not fit" in line for line in eyes.lines))
        assert not [line for line in eyes.lines if "Waiting nothing" in line]

    on_screen(served.home, look, (160, 40))


def test_windows_and_elastic_leases_are_shown(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees(r"lab  3 nodes")
        body = {"name": "training", "target_node": "a", "resource_type": "cpu", "amount": 2, "at": "daily 09:00"}
        served.client.create_window({**body, "duration_seconds": 3600})
        elastic = {"target_node": "a", "resource_type": "cpu", "amount": 1, "at_most": 3, "own_too": True}
        served.client.request_boost({**elastic, "delivery": "reserve"})
        await eyes.sees(r"Windows: training in .*, 2 CPUs for a")
        await eyes.sees(r"3 CPUs \(1..3\)")

    on_screen(served.home, look, (160, 40))


def test_a_boost_that_is_taken_says_when_and_by_whom_in_80_columns(served: ServedGrid) -> None:
    body = {"target_node": "a", "resource_type": "cpu", "amount": 1, "grace_seconds": 300}
    boost = served.client.request_boost(body)
    served.cluster.start("a", 11)  # all that it has is in use

    async def look(eyes: Eyes) -> None:
        served.reclaim(boost["boost_id"])
        await eyes.sees(rf"^ +[34]:\d\d .*releasing +{re.escape(boost['requester'])} +preempted by ana's")

    on_screen(served.home, look)


def test_a_cordoned_node_is_in_the_head(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees("^ c ")
        assert not [line for line in eyes.lines if "cordoned" in line]
        served.client.cooldown("c")
        await eyes.sees("c: cordoned: it lends and borrows nothing until grid cooldown c --off")

    on_screen(served.home, look)


def test_leases_of_programs_are_counted_apart_from_boosts(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees("Boosts: 1 active─")
        for purpose in ("run", "task"):
            body = {"target_node": "a", "resource_type": "cpu", "amount": 1, "delivery": "reserve", "purpose": purpose}
            served.client.request_boost(body)
        await eyes.sees("Boosts: 1 active, 2 leases of running programs─")

    on_screen(served.home, look)


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_a_hundred_nodes(tmp_path: Path, size: tuple[int, int]) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees("^ worker-000 ")
        await eyes.until(lambda: len(eyes.nodes) == 100)
        await eyes.sees("Borrowed")
        await eyes.sees("Last hour")
        await eyes.press_until("end", "^ worker-099 ")
        await eyes.press("p")
        await eyes.sees("Nodes by pressure")
        await eyes.until(lambda: (eyes.nodes[0], eyes.nodes[-1]) == ("worker-000", "worker-001"))

    with lively(tmp_path, 100) as grid:
        on_screen(grid.home, look, size)


def test_the_end_key_shows_the_last_row_again_after_scrolling_away(tmp_path: Path) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees("^ worker-000 ")
        await eyes.press_until("end", "^ worker-099 ")
        eyes.app.screen.query_one("#nodes").scroll_to(y=0, animate=False)  # as the mouse wheel does
        await eyes.sees("^ worker-000 ")
        await eyes.press("end")
        await eyes.sees("^ worker-099 ", 10.0)

    with lively(tmp_path, 100) as grid:
        on_screen(grid.home, look)


def test_what_others_write_is_shown_and_never_carried_out(served: ServedGrid) -> None:
    text = "to \x1b[2J\x1b]0;mine\x07[red]eve[/red] and [@click=app.quit]ana[/]"

    served.rebalance()

    async def look(eyes: Eyes) -> None:
        await eyes.sees("suggested")
        served.engine.parts.journal.note("granted", text)
        await eyes.sees(r"granted to \\x1b\[2J\\x1b\]0;mine\\x07\[red\]eve\[/red\] and")
        await eyes.sees(r"\[@click=app\.quit\]ana\[/\]")
        assert not [line for line in eyes.lines if re.search(r"[\x00-\x1f\x7f-\x9f]", line)]

    on_screen(served.home, look, (160, 30))


def test_the_last_hour_is_a_curve(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees(r"^ a \(head\) +\S+ +71% +▆ ")  # 0.707 is in the sixth of eight steps
        await eyes.sees(r"^ c +\S+ +38% +▄ ")

    on_screen(served.home, look)


def test_sorting(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        served.telemetry.answers["c"] = reading(cpu_used=1.0, memory_used=2**36)
        served.measure()
        await eyes.sees(r"^ c .* 53%")
        for key, order in {"p": "acb", "c": "acb", "m": "cab", "g": "abc", "f": "acb", "n": "abc"}.items():
            await eyes.press(key)
            await eyes.until(lambda order=order: "".join(eyes.nodes) == order)
        await eyes.press("s")
        await eyes.sees("Nodes by pressure")

    on_screen(served.home, look)


def test_the_filter_takes_part_of_a_name_or_a_state(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees("^ c ")
        await eyes.press("slash")
        await eyes.until(lambda: isinstance(eyes.app.focused, Input))
        await eyes.press(*"stale")
        await eyes.until(lambda: eyes.nodes == ["b"])
        await eyes.sees("1 of 3 with 'stale'")
        await eyes.press("enter")
        await eyes.until(lambda: eyes.app.focused is eyes.app.screen.query_one("#nodes"))
        await eyes.press("escape")
        await eyes.until(lambda: eyes.nodes == ["a", "b", "c"])
        await eyes.press("slash")
        await eyes.until(lambda: isinstance(eyes.app.focused, Input))
        await eyes.press("q", "enter")  # q is a letter there, not the end
        await eyes.until(lambda: eyes.nodes == [])
        await eyes.press("enter", "b", "slash")  # no node to open
        await eyes.until(lambda: isinstance(eyes.app.focused, Input))
        await eyes.press(*"[/b")  # no markup
        await eyes.sees(r"0 of 3 with '\[/b'")

    on_screen(served.home, look)


def test_a_node_is_opened_and_kept_up_to_date(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees("^ c ")
        await eyes.press("enter")
        await eyes.sees(r"a \(head\)  ok, measured")
        await eyes.sees("NVIDIA H200  busy 83%")
        served.client.request_allocation({"target_node": "a", "resource_type": "cpu", "amount": 99})
        await eyes.press_until("end", "Waiting in the queue: 1 request")
        await eyes.press("escape")
        await eyes.sees("Nodes by name")
        await eyes.press("down", "enter")
        await eyes.sees("b: stale: its probe died")
        served.telemetry.answers["b"] = reading()
        served.measure()
        await eyes.sees("b  ok, measured")
        await eyes.press("escape")
        await eyes.sees("Nodes by name")

    on_screen(served.home, look)


def test_a_boost_is_asked_for_and_released_for_real(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees("^ c ")
        await eyes.press("down", "down", "b")
        await eyes.sees("A boost for c")
        await eyes.press(*"99", "enter")
        await eyes.sees("No nodes have sufficient available resources")
        await eyes.sees("b: no recent measurement: its probe died")
        eyes.app.screen.query_one("#amount", Input).value = "3"
        eyes.app.screen.query_one("#duration", Input).value = "soon"
        await eyes.press("enter")
        await eyes.sees("The duration must be a length of time such as")
        served.telemetry.answers["b"] = reading()
        served.measure()
        eyes.app.screen.query_one("#duration", Input).value = "5m"
        await eyes.press("enter")
        await eyes.sees(r"^ +[45]:\d\d +3 CPUs +b +c +active")
        granted = next(b for b in served.client.boost_status()["boosts"] if b["target_node"] == "c")
        assert (granted["amount"], granted["source_node"]) == (3, "b")

        await eyes.press("r")
        await eyes.sees("Select a boost first")
        await eyes.press("tab", "home", "r")
        await eyes.sees(f"Release boost {granted['boost_id'][:8]}?")
        await eyes.press("n")
        await eyes.until(lambda: len(eyes.app.screen_stack) == 2)
        await eyes.press("r")
        await eyes.sees(f"Release boost {granted['boost_id'][:8]}?")
        await eyes.press("y")
        await eyes.until(lambda: len(served.client.boost_status()["boosts"]) == 1)
        await eyes.sees("released")

    on_screen(served.home, look)


def test_a_boost_the_queue_the_teams_and_the_workloads_have_pages(served: ServedGrid) -> None:
    boost_id = served.client.boost_status()["boosts"][0]["boost_id"]

    async def look(eyes: Eyes) -> None:
        await eyes.sees("^ c ")
        await eyes.press("tab", "home", "enter")
        await eyes.sees(f"Boost {boost_id}")
        await eyes.sees("team default; since")
        for key, shown in (("w", "Queue: empty"), ("t", "Resource sharing enabled"), ("l", "grid roles up")):
            await eyes.press("escape")
            await eyes.sees("Nodes by name")
            await eyes.press(key)
            await eyes.sees(shown)

    on_screen(served.home, look)


def test_the_form_has_lender_priority_and_delivery_and_a_typo_stays_here(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees("^ c ")
        await eyes.press("b")
        await eyes.sees("A boost for a")
        screen = eyes.app.screen
        screen.query_one("#amount", Input).value = "two"
        await eyes.press("enter")
        await eyes.sees("'two' is not a number")
        screen.query_one("#amount", Input).value = "1"
        for name, value in (("priority", "low"), ("source", "c"), ("delivery", "reserve")):
            screen.query_one(f"#{name}", Select).value = value
        await eyes.press("enter")
        await eyes.until(lambda: len(served.client.boost_status()["boosts"]) == 2)

    on_screen(served.home, look)
    made = served.client.boost_status()["boosts"][-1]
    assert (made["source_node"], made["target_node"], made["priority"], made["delivery"]) == (
        "c",
        "a",
        "low",
        "reserve",
    )
    assert "two" not in str(served.client.audit_log(event="refused"))
    served.client.release_boost(made["boost_id"], {"grace_seconds": 0})


def test_a_controller_that_goes_away_is_reported_and_found_again(served: ServedGrid, tmp_path: Path) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees("^ c ")
        where = served.home.controller.read_text()
        served.home.controller.write_text(where.replace(served.url, "http://127.0.0.1:1"))
        eyes.app.looking.close()  # as if the connection broke
        await eyes.sees("the data shown is .* old. Retrying")
        await eyes.press("p")
        await eyes.sees("Nodes by pressure")  # it goes on
        await eyes.press("enter")
        await eyes.press("escape")
        served.home.controller.write_text(where)
        await eyes.until(lambda: not any("Trying again" in line for line in eyes.lines))

    on_screen(served.home, look)


def test_an_answer_that_cannot_be_shown_does_not_end_it(served: ServedGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.sees("^ c ")
        good = eyes.app.looking.cluster_status
        monkeypatch.setattr(eyes.app.looking, "cluster_status", lambda: good() | {"nodes": [{"name": "x"}]})
        await eyes.sees("Internal error in grid top; the data shown is")
        monkeypatch.setattr(eyes.app.looking, "cluster_status", good)
        await eyes.until(lambda: not any("Internal error" in line for line in eyes.lines))

    on_screen(served.home, look)


def test_help_and_quit(served: ServedGrid) -> None:
    async def look(eyes: Eyes) -> None:
        await eyes.press("question_mark")
        await eyes.sees("release the selected boost")
        await eyes.sees(r"Pressure is measured: 0\.3 cpu \+ 0\.3 memory \+ 0\.4 gpu, or half and half")
        await eyes.sees(r"on a node without GPUs\.")
        wrapped = [line for line in KEYS.splitlines() if not any(line.strip() in shown for shown in eyes.lines)]
        assert not wrapped
        await eyes.press("escape", "q")
        await eyes.until(lambda: not eyes.app.is_running)

    on_screen(served.home, look)


def test_countdowns() -> None:
    assert [countdown(s) for s in (-3, 59.9, 61, 3725)] == ["0:00", "0:59", "1:01", "1:02:05"]


def test_without_textual_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ExtraMissing) as reported:
        top.require_textual()

    assert "pip install 'distributed-grid[top]'" in (reported.value.try_next or "")


def test_it_needs_a_terminal(served: ServedGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_HOME", str(served.home.path))

    done = CliRunner().invoke(top.top)

    assert done.exit_code == 2 and "--watch" in done.output


def test_no_other_command_imports_textual() -> None:
    code = (
        "import sys; from distributed_grid.cli.app import app, _COMMANDS; import click;"
        "[app.get_command(click.Context(app), name) for name in _COMMANDS];"
        "import distributed_grid.cli.cluster_view, distributed_grid.cli.node_view;"
        "assert not {'textual', 'rich', 'numpy', 'ray'} & set(sys.modules), sorted(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-500:]
