"""A caller's turn: however much one asks for, and whatever it costs, the others begin at once.

Most tests use an event loop whose clock stands still while anything runs, and requests that say what they cost.
"""

import asyncio
import json
import selectors
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from served_grid import ServedGrid

from distributed_grid import threads
from distributed_grid.config import CallerLimits
from distributed_grid.controller import access, limits
from distributed_grid.controller.limits import (
    AT_ONCE,
    BURST_S,
    LIGHT_S,
    LONGEST_DELAY_S,
    REQUEST_S,
    Rate,
    TokenLimits,
)
from distributed_grid.queue import answers

PATIENCE_S = 60.0
PLAN = {"target_node": "a", "source_node": "b", "resource_type": "cpu", "amount": 0.01}


class _Jumping(selectors.DefaultSelector):
    now = 1000.0
    turns = 0
    """How often the event loop has looked around."""

    def select(self, timeout: float | None = None) -> Any:
        self.turns += 1
        self.now += timeout or 0.0
        return super().select(0)


class Loop(asyncio.SelectorEventLoop):
    """Its clock moves only when all that runs waits for it."""

    def __init__(self) -> None:
        self.jumping = _Jumping()
        super().__init__(self.jumping)

    def time(self) -> float:
        return self.jumping.now


class Callers:
    """Requests that cost what they say, and when each began or was refused."""

    def __init__(self, per_second: int = 50) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        self._loop = loop
        self.limits = TokenLimits(CallerLimits(requests_per_second=per_second), clock=self._loop.time)
        self.began: list[tuple[str, float]] = []
        self.refused: list[tuple[str, float]] = []
        self.turns: Counter[int] = Counter()
        """How many requests began in each turn of the event loop."""

    async def ask(self, name: str, cost_s: float = 0.0, lasts_s: float = 0.0) -> None:
        async def call() -> None:
            self.began.append((name, self._loop.time()))
            self.turns[self._loop.jumping.turns] += 1
            count = threads.used.get()
            assert count is not None
            count(cost_s)
            await asyncio.sleep(lasts_s)

        async def refuse(error: Exception) -> None:
            self.refused.append((name, self._loop.time()))

        # Each request has its own task, as in the server.
        await asyncio.create_task(self.limits.run(name, call, refuse))

    def count(self, name: str) -> int:
        return Counter(each for each, _ in self.began)[name]


