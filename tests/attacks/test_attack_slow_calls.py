"""Slow calls: whatever callers draw out, the engine goes on, and the other callers get their turn."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_grid import ServedGrid

from distributed_grid import threads
from distributed_grid.errors import TooBusy, TooManyRequests
from distributed_grid.threads import FairPool, Turns

RESERVED = {"target_node": "a", "resource_type": "cpu", "amount": 1, "delivery": "reserve"}
HEAD = {"head_address": "10.0.0.1:6400"}
PATIENCE_S = 60.0


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


class Drawn:
    """Calls to the cluster that last until they are let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun: Counter[str] = Counter()

    def __call__(self, lease: Any, head_address: str) -> None:
        self.begun[lease.requester] += 1
        assert self.go_on.wait(PATIENCE_S)


@pytest.fixture
def drawn(fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drawn]:
    drawn = Drawn()
    monkeypatch.setattr(fresh.cluster, "join_private_cluster", drawn)
    yield drawn
    drawn.go_on.set()


@contextmanager
def slow_calls(grid: ServedGrid, token: str, count: int) -> "Iterator[list[Future[tuple[int, Any]]]]":
    """So many calls of one token that start a private cluster, each in a boost of its own."""
    boosts = [grid.ask("POST", "/boosts", RESERVED, token=token)[1]["boost_id"] for _ in range(count)]
    with ThreadPoolExecutor(count) as callers:
        yield [callers.submit(grid.ask, "POST", f"/boosts/{each}/raylet", HEAD, token=token) for each in boosts]


def test_while_slow_calls_last_boosts_are_granted_end_in_time_and_requests_are_answered(
    fresh: ServedGrid, drawn: Drawn
) -> None:
    eve = fresh.token("eve", "lend", "run")
    with slow_calls(fresh, eve, 7) as calls:
        until(lambda: drawn.begun["eve"] >= threads.SLOW.turns.of_one, "eve's calls are under way")

        short = fresh.client.request_boost(
            {"target_node": "b", "resource_type": "cpu", "amount": 1, "duration_seconds": 1}
        )
        gone = until(lambda: not has(fresh, short["boost_id"]), "the short boost has ended")

        assert gone and not any(call.done() for call in calls), "it ended while all slow calls were under way"
        assert fresh.client.cluster_status()["nodes"]
        assert fresh.client.audit_log(limit=1)
        drawn.go_on.set()
        assert [call.result(PATIENCE_S)[0] for call in calls] == [200] * 7


def has(grid: ServedGrid, boost_id: str) -> bool:
    return any(boost["boost_id"] == boost_id for boost in grid.client.boost_status()["boosts"])


def test_one_token_never_takes_all_the_threads_for_slow_calls(fresh: ServedGrid, drawn: Drawn) -> None:
    eve, ana = fresh.token("eve", "lend", "run"), fresh.token("ana", "lend", "run")
    with slow_calls(fresh, eve, 6) as of_eve:
        until(lambda: drawn.begun["eve"] == threads.SLOW.turns.of_one, "eve has her part")
        with slow_calls(fresh, ana, 1) as of_ana:
            until(lambda: drawn.begun["ana"] == 1, "ana's call is under way, too")
            drawn.go_on.set()
            assert {call.result(PATIENCE_S)[0] for call in (*of_eve, *of_ana)} == {200}


def test_a_caller_with_too_many_waiting_slow_calls_learns_so_and_when_to_retry(
    fresh: ServedGrid, drawn: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "SLOW", FairPool("small", Turns(1, 1, waiting_of_one=1, waiting=1)))
    eve, ana = fresh.token("eve", "lend", "run"), fresh.token("ana", "view")
    mine, other = (fresh.ask("POST", "/boosts", RESERVED, token=eve)[1]["boost_id"] for _ in range(2))
    with slow_calls(fresh, eve, 1):
        until(lambda: drawn.begun["eve"], "the first is under way")
        with ThreadPoolExecutor(1) as callers:
            waits = callers.submit(fresh.ask, "POST", f"/boosts/{mine}/raylet", HEAD, token=eve)
            until(lambda: threads.SLOW.turns.waiting_now, "the second waits")

            theirs = fresh.raw("POST", f"/boosts/{other}/raylet", HEAD, {"Authorization": f"Bearer {eve}"})
            anas = fresh.ask("GET", "/offload/candidates", token=ana)
            drawn.go_on.set()

            assert (theirs.status, theirs.json()["error"]["code"]) == (429, "TOO_MANY_REQUESTS")
            assert (anas[0], anas[1]["error"]["code"]) == (503, "TOO_BUSY")
            assert waits.result(PATIENCE_S)[0] == 200


