"""One caller's share: of audits, event streams, the event loop, lists and moves. The others keep theirs."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from builders import process
from hypothesis import given
from hypothesis import strategies as st
from served_grid import ServedGrid

from distributed_grid.config import CallerLimits
from distributed_grid.controller import access, event_stream, limits
from distributed_grid.controller.limits import Cost, Rate, TokenLimits, timed
from distributed_grid.leases import view
from distributed_grid.leases.view import fitting
from distributed_grid.offload.offloader import MOVES_AT_ONCE, MOVES_OF_ONE
from distributed_grid.queue import answers

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
    says = fresh.cluster.said_by

    def said_by(raylet: Any) -> Any:
        drawn.wait()
        return says(raylet)

    monkeypatch.setattr(fresh.cluster, "said_by", said_by)
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

    fresh.cluster.upcoming(1, lend, call="said_by")
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


# -- the event loop ------------------------------------------------------------------------------------------


def busy_for(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


def test_calls_that_keep_the_event_loop_busy_count_like_many_requests(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_SECOND_COUNTS", 40_000)  # this grid allows twenty times as many requests as others
    monkeypatch.setattr(limits, "_MOST_AHEAD", 1000)
    made: list[None] = []
    look_ahead = answers.look_ahead

    def slowly(*args: Any, **kwargs: Any) -> Any:
        made.append(None)
        busy_for(0.02)
        return look_ahead(*args, **kwargs)

    monkeypatch.setattr(answers, "look_ahead", slowly)
    eve, ana = fresh.token("eve", "view"), fresh.token("ana", "view")
    fresh.ask("POST", "/plan", SMALL, token=eve)  # what it costs is known from now on
    with ThreadPoolExecutor(40) as callers:
        plans = [callers.submit(fresh.ask, "POST", "/plan", SMALL, token=eve) for _ in range(60)]
        others = [fresh.ask("GET", "/me", token=ana)[0] for _ in range(100)]
        statuses = [plan.result(PATIENCE_S)[0] for plan in plans]

    assert set(others) == {200}
    assert set(statuses) == {200, 429}
    assert len(made) < 30
    assert fresh.ask("POST", "/plan", SMALL, token=ana)[0] == 200


def test_a_call_that_waits_costs_nothing_and_one_that_computes_costs_its_time() -> None:
    async def waits() -> str:
        await asyncio.sleep(0.05)
        return "done"

    async def computes() -> None:
        busy_for(0.03)
        await asyncio.sleep(0)
        busy_for(0.03)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def check() -> None:
        took: list[float] = []
        assert await timed(waits(), took.append) == "done"
        await timed(computes(), took.append)
        with pytest.raises(ValueError, match="no"):
            await timed(fails(), took.append)
        cut_off = asyncio.ensure_future(timed(asyncio.sleep(60), took.append))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        cut_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_off
        assert len(took) == 4
        assert took[0] < 0.03 and took[1] >= 0.06

    asyncio.run(check())


def test_what_a_call_costs_is_counted_ahead_and_forgotten_after_a_while() -> None:
    cost = Cost()
    cost.was(20.0, now=0.0)
    cost.was(0.0, now=1.0)  # cheap ones in between change nothing
    assert 19.0 < cost.expected(1.0) <= 20.0
    assert cost.expected(1000.0) == 0.0
    cost.was(10_000.0, now=1000.0)
    assert cost.expected(1000.0) == limits._MOST_AHEAD, "one call that took very long keeps nobody out"

    known = TokenLimits(CallerLimits(requests_per_second=50))

    async def cheap() -> None:
        pass

    async def ask() -> None:
        for _ in range(50):
            known.delay("ana", time.monotonic())
            await known.weighed("ana", cost_now, cheap)

    cost_now = Cost(20.0, time.monotonic())
    asyncio.run(ask())
    assert known.delay("ana", time.monotonic()) == 0.0, "what it did not cost after all is given back"


def test_what_needs_no_token_is_limited_by_address_and_written_once(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[None] = []
    parameters = access._path_parameters

    def counted(spec: Any) -> Any:
        written.append(None)
        return parameters(spec)

    monkeypatch.setattr(access, "_path_parameters", counted)
    documents = [fresh.raw("GET", "/openapi.json", None, {}).body for _ in range(5)]
    assert len(set(documents)) == 1 and json.loads(documents[0])["paths"]
    assert len(written) == 1

    monkeypatch.setattr(Rate, "delay", lambda self, now, requests=1.0: 100.0)
    status, answer = fresh.ask("GET", "/openapi.json")
    assert (status, answer["error"]["code"]) == (429, "TOO_MANY_REQUESTS")
    assert "Your address" in answer["error"]["message"]
    assert fresh.ask("GET", "/docs")[0] == 429
    assert fresh.ask("GET", "/health") == (200, {"status": "ok"})


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


def test_many_programs_in_a_boost_are_shown_in_few_words_and_a_user_has_so_many_in_all(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    eve = fresh.token("eve", "lend", "view")
    boost = fresh.ask("POST", "/boosts", RESERVED, token=eve)[1]["boost_id"]
    for number in range(64):
        path = f"/boosts/{boost}/programs/p{number}"
        assert fresh.ask("PUT", path, {"label": "x" * 200}, token=eve)[0] == 200
    (shown,) = fresh.ask("GET", "/boosts", token=eve)[1]["boosts"]

    assert shown["programs"][-1] == "and 56 more"
    assert len(json.dumps(shown)) < 3000

    small = CallerLimits(boosts=64)
    monkeypatch.setattr(
        type(fresh.engine), "config", property(lambda self: fresh.config.model_copy(update={"limits": small})), False
    )
    assert fresh.ask("PUT", f"/boosts/{boost}/programs/p1", {"label": "again"}, token=eve)[0] == 200
    assert fresh.ask("PUT", f"/boosts/{boost}/programs/p99", {"label": "new"}, token=eve)[0] == 429


def test_a_reader_pays_for_a_long_answer_but_not_for_all_that_others_have() -> None:
    known = TokenLimits(CallerLimits(requests_per_second=50))
    for second in range(10):
        assert known.delay("ana", now=float(second)) == 0.0
        known.answered("ana", now=float(second), size=10_000_000)

    assert known.delay("ana", now=10.0) == 0.0


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