def on_a_still_clock(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(scene())


# -- the hostile ---------------------------------------------------------------------------------------------


def test_while_one_asks_for_a_hundred_costly_things_at_once_the_others_begin_at_once() -> None:
    async def scene() -> None:
        callers, loop = Callers(), asyncio.get_running_loop()
        flood = asyncio.gather(*(callers.ask("eve", cost_s=0.01) for _ in range(100)))
        for _ in range(50):
            await asyncio.sleep(0.1)
            arrived, before = loop.time(), callers.count("eve")
            await callers.ask("ana", cost_s=0.001)
            assert callers.began[-1] == ("ana", arrived)
            assert callers.count("eve") - before <= 1
        await flood

    on_a_still_clock(scene)


def test_of_what_comes_at_once_one_begins_in_a_turn_of_the_event_loop() -> None:
    async def scene() -> None:
        callers = Callers()
        await asyncio.gather(*(callers.ask("eve") for _ in range(50)))
        assert len(callers.turns) == 50
        assert set(callers.turns.values()) == {1}

    on_a_still_clock(scene)


def test_ten_hostile_callers_together_leave_most_of_the_controller_to_the_others() -> None:
    async def scene() -> None:
        callers, loop = Callers(), asyncio.get_running_loop()
        names, cost_s = [f"eve{number}" for number in range(10)], 0.005
        floods = asyncio.gather(*(callers.ask(name, cost_s) for _ in range(60) for name in names))
        began = loop.time()
        await asyncio.sleep(4.0)
        used_s = cost_s * len(callers.began)
        assert used_s < 0.15 * (loop.time() - began)
        counts = [callers.count(name) for name in names]
        assert max(counts) - min(counts) <= 2, "they take turns"
        await floods

    on_a_still_clock(scene)


@pytest.mark.parametrize("cost_s", [REQUEST_S, 0.004, 0.05])
def test_over_time_a_caller_uses_its_part_whatever_its_calls_cost(cost_s: float) -> None:
    async def scene() -> None:
        callers, loop = Callers(per_second=50), asyncio.get_running_loop()
        end = loop.time() + 60.0

        async def again() -> None:
            while loop.time() < end:
                await callers.ask("eve", cost_s)

        await asyncio.gather(*(again() for _ in range(8)))
        used_s = callers.count("eve") * cost_s
        assert used_s <= 50 * REQUEST_S * (60.0 + LONGEST_DELAY_S + BURST_S) + cost_s
        assert used_s > 0.5 * 50 * REQUEST_S * 60.0, "and it gets that part"

    on_a_still_clock(scene)


def test_what_waits_too_long_is_refused_one_by_one_and_told_when_to_come_again() -> None:
    async def scene() -> None:
        callers = Callers(per_second=1)
        reported: list[Any] = []

        async def refuse(error: Any) -> None:
            reported.append(error)
            count = threads.used.get()
            assert count is not None
            count(0.003)

        async def call() -> None:
            callers.began.append(("eve", 0.0))

        requests = asyncio.gather(*(callers.limits.run("eve", call, refuse) for _ in range(100)))
        await asyncio.sleep(LONGEST_DELAY_S + 0.1)
        assert 0 < len(reported) < 50, "the others are still to be told"
        await requests

        assert len(callers.began) == BURST_S + LONGEST_DELAY_S + 1
        assert len(reported) + len(callers.began) == 100
        assert reported[0].retry_after_s == LONGEST_DELAY_S
        assert "more than 1 requests per second" in reported[0].message

    on_a_still_clock(scene)


def test_only_so_many_requests_of_a_caller_are_under_way_at_once() -> None:
    async def scene() -> None:
        callers = Callers(per_second=10_000)
        long = asyncio.gather(*(callers.ask("eve", lasts_s=60.0) for _ in range(AT_ONCE + 10)))
        await asyncio.sleep(LONGEST_DELAY_S + 1.0)
        assert (callers.count("eve"), len(callers.refused)) == (AT_ONCE, 10)
        await callers.ask("ana")
        assert callers.count("ana") == 1
        await long
        await callers.ask("eve")
        assert callers.count("eve") == AT_ONCE + 1

    on_a_still_clock(scene)


def test_a_caller_that_leaves_while_it_waits_keeps_no_other_from_its_turn() -> None:
    async def scene() -> None:
        callers = Callers(per_second=1)
        waits = [asyncio.create_task(callers.ask("eve", cost_s=0.003)) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for each in waits[1:4]:
            each.cancel()
        await waits[4]
        assert callers.count("eve") == 2

    on_a_still_clock(scene)


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 5)), max_size=60), st.sampled_from([1.0, 10.0, 50.0]))
def test_over_any_time_a_caller_gets_its_rate_and_a_burst_and_is_never_out_for_long(
    steps: list[tuple[float, float]], per_second: float
) -> None:
    rate, now, taken = Rate(per_second), 1000.0, []
    for pause, seconds in steps:
        now += pause
        assert 0.0 <= rate.delay(now) <= LONGEST_DELAY_S + 1e-6
        if not rate.delay(now):
            rate.take(seconds * per_second, now)
            taken.append((now, seconds))
    for index, (begin, _) in enumerate(taken):
        before = 0.0  # what the last one costs is not known before it begins
        for now, seconds in taken[index:]:
            assert before <= now - begin + BURST_S + 1e-6
            before += seconds


# -- ordinary users ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "times", "every_s", "cost_s"),
    [
        ("grid top, four calls each second", 240, 0.25, 0.004),
        ("Prometheus reads the metrics of a hundred nodes", 60, 10.0, 0.014),
        ("Prometheus reads the metrics of a thousand nodes", 60, 10.0, 0.25),
        ("a job requests twenty boosts in a row and releases them", 40, 0.005, 0.002),
        ("a script asks as fast as it may", 1000, 0.02, REQUEST_S),
        ("grid audit and grid why, each minute", 20, 30.0, 0.1),
    ],
)
def test_an_ordinary_user_never_waits(what: str, times: int, every_s: float, cost_s: float) -> None:
    async def scene() -> None:
        callers, loop = Callers(), asyncio.get_running_loop()
        for _ in range(times):
            arrived = loop.time()
            await callers.ask("ana", cost_s)
            assert callers.began[-1] == ("ana", arrived), what
            await asyncio.sleep(every_s)

    on_a_still_clock(scene)


def test_hostile_callers_take_turns_long_before_their_buckets_are_empty() -> None:
    async def scene() -> None:
        callers, loop = Callers(), asyncio.get_running_loop()
        floods = asyncio.gather(*(callers.ask(f"eve{n % 10}", REQUEST_S) for n in range(10 * 100)))
        began = loop.time()
        await asyncio.sleep(0.5)
        used_s = REQUEST_S * len(callers.began)
        assert used_s < 10 * LIGHT_S * 50 * REQUEST_S + 0.15 * (loop.time() - began)
        await floods
        assert not callers.refused, "a full bucket has room for all of them"

    on_a_still_clock(scene)


