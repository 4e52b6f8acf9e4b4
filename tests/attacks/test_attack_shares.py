"""One caller's share: of audits, event streams, the event loop, lists and moves. The others keep theirs."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from builders import process
from hypothesis import given
from hypothesis import strategies as st
from served_grid import ServedGrid

from distributed_grid.controller import event_stream
from distributed_grid.leases import view
from distributed_grid.leases.view import fitting
from distributed_grid.offload.offloader import MOVES_AT_ONCE, MOVES_OF_ONE

PATIENCE_S = 60.0
SHORT = {"target_node": "b", "resource_type": "cpu", "amount": 1, "duration_seconds": 1}
SMALL = {"target_node": "a", "source_node": "b", "resource_type": "cpu", "amount": 0.01}
RESERVED = SMALL | {"delivery": "reserve"}


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


class Drawn:
    """Calls that last until they are let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = 0

    def wait(self) -> None:
        self.begun += 1
        assert self.go_on.wait(PATIENCE_S)


@pytest.fixture
def drawn() -> Iterator[Drawn]:
    drawn = Drawn()
    yield drawn
    drawn.go_on.set()


# -- audits --------------------------------------------------------------------------------------------------


@pytest.fixture
def silent_nodes(fresh: ServedGrid, drawn: Drawn, monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """No raylet says what it has, for as long as the test likes."""
    says = fresh.cluster.reported_by

    def reported_by(raylet: Any) -> Any:
        drawn.wait()
        return says(raylet)

    monkeypatch.setattr(fresh.cluster, "reported_by", reported_by)
    return drawn


def test_while_nodes_do_not_answer_an_audit_boosts_are_granted_and_end_in_time(
    fresh: ServedGrid, silent_nodes: Drawn
) -> None:
    tokens = [fresh.token(f"eve{number}", "view") for number in range(20)]
    with ThreadPoolExecutor(len(tokens)) as callers:
        audits = [callers.submit(fresh.ask, "GET", "/audit", token=token) for token in tokens]
        until(lambda: silent_nodes.begun, "an audit is under way")

        short = fresh.client.request_boost(SHORT)
        until(lambda: not has(fresh, short["boost_id"]), "the short boost has ended")

        assert not any(audit.done() for audit in audits), "it ended while all audits were under way"
        assert silent_nodes.begun == 1, "all who ask share one audit"
        silent_nodes.go_on.set()
        answers = [audit.result(PATIENCE_S) for audit in audits]
    assert {status for status, _ in answers} == {200}
    assert len({answer["at"] for _, answer in answers}) == 1


def has(grid: ServedGrid, boost_id: str) -> bool:
    return any(boost["boost_id"] == boost_id for boost in grid.client.boost_status()["boosts"])


def test_an_audit_of_the_owner_is_a_new_one_and_waits_for_no_other(
    fresh: ServedGrid, silent_nodes: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    eve = fresh.token("eve", "view")
    with ThreadPoolExecutor(2) as callers:
        hers = callers.submit(fresh.ask, "GET", "/audit", token=eve)
        until(lambda: silent_nodes.begun == 1, "eve's audit is under way")
        mine = callers.submit(fresh.client.audit)
        until(lambda: silent_nodes.begun == 2, "the owner's is under way, too")
        silent_nodes.go_on.set()
        assert hers.result(PATIENCE_S)[0] == 200 and mine.result(PATIENCE_S)["sound"]
    before = silent_nodes.begun

    assert fresh.ask("GET", "/audit", token=eve)[0] == 200
    assert silent_nodes.begun == before, "what has just been seen is not looked at again"
    assert fresh.client.audit()["sound"]
    assert silent_nodes.begun > before


def test_an_audit_that_a_round_of_transfers_crosses_looks_again(fresh: ServedGrid) -> None:
    crossed: list[str] = []

    def lend() -> None:
        crossed.append(fresh.client.request_boost(SMALL)["boost_id"])

    fresh.cluster.upcoming(1, lend, call="reported_by")
    report = fresh.client.audit()

    assert crossed and report["sound"] and not report["settled"]


# -- event streams -------------------------------------------------------------------------------------------


@contextmanager
def listening(grid: ServedGrid, token: str) -> Iterator[int]:
    """A stream that stays open; its status."""
    place = urlsplit(grid.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    connection.request(
        "GET", "/api/v1/events", headers={"Accept": "text/event-stream", "Authorization": f"Bearer {token}"}
    )
    answer = connection.getresponse()
    try:
        yield answer.status
    finally:
        answer.close()
        connection.close()


def test_one_token_has_so_many_event_streams_and_the_others_have_theirs(fresh: ServedGrid) -> None:
    eve, ana = fresh.token("eve", "view"), fresh.token("ana", "view")
    with ExitStack() as streams, ThreadPoolExecutor(3 * event_stream.OF_ONE) as callers:
        asked = [callers.submit(streams.enter_context, listening(fresh, eve)) for _ in range(3 * event_stream.OF_ONE)]
        statuses = sorted(each.result(PATIENCE_S) for each in asked)

        assert statuses == [200] * event_stream.OF_ONE + [429] * 2 * event_stream.OF_ONE
        assert streams.enter_context(listening(fresh, ana)) == 200
    until(lambda: stream_of(fresh, eve) == 200, "eve's places are free again")


def stream_of(grid: ServedGrid, token: str) -> int:
    with listening(grid, token) as status:
        return status


def test_some_streams_are_kept_for_admins(fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MOST_AT_ONCE", 4)
    monkeypatch.setattr(event_stream, "FOR_ADMINS", 2)
    users = [fresh.token(name, "view") for name in ("eve", "fay", "ana")]
    admin = fresh.token("root1", "admin")
    with ExitStack() as streams:
        assert [streams.enter_context(listening(fresh, token)) for token in users] == [200, 200, 503]
        owner = fresh.home.token.read_text().strip()
        assert [streams.enter_context(listening(fresh, token)) for token in (admin, owner)] == [200, 200]


def test_however_much_happens_a_stream_costs_one_piece_of_work_in_a_while(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "APART_S", 10.0)
    journal, looked = fresh.engine.parts.journal, []
    since = journal.since

    def counted(number: int) -> Any:
        looked.append(number)
        return since(number)

    monkeypatch.setattr(journal, "since", counted)

    async def much() -> None:
        for number in range(50):
            journal.note("granted", f"boost {number}")
            await asyncio.sleep(0)

    with listening(fresh, fresh.token("ana", "view")) as status:
        assert status == 200
        until(lambda: looked, "the stream is open")
        fresh.in_its_loop(much())
        assert len(looked) == 1


# -- lists ---------------------------------------------------------------------------------------------------

ENTRIES = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 400_000)), max_size=60)


@given(ENTRIES)
def test_a_list_has_a_largest_size_and_every_user_is_in_it(entries: list[tuple[str, int]]) -> None:
    numbers = fitting(entries)

    assert list(numbers) == sorted(set(numbers))
    assert sum(entries[number][1] for number in numbers) <= view.MOST_BYTES
    assert {entries[number][0] for number in numbers} == {user for user, _ in entries}, "five at most fit in any case"
    if sum(size for _, size in entries) <= view.MOST_BYTES:
        assert len(numbers) == len(entries)


def test_however_many_boosts_one_user_has_the_others_are_listed_and_the_answer_says_that_it_is_cut(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view, "MOST_BYTES", 5_000)
    ana, eve = fresh.token("ana", "lend", "view"), fresh.token("eve", "lend", "view")
    mine = fresh.ask("POST", "/boosts", SMALL, token=ana)[1]["boost_id"]
    assert not fresh.ask("GET", "/boosts", token=ana)[1]["cut"]
    for number in range(20):
        fresh.ask("POST", "/boosts", SMALL | {"label": f"{number}" * 300}, token=eve)
        fresh.ask("POST", "/requests", SMALL | {"amount": 90}, token=eve)
    fresh.ask("POST", "/requests", SMALL | {"amount": 90}, token=ana)
    for _ in range(20):
        fresh.ask("POST", "/tasks", {"cpu": 7, "tags": ["x" * 60] * 100, "wait": True}, token=eve)
    fresh.ask("POST", "/tasks", {"cpu": 7, "wait": True}, token=ana)

    for path, part, whose in (
        ("/boosts", "boosts", "requester"),
        ("/boosts?node=a", "boosts", "requester"),
        ("/nodes/a", "boosts", "requester"),
        ("/requests", "requests", "requester"),
        ("/tasks", "tasks", "who"),
    ):
        answer = fresh.ask("GET", path, token=ana)[1]
        assert answer["cut"], path
        assert {"ana", "eve"} == {one[whose] for one in answer[part]}, path
        assert len(json.dumps(answer[part])) < 7_000, path
    cluster = fresh.ask("GET", "/cluster", token=ana)[1]
    assert cluster["boosts"]["cut"] and mine in [one["boost_id"] for one in cluster["boosts"]["boosts"]]
    assert cluster["boosts"]["total_active"] >= 21


@pytest.fixture
def grid_of_few(tmp_path: Path) -> Iterator[ServedGrid]:
    """Where a user may have 64 boosts, and as many programs."""
    grid = ServedGrid(tmp_path, limits={"boosts": 64})
    yield grid
    grid.close()


def test_many_programs_in_a_boost_are_shown_in_few_words_and_a_user_has_so_many_in_all(
    grid_of_few: ServedGrid,
) -> None:
    fresh = grid_of_few
    eve = fresh.token("eve", "lend", "view")
    boost = fresh.ask("POST", "/boosts", RESERVED, token=eve)[1]["boost_id"]
    for number in range(64):
        path = f"/boosts/{boost}/programs/p{number}"
        assert fresh.ask("PUT", path, {"label": "x" * 200}, token=eve)[0] == 200
    (shown,) = fresh.ask("GET", "/boosts", token=eve)[1]["boosts"]

    assert shown["programs"][-1] == "and 56 more"
    assert len(json.dumps(shown)) < 3000

    assert fresh.ask("PUT", f"/boosts/{boost}/programs/p1", {"label": "again"}, token=eve)[0] == 200
    assert fresh.ask("PUT", f"/boosts/{boost}/programs/p99", {"label": "new"}, token=eve)[0] == 429


# -- moves ---------------------------------------------------------------------------------------------------


def test_one_token_moves_so_many_processes_at_once_and_the_owner_can_always_move_one(
    fresh: ServedGrid, drawn: Drawn
) -> None:
    node_id = next(raylet.node_id for raylet in fresh.cluster.raylets() if raylet.labels["grid/name"] == "a")
    stopping: list[str] = []

    def before(step: str) -> None:
        if step == "stop":
            stopping.append(step)
            drawn.wait()

    fresh.control.before = before
    pids = iter(range(4711, 4800))

    def move(token: str) -> tuple[int, Any]:
        pid = next(pids)
        facts = process(pid, "a", machine=f"machine of {node_id}", memory=0, cpu=0.1, environment=("HOME",))
        fresh.control.add(node_id, facts, HOME="/")
        body = {"pid": pid, "to": "b", "grace_seconds": 600, "cpus": 0.1}
        return fresh.ask("POST", "/offload", body, token=token)

    first, second, third = (fresh.token("ana", "run") for _ in range(3))
    with ThreadPoolExecutor(2 * MOVES_AT_ONCE) as callers:
        moves = [callers.submit(move, first) for _ in range(2 * MOVES_OF_ONE)]
        until(lambda: sum(each.done() for each in moves) == MOVES_OF_ONE, "the others of this token are refused")
        refused = [each.result() for each in moves if each.done()]
        assert {(status, answer["error"]["code"]) for status, answer in refused} == {(429, "TOO_MANY_REQUESTS")}

        moves += [callers.submit(move, second) for _ in range(MOVES_OF_ONE)]
        until(lambda: len(stopping) == MOVES_AT_ONCE, "another token has its own")
        assert move(third)[0] == 503
        owners = callers.submit(move, fresh.home.token.read_text().strip())
        until(lambda: len(stopping) == MOVES_AT_ONCE + 1, "the owner's is under way")
        drawn.go_on.set()
        assert owners.result(PATIENCE_S)[0] == 200
        assert [each.result(PATIENCE_S)[0] for each in moves].count(200) == MOVES_AT_ONCE
    assert move(first)[0] == 200, "its places are free again"
