"""Windows at the command line, over HTTP and from Python: created, listed, shown and cancelled; and by whom."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from served_grid import ServedGrid

from distributed_grid import ResourceSharingManager
from distributed_grid.cli.app import app
from distributed_grid.client.lease_keeper import LeaseKeeper
from distributed_grid.controller.metrics import Seen, exposition
from distributed_grid.errors import GridError, ReservedForWindow, WindowNotFound

CPUS = {"target_node": "b", "resource_type": "cpu", "amount": 2}
WINDOW = CPUS | {"name": "w", "at": "Mon-Fri 09:00", "duration_seconds": "3h", "time_zone": "Europe/Berlin"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGrid]:
    found = ServedGrid(tmp_path_factory.mktemp("windows"), teams=[{"name": "vision"}, {"name": "audio"}])
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
    for window in served.client.windows():
        served.client.cancel_window(window["name"], release=True)
    for boost in served.client.boost_status()["boosts"]:
        served.client.release_boost(boost["boost_id"], {"grace_seconds": 0})


def typed(*words: str) -> str:
    done = CliRunner().invoke(app, ["reserve", *words])
    assert done.exit_code == 0, done.exception
    return done.output


def refusal(*words: str) -> GridError:
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, GridError), error
    return error


def create(*more: str) -> dict[str, Any]:
    at = ("--at", "Mon-Fri 09:00", "--for", "3h", "--tz", "Europe/Berlin")
    return json.loads(typed("create", "training", "b", "cpu", "2", *at, *more, "--json"))


def test_a_window_is_created_listed_shown_and_cancelled(served: ServedGrid) -> None:
    made = create("--priority", "high")
    assert (made["at"], made["time_zone"], made["duration_seconds"]) == ("Mon-Fri 09:00", "Europe/Berlin", 10800.0)
    assert (made["state"], made["priority"], made["boost_id"]) == ("promised", "high", None)
    assert len(made["next"]) == 3
    first = made["next"][0]
    assert first["is_on_time"]
    assert datetime.fromisoformat(first["end"]) - datetime.fromisoformat(first["begin"]) == timedelta(hours=3)
    assert first["expected_sources"]

    assert json.loads(typed("ls", "--json")) == served.client.windows()
    (header, line) = typed("ls").splitlines()
    assert header.split()[0] == "Window"
    assert "Mon-Fri 09:00 Europe/Berlin" in line
    card = typed("show", "training")
    assert "2 CPUs for b, Mon-Fri 09:00 (Europe/Berlin), for 3.0 h" in card
    assert "will lend it from" in card
    assert "training" in [
        word.value for word in ShellComplete(app, {}, "grid", "X").get_completions(["reserve", "show"], "")
    ]

    assert "promises nothing any more" in typed("cancel", "training")
    assert "There are no windows" in typed("ls")
    assert isinstance(refusal("reserve", "show", "training"), WindowNotFound)


def test_the_controllers_own_zone_is_made_explicit() -> None:
    made = json.loads(typed("create", "here", "b", "cpu", "1", "--at", "daily 22:00", "--for", "1h", "--json"))
    assert made["time_zone"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("w", "b", "cpu", "2", "--at", "sometimes", "--for", "1h"), 2),
        (("w/x", "b", "cpu", "2", "--at", "daily 09:00", "--for", "1h"), 2),
        (("w", "b", "cpu", "2", "--at", "daily 09:00", "--for", "30h"), 2),
        (("w", "b", "cpu", "2", "--at", "daily 09:00", "--for", "1h", "--tz", "Nowhere"), 2),
        (("w", "b", "cpu", "1000", "--at", "daily 09:00", "--for", "1h"), 4),
        (("w", "nowhere", "cpu", "1", "--at", "daily 09:00", "--for", "1h"), 3),
    ],
)
def test_what_cannot_be_promised_is_refused(served: ServedGrid, words: tuple[str, ...], code: int) -> None:
    assert refusal("reserve", "create", *words).exit_code == code
    assert served.client.windows() == []


def test_a_request_in_its_way_learns_which_window_and_for_how_long_it_could_have_it(served: ServedGrid) -> None:
    begin = datetime.now(UTC) + timedelta(hours=3)
    at = ("--at", f"{begin:%Y-%m-%d %H:%M}", "--tz", "UTC", "--for", "1h")
    typed("create", "all", "b", "cpu", "16", *at)
    refused = refusal("boost", "request", "b", "cpu", "4", "--duration", "10h")
    assert any("[ReservedForWindow]" in line for line in refused.because)
    assert "t can be lent for 3.0 h: grid boost request b cpu 4 --duration 10" in (refused.try_next or "")
    plan = CliRunner().invoke(app, ["plan", "b", "cpu", "4", "--duration", "10h"])
    assert "then the window all begins" in plan.output
    granted = CliRunner().invoke(app, ["boost", "request", "b", "cpu", "4", "--duration", "2h"])
    assert granted.exit_code == 0, granted.output


def test_only_its_owner_its_team_and_admins_cancel_a_window(served: ServedGrid) -> None:
    ana = served.token("ana", "view", "lend", team="vision")
    eve = served.token("eve", "view", "lend", team="audio")
    bob = served.token("bob", "view", "lend", team="vision")
    reader = served.token("rob", "view")
    assert served.ask("POST", "/windows", WINDOW, token=reader)[0] == 403
    assert served.ask("POST", "/windows", WINDOW | {"priority": "critical"}, token=ana)[0] == 403
    status, made = served.ask("POST", "/windows", WINDOW, token=ana)
    assert (status, made["requester"], made["team"]) == (201, "ana", "vision")
    assert served.ask("POST", "/windows", WINDOW, token=ana)[1]["error"]["code"] == "WINDOW_EXISTS"
    status, answer = served.ask("DELETE", "/windows/w", token=eve)
    assert (status, answer["error"]["code"]) == (403, "NOT_OWNER")
    assert served.ask("GET", "/windows/w", token=reader)[0] == 200
    assert served.ask("DELETE", "/windows/w", token=bob)[0] == 200
    status, answer = served.ask("GET", "/windows/w", token=ana)
    assert (status, answer["error"]["code"]) == (404, "WINDOW_NOT_FOUND")
    events = [entry["event"] for entry in served.audit()]
    assert {"window_created", "window_cancelled"} <= {*events}


def test_the_metrics_count_windows_and_those_that_were_missed() -> None:
    text = exposition(Seen(datetime.now(UTC), windows=2, events={"window_missed": 3})).decode()
    assert "grid_windows 2.0" in text
    assert "grid_windows_missed_total 3.0" in text


def test_the_python_class_creates_lists_and_cancels_windows(served: ServedGrid) -> None:
    async def use() -> None:
        async with ResourceSharingManager() as sharing:
            made = await sharing.create_window(
                "nightly", "b", "cpu", 4, at="daily 22:00", duration="6h", priority="high"
            )
            assert (made["at"], made["amount"], made["priority"]) == ("daily 22:00", 4, "high")
            assert [window["name"] for window in await sharing.windows()] == ["nightly"]
            assert (await sharing.cancel_window("nightly"))["boost_id"] is None
            assert await sharing.windows() == []

    asyncio.run(use())


def test_a_holder_goes_on_trying_to_renew_what_a_window_needs_in_case_it_is_cancelled() -> None:
    now = 0.0
    keeper = LeaseKeeper(60.0, lambda: now)

    def refused() -> None:
        raise ReservedForWindow("its capacity is promised to the window w")

    keeper.renew(refused)
    assert keeper.ended is None
    now = 59.0
    assert keeper.is_due


def test_a_window_promises_no_range(served: ServedGrid) -> None:
    error = refusal("reserve", "create", "w", "b", "cpu", "2..4", "--at", "daily 09:00", "--for", "1h")
    assert error.message == "A window promises a fixed amount, not a range"
