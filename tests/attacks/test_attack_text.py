"""Text that others wrote reaches no terminal as an order: whatever it is, in every command that shows it."""

import json
import os
import pty
import re
import subprocess
import sys
import tty
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from builders import process
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from property_examples import examples
from served_grid import ServedGrid

from distributed_grid.cli.app import app
from distributed_grid.cli.audit import entry_line
from distributed_grid.cli.output import explain, show
from distributed_grid.cli.tables import boost_card, boost_table
from distributed_grid.errors import GridError
from distributed_grid.logs import logger
from distributed_grid.model.plain_text import only_styled, plain, plain_data

GRID = str(Path(sys.executable).with_name("grid"))
EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[8mhidden\r\x9b31m\u202eesrever\u2028x\x00"
STYLE = re.compile(r"\x1b\[[0-9;]*m")
WORDS = st.text(max_size=40)
DATA = st.recursive(WORDS | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner))


def is_harmless(shown: str) -> bool:
    """Nothing but what can be seen, ends of lines, tabs, and colours, which are grid's own."""
    return all(line.isprintable() for line in re.split("[\n\t]", STYLE.sub("", shown)))


@given(WORDS)
@example(EVIL)
def test_whatever_the_text_it_can_be_seen_and_plain_text_stays_as_it_is(text: str) -> None:
    assert plain(text).isprintable()
    assert plain(plain(text)) == plain(text)
    assert not text.isprintable() or plain(text) == text
    assert is_harmless(only_styled(text))
    assert is_harmless(plain(text, keep="\n"))


@given(DATA)
def test_all_text_in_data_can_be_seen_wherever_it_is(data: object) -> None:
    for text in _texts(plain_data(data)):
        assert text.isprintable()


def _texts(data: object) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from (*_texts(key), *_texts(value))
    elif isinstance(data, list):
        for each in data:
            yield from _texts(each)


def boost(text: str) -> dict[str, object]:
    return {
        "boost_id": "83bd2028-6661-4b6f-9ef6-5014d3562c34",
        **dict.fromkeys(("source_node", "target_node", "resource_type", "priority", "delivery_reason"), text),
        **dict.fromkeys(("state", "label", "requester", "team", "cause", "purpose", "delivery"), text),
        "amount": 1,
        "resources": {text: 1},
        "allocated_at": "2025-06-01T12:00:00Z",
        "expires_at": "2025-06-01T13:00:00Z",
        "notice": {"amount": 1, "reason": text, "asked_at": "2025-06-01T12:00:00Z", "deadline": "2025-06-01T12:00:00Z"},
        "ending": {
            **dict.fromkeys(("cause", "by", "reason", "on_grace_end"), text),
            "asked_at": "2025-06-01T12:00:00Z",
            "deadline": "2025-06-01T12:00:30Z",
            "claimant": dict.fromkeys(("request_id", "requester", "team", "priority", "wants"), text),
        },
        "checkpointed_at": None,
        "placement_group": None,
        "at_most": 2,
        "capacity": {text: 1},
        "grown": [{"source_node": text, "amount": 1, "resources": {text: 1}, "reason": text}],
        "parts": [{"source_node": text, "amount": 1, "resources": {text: 1}, "reason": text}],
        "warnings": [text],
    }


@given(WORDS)
@example(EVIL)
@settings(max_examples=examples(50))
def test_tables_cards_log_lines_and_errors_show_any_text_harmlessly(text: str) -> None:
    status = {"total_active": 1, "resources": {text: 1}, "boosts": [boost(text)], "problems": [text], "cut": True}
    entry = {"at": text, "event": text, "who": text, "boost_id": text, "node": text, "message": text}

    def shown(runner: CliRunner, doing: object) -> str:
        with runner.isolation() as (out, err, _):
            doing()  # type: ignore[operator]
        return (out.getvalue() + err.getvalue()).decode("utf-8", "surrogateescape")

    for doing in (
        lambda: show(status, False, boost_table),
        lambda: show(boost(text), False, boost_card),
        lambda: show({"entries": [entry]}, False, lambda found: "\n".join(map(entry_line, found["entries"]))),
        lambda: explain(GridError(text, because=[text], try_next=text), as_json=False),
    ):
        assert is_harmless(shown(CliRunner(), doing))