# -- turns ---------------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["a", "a", "a", "b", "done"]), max_size=60), st.integers(1, 4), st.integers(1, 3))
def test_every_call_gets_its_turn_or_is_refused_and_no_caller_has_more_than_its_part(
    steps: list[str], at_once: int, of_one: int
) -> None:
    turns = Turns(at_once, of_one, waiting_of_one=3, waiting=5)
    asked: list[tuple[str, Future[None]]] = []
    over = 0

    def under_way() -> list[str]:
        return [who for who, turn in asked if turn.done()][over:]

    def end_one() -> None:
        nonlocal over
        running = [(who, turn) for who, turn in asked if turn.done()]
        asked[:] = running + [each for each in asked if not each[1].done()]
        turns.done(running[over][0])
        over += 1

    for step in steps:
        if step == "done":
            if under_way():
                end_one()
            continue
        waiting = [who for who, turn in asked if not turn.done()]
        try:
            asked.append((step, turns.ask(step)))
        except TooBusy as error:
            assert error.retry_after_s > 0
            assert isinstance(error, TooManyRequests) == (waiting.count(step) == 3)
            assert waiting.count(step) == 3 or len(waiting) == 5
        running = Counter(under_way())
        assert running.total() <= at_once and all(count <= of_one for count in running.values())
    while under_way():
        end_one()
    assert all(turn.done() for _, turn in asked)
    assert (turns.waiting_now, turns.running_now) == (0, 0)


def test_callers_take_turns_however_many_calls_one_of_them_has() -> None:
    turns = Turns(at_once=1, of_one=1, waiting_of_one=10, waiting=30)
    asked = [(who, turns.ask(who)) for who in "aaaaaabc"]
    order = []
    while waiting := [(who, turn) for who, turn in asked if turn.done()]:
        order.append(waiting[0][0])
        asked.remove(waiting[0])
        turns.done(waiting[0][0])

    assert set(order[:4]) == {"a", "b", "c"}
    assert len(order) == 8


def test_a_call_whose_caller_is_gone_takes_no_turn() -> None:
    turns = Turns(at_once=1, of_one=1, waiting_of_one=10, waiting=30)
    first, gone, last = (turns.ask("a") for _ in range(3))
    gone.cancel()
    turns.done("a")

    assert first.done() and last.done() and gone.cancelled()


def test_what_a_call_raises_comes_to_its_caller_and_its_turn_is_over() -> None:
    def fails() -> None:
        raise ValueError("no")

    pool = FairPool("test", Turns(at_once=1, of_one=1, waiting_of_one=1, waiting=1))

    async def ask() -> None:
        threads.caller.set("ana")
        for _ in range(3):
            with pytest.raises(ValueError, match="no"):
                await pool.run(fails)

    asyncio.run(ask())


def test_all_callers_that_request_a_survey_at_once_get_the_same_one(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    go_on = threading.Event()

    def drawn_out() -> None:
        begun.append(threading.current_thread())
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(fresh.control, "before_scan", drawn_out)
    eve, ana = fresh.token("eve", "view"), fresh.token("ana", "view")
    with ThreadPoolExecutor(9) as callers:
        of_eve = [callers.submit(fresh.ask, "GET", "/offload/candidates", token=eve) for _ in range(8)]
        until(lambda: begun, "eve's survey is under way")
        of_ana = callers.submit(fresh.ask, "GET", "/offload/candidates", token=ana)
        fresh.client.cluster_status()
        go_on.set()
        answers = [call.result(PATIENCE_S) for call in (*of_eve, of_ana)]

    assert {status for status, _ in answers} == {200}
    assert fresh.ask("GET", "/offload/candidates", token=eve)[0] == 200
    assert len(begun) == 1, "what has just been seen is not looked at again"
    assert fresh.ask("GET", "/offload/candidates?node=a", token=eve)[0] == 200
    assert len(begun) == 2


def test_a_survey_that_too_many_of_all_callers_delay_is_not_refused_as_the_callers_own_fault(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []
    go_on = threading.Event()

    def drawn_out() -> None:
        begun.append(threading.current_thread())
        assert go_on.wait(PATIENCE_S)

    monkeypatch.setattr(threads, "SLOW", FairPool("small", Turns(1, 1, waiting_of_one=1, waiting=9)))
    monkeypatch.setattr(fresh.control, "before_scan", drawn_out)
    eve, ana = fresh.token("eve", "view"), fresh.token("ana", "view")
    with ThreadPoolExecutor(2) as callers:
        first = callers.submit(fresh.ask, "GET", "/offload/candidates?node=a", token=eve)
        until(lambda: begun, "eve's first survey is under way")
        second = callers.submit(fresh.ask, "GET", "/offload/candidates?node=b", token=eve)
        until(lambda: threads.SLOW.turns.waiting_now, "her second waits")

        status, answer = fresh.ask("GET", "/offload/candidates?node=c", token=ana)
        go_on.set()

        assert (status, answer["error"]["code"]) == (503, "TOO_BUSY")
        assert answer["error"]["message"] == "1 surveys of the nodes' processes are already waiting"
        assert "for all callers" in answer["error"]["because"][0]
        assert {first.result(PATIENCE_S)[0], second.result(PATIENCE_S)[0]} == {200}


def test_an_answer_that_many_share_lasts_for_its_time_only_and_an_error_not_at_all() -> None:
    asked: list[int] = []

    async def call() -> int:
        asked.append(1)
        if len(asked) == 1:
            raise ValueError("no")
        return len(asked)

    async def ask() -> list[int]:
        shared: threads.Shared[str, int] = threads.Shared(lasts_s=0.2)
        with pytest.raises(ValueError, match="no"):
            await shared.run("a", call)
        first = [await shared.run("a", call), await shared.run("a", call)]
        await asyncio.sleep(0.25)
        return [*first, await shared.run("a", call)]

    assert asyncio.run(ask()) == [2, 2, 3]