def test_a_program_that_asks_for_fifty_things_at_once_gets_all_of_them() -> None:
    async def scene() -> None:
        callers = Callers()
        await asyncio.gather(*(callers.ask("ana", cost_s=0.001) for _ in range(50)))
        assert callers.count("ana") == 50 and not callers.refused

    on_a_still_clock(scene)


# -- what is counted -----------------------------------------------------------------------------------------


def busy_for(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


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

    async def cost_of(call: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
        took: list[float] = []
        answer = await threads.timed(call, took.append)
        return sum(took), answer

    async def check() -> None:
        spent, answer = await cost_of(waits())
        assert answer == "done" and spent < 0.03
        assert (await cost_of(computes()))[0] >= 0.06
        with pytest.raises(ValueError, match="no"):
            await cost_of(fails())
        cut_off = asyncio.ensure_future(cost_of(asyncio.sleep(60)))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        cut_off.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut_off

    asyncio.run(check())


def test_what_a_call_computes_in_a_thread_counts_as_its_callers_and_so_does_what_callers_share() -> None:
    async def check() -> None:
        counted: list[float] = []
        threads.caller.set("eve")
        threads.used.set(counted.append)
        await threads.READING.run(busy_for, 0.03)
        await asyncio.sleep(0)
        assert sum(counted) >= 0.03

        async def compute() -> None:
            busy_for(0.05)

        shared: threads.Shared[None, None] = threads.Shared(of=threads.ALL_AUDITS)
        await shared.run(None, compute)
        assert sum(counted) >= 0.08

    asyncio.run(check())


# -- over HTTP -----------------------------------------------------------------------------------------------


def test_calls_that_keep_the_event_loop_busy_count_like_many_requests(
    fresh: ServedGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REQUEST_S", REQUEST_S / 20)  # this grid allows twenty times as many requests as others
    made: list[None] = []
    look_ahead = answers.look_ahead

    def slowly(*args: Any, **kwargs: Any) -> Any:
        made.append(None)
        busy_for(0.02)
        return look_ahead(*args, **kwargs)

    monkeypatch.setattr(answers, "look_ahead", slowly)
    eve, ana = fresh.token("eve", "view"), fresh.token("ana", "view")
    with ThreadPoolExecutor(40) as callers:
        plans = [callers.submit(fresh.ask, "POST", "/plan", PLAN, token=eve) for _ in range(60)]
        others = [fresh.ask("GET", "/me", token=ana)[0] for _ in range(100)]
        statuses = [plan.result(PATIENCE_S)[0] for plan in plans]

    assert set(others) == {200}
    assert set(statuses) == {200, 429}
    assert len(made) < 30
    assert fresh.ask("POST", "/plan", PLAN, token=ana)[0] == 200


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bucket is empty, and no request waits long."""
    monkeypatch.setattr(Rate, "delay", lambda self, now: 100.0)
    monkeypatch.setattr(limits, "LONGEST_DELAY_S", 0.05)


def test_a_caller_that_is_refused_is_told_so_and_the_owner_is_not_refused(served: ServedGrid, hasty: None) -> None:
    eve = served.token("eve", "view")
    status, answer = served.ask("GET", "/me", token=eve)

    assert (status, answer["error"]["code"]) == (429, "TOO_MANY_REQUESTS")
    assert served.client.cluster_status()


def test_what_needs_no_token_is_written_once() -> None:
    written: list[None] = []

    class Counting(FastAPI):
        def openapi(self) -> dict[str, Any]:
            written.append(None)
            return super().openapi() | {"components": {}}

    def document(app: FastAPI) -> bytes:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        async def send(message: Any) -> None:
            sent.append(message)

        place = {"type": "http", "method": "GET", "path": "/openapi.json", "query_string": b"", "headers": []}
        asyncio.run(app(place, receive, send))
        return b"".join(message.get("body", b"") for message in sent)

    app = Counting()
    app.get("/one")(lambda: None)
    access.describe_answers(app)

    documents = [document(app) for _ in range(5)]
    assert len(set(documents)) == 1 and json.loads(documents[0])["paths"]
    assert len(written) == 1


def test_what_needs_no_token_and_wrong_tokens_are_limited_by_address(served: ServedGrid, hasty: None) -> None:
    status, answer = served.ask("GET", "/openapi.json")
    assert (status, answer["error"]["code"]) == (429, "TOO_MANY_REQUESTS")
    assert "Your address" in answer["error"]["message"]
    assert served.ask("GET", "/docs")[0] == 429
    assert served.ask("GET", "/me", token="wrong")[0] == 429
    assert served.ask("GET", "/health") == (200, {"status": "ok"})