@pytest.fixture(scope="module")
def hostile(served: ServedGrid) -> ServedGrid:
    """A grid into which an attacker wrote what they could: labels, tags, names that are wrong."""
    eve = served.token("eve", "lend", "view")
    for kind, body in (
        ("/boosts", {"target_node": "a", "resource_type": "cpu", "amount": 1, "label": EVIL}),
        ("/boosts", {"target_node": "a", "resource_type": "cpu", "amount": 99, "source_node": "b", "label": EVIL}),
        ("/boosts", {"target_node": EVIL, "resource_type": "cpu", "amount": 1}),
        ("/boosts", {"target_node": "a", "resource_type": EVIL, "amount": EVIL}),
        ("/requests", {"target_node": "a", "resource_type": "cpu", "amount": 80, "label": EVIL}),
        ("/tasks", {"task_id": f"x{EVIL}", "cpu": 1, "tags": [EVIL], "wait": True}),
        ("/tasks", {"task_id": f"y{EVIL}", "cpu": 500, "tags": [EVIL], "wait": True}),
    ):
        served.ask("POST", kind, body, token=eve)
    return served


COMMANDS = [
    ["boost", "status"],
    ["boost", "status", "--all"],
    ["boost", "release", EVIL.replace("\0", "")],
    ["cluster", "status"],
    ["node", "ls"],
    ["node", "show", "a"],
    ["node", "show", EVIL.replace("\0", "")],
    ["audit", "log"],
    ["audit"],
    ["resource-sharing", "queue"],
    ["resource-sharing", "status"],
    ["tasks", "ls"],
    ["offload", "status"],
    ["token", "ls"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_no_command_passes_on_what_a_terminal_would_take_for_an_order(hostile: ServedGrid, words: list[str]) -> None:
    env = os.environ | {"GRID_HOME": str(hostile.home.path), "PYTHONIOENCODING": "utf-8:surrogateescape"}
    done = subprocess.run([GRID, *words], env=env, capture_output=True, timeout=60, check=False)

    said = (done.stdout + done.stderr).decode("utf-8", "surrogateescape")
    assert said and "Traceback" not in said
    assert is_harmless(said), repr(said)


def test_why_shows_any_text_harmlessly(hostile: ServedGrid) -> None:
    waiting = hostile.client.queue()["requests"][0]["request_id"]
    given = hostile.client.boost_status()["boosts"][0]["boost_id"]
    for one in (waiting, given):
        done = CliRunner().invoke(app, ["why", one], env={"GRID_HOME": str(hostile.home.path)})
        assert done.exit_code == 0 and is_harmless(done.output), repr(done.output)


def test_json_keeps_the_text_and_writes_it_out(hostile: ServedGrid) -> None:
    env = os.environ | {"GRID_HOME": str(hostile.home.path)}
    done = subprocess.run(
        [GRID, "audit", "log", "--json"], env=env, capture_output=True, text=True, timeout=60, check=True
    )

    assert is_harmless(done.stdout)
    assert any(EVIL in str(entry.get("node")) for entry in json.loads(done.stdout)["entries"])


def test_the_controllers_own_log_has_no_orders_either(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise ValueError(EVIL)
    except ValueError:
        logger().exception("it failed", node=EVIL)

    assert is_harmless(capsys.readouterr().err)


def test_what_a_moved_process_writes_reaches_a_terminal_written_out_and_a_file_as_it_is(
    fresh: ServedGrid,
) -> None:
    node_id = next(raylet.node_id for raylet in fresh.cluster.raylets() if raylet.labels["grid/name"] == "a")
    facts = process(4711, "a", machine=f"machine of {node_id}", memory=0, environment=("HOME",))
    fresh.control.add(node_id, facts, HOME="/")
    fresh.control.written = f"line 1\r\nline 2\rline 3 {EVIL}\tend\n"
    moved = fresh.client.offload({"pid": 4711, "to": "b"})["offload"]["offload_id"]
    command = [GRID, "offload", "log", moved]
    env = os.environ | {"GRID_HOME": str(fresh.home.path)}

    piped = subprocess.run(command, env=env, stdout=subprocess.PIPE, timeout=60, check=True).stdout
    keyboard, screen = pty.openpty()
    tty.setraw(screen)
    with os.fdopen(keyboard, "rb", buffering=0) as shown:
        subprocess.run(command, env=env, stdout=screen, stdin=subprocess.DEVNULL, timeout=60, check=True)
        os.close(screen)
        seen = b""
        with suppress(OSError):  # which is how the end of a terminal is told
            while part := shown.read(4096):
                seen += part

    assert piped.decode() == fresh.control.written
    assert is_harmless(seen.decode())
    assert seen.decode().startswith("line 1\nline 2\nline 3 \\x1b]0;owned")
