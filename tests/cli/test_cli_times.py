"""Times on the screen are in the reader's zone, which is named each time; in JSON they are in UTC."""

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click import unstyle
from click.testing import CliRunner
from served_grid import ServedGrid

from distributed_grid.cli.app import app
from distributed_grid.cli.audit import entry_line
from distributed_grid.cli.output import explain, readable
from distributed_grid.cli.top.dialogs import error_text
from distributed_grid.cli.top.overview import event_line
from distributed_grid.errors import GridError
from distributed_grid.model.times import clock, local_times, minute, moment, stamp
from distributed_grid.run.held_lease import Reclaim
from distributed_grid.run.monitor import in_words

NOON = datetime(2025, 6, 1, 12, 0, 3, 500_000, tzinfo=UTC)
TIME = re.compile(r"\b\d\d:\d\d\b(?::\d\d)?(?:\.\d+)?\S*(?: \S+)?")


@pytest.fixture(autouse=True)
def _in_kolkata(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "IST-5:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    """A boost that holds all of a lender, and a request that waits for it."""
    found = ServedGrid(tmp_path_factory.mktemp("times"))
    found.client.create_token({"name": "ana", "team": "", "scopes": ["view"], "expires_seconds": None})
    found.client.request_boost({"target_node": "a", "resource_type": "cpu", "amount": 8, "source_node": "b"})
    found.client.request_allocation(
        {"target_node": "a", "resource_type": "cpu", "amount": 8, "source_node": "b", "wait_seconds": None}
    )
    try:
        yield found
    finally:
        found.close()


def typed(served: ServedGrid, *words: str) -> str:
    done = CliRunner().invoke(app, words, env={"GRID_HOME": str(served.home.path), "COLUMNS": "300"})
    return unstyle(done.output)


def test_every_screen_names_the_zone_of_its_times(served: ServedGrid) -> None:
    (boost,) = served.client.boost_status()["boosts"]
    (waiting,) = served.client.queue()["requests"]
    for words in (
        ("boost", "status"),
        ("boost", "renew", boost["boost_id"]),
        ("why", boost["boost_id"]),
        ("why", waiting["request_id"]),
        ("plan", "a", "cpu", "8", "--source", "b"),
        ("resource-sharing", "queue"),
        ("resource-sharing", "status"),
        ("cluster", "status"),
        ("token", "ls"),
        ("audit", "log"),
    ):
        shown = typed(served, *words)
        times = TIME.findall(shown)
        assert times, (words, shown)
        assert all(re.fullmatch(r"\d\d:\d\d(:\d\d)? IST[);,:]*", each) for each in times), (words, shown)


def test_an_hour_here_is_the_hour_of_the_data(served: ServedGrid) -> None:
    (boost,) = served.client.boost_status()["boosts"]
    ends = datetime.fromisoformat(boost["expires_at"]) + timedelta(hours=5, minutes=30)
    assert f"{ends:%H:%M}" in typed(served, "boost", "status")
    assert boost["expires_at"].endswith("Z")
    (granted,) = json.loads(typed(served, "audit", "log", "--event", "granted", "--json"))["entries"]
    assert re.search(r"until \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", granted["message"])


def test_sentences_have_their_times_in_the_readers_zone() -> None:
    reported = f"kept until {stamp(NOON)}, back by {minute(NOON)}"
    assert reported == "kept until 2025-06-01T12:00:03Z, back by 2025-06-01T12:00Z"
    assert local_times(reported, now=NOON) == "kept until 17:30:03 IST, back by 17:30 IST"
    assert local_times(reported, now=NOON + timedelta(days=1)).startswith("kept until 2025-06-01 17:30 IST, ")
    assert clock(NOON, now=NOON) == "17:30:03 IST"
    assert local_times("at 9999-12-31T23:59:59Z", now=NOON) == "at 9999-12-31T23:59:59Z"  # no calendar has it here


def test_what_users_wrote_stays_as_it_is() -> None:
    for text in (stamp(NOON), "/data/2025-06-01T12:00:03Z/x", "run-2025-06-01T12:00Z", "--since=2025-06-01T12:00Z"):
        assert local_times(text, now=NOON) == text
    run = {"command": "report 2025-06-01T12:00Z", "why": "ended at 2025-06-01T12:00Z"}
    assert readable(run) == {"command": run["command"], "why": "ended at 2025-06-01 17:30 IST"}


def test_errors_and_events_have_their_times_in_the_readers_zone(capsys: pytest.CaptureFixture[str]) -> None:
    error = GridError("not now", because=[f"back at {stamp(NOON)}"], try_next=f"ask at {minute(NOON)}")
    explain(error, as_json=False)
    assert "back at 2025-06-01 17:30 IST" in capsys.readouterr().err
    *_, try_next, because = error_text(error).splitlines()
    assert (try_next, because) == ("Try: ask at 2025-06-01 17:30 IST", "- back at 2025-06-01 17:30 IST")
    explain(error, as_json=True)
    assert json.loads(capsys.readouterr().err)["error"]["because"] == ["back at 2025-06-01T12:00:03Z"]
    event = {"at": NOON.isoformat(), "event": "granted", "message": f"until {stamp(NOON)}"}
    assert event_line(readable(event)).plain == "2025-06-01 17:30 IST granted until 2025-06-01 17:30 IST"
    assert unstyle(entry_line(readable(event))).startswith("2025-06-01 17:30:03 IST   granted")


def test_a_program_that_has_to_leave_its_lease_is_told_when_here() -> None:
    ending: Any = {"cause": "expired", "by": "grid", "reason": "expired", "claimant": None}
    reported = in_words(Reclaim(ending, time.monotonic() + 60), "3f2a91c0", "The program")
    assert re.search(r"keeps it until (\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)? IST \(for 60 s\)", reported)


def test_a_moment_without_a_zone_is_one_here() -> None:
    assert moment("2025-06-01T17:30", now=NOON, zone=None) == NOON.replace(second=0, microsecond=0)
    assert moment("2025-06-01T12:00Z", now=NOON, zone=None) == NOON.replace(second=0, microsecond=0)
