"""A background loop goes on after errors, wakes up for news, and stops between two turns."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from live_grid import until as until_is

from distributed_grid.errors import Unavailable
from distributed_grid.loops import Loop, ThreadLoop


async def until(good: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not good():  # noqa: ASYNC110 - what the loop does is no event
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("error", [Unavailable("Ray does not answer"), ZeroDivisionError()])
def test_a_turn_that_fails_is_followed_by_the_next(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            turns += 1
            if turns == 1:
                raise error

        loop = Loop("the reconciler", turn, lambda: 0.001)
        loop.start()
        await until(lambda: turns >= 3)
        await loop.stop()
        return turns

    assert asyncio.run(main()) >= 3
    assert "the reconciler" in "".join(capsys.readouterr())


def test_news_ends_a_pause_that_has_no_end_of_its_own() -> None:
    async def main() -> list[str]:
        did: list[str] = []

        async def turn() -> None:
            did.append("turn")

        loop = Loop("queue", turn, lambda: None, waits_first=True)
        loop.start()
        await asyncio.sleep(0.02)
        did.append("news")
        loop.wake()
        await until(lambda: len(did) == 2)
        await loop.stop()
        return did

    assert asyncio.run(main()) == ["news", "turn"]


@pytest.mark.parametrize("sets_news", [False, True])
def test_news_during_a_turn_counts_unless_the_turn_itself_makes_it(sets_news: bool) -> None:
    async def main() -> int:
        news, turns = asyncio.Event(), 0

        async def turn() -> None:
            nonlocal turns
            turns += 1
            if turns == 1:
                news.set()

        loop = Loop("x", turn, lambda: None, news=news, sets_news=sets_news)
        loop.start()
        await asyncio.sleep(0.05)
        await loop.stop()
        return turns

    assert asyncio.run(main()) == (1 if sets_news else 2)


def test_it_stops_after_the_turn_that_is_under_way() -> None:
    async def main() -> list[str]:
        did: list[str] = []

        async def turn() -> None:
            did.append("begun")
            await asyncio.sleep(0.02)
            did.append("done")

        loop = Loop("x", turn, lambda: 0.0)
        loop.start()
        await until(lambda: did == ["begun"])
        await loop.stop()
        return did

    assert asyncio.run(main()) == ["begun", "done"]


def test_no_turn_begins_while_another_holds_the_lock_and_none_after_the_end() -> None:
    async def main() -> int:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            turns += 1

        loop = Loop("x", turn, lambda: 0.0, waits_first=True)
        async with loop.one_turn:
            loop.start()
            await asyncio.sleep(0.02)
            held = turns
        await until(lambda: turns > 0)
        await loop.stop()
        return held

    assert asyncio.run(main()) == 0


def test_a_caller_learns_whether_its_own_turn_succeeded() -> None:
    async def main() -> list[bool]:
        outcomes = iter([None, Unavailable("away")])

        async def turn() -> None:
            if (error := next(outcomes)) is not None:
                raise error

        loop = Loop("x", turn, lambda: None)
        return [await loop.try_turn(), await loop.try_turn()]

    assert asyncio.run(main()) == [True, False]


# -- in a thread -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Unavailable("Ray does not answer"), RuntimeError("unforeseen")])
def test_a_turn_in_a_thread_that_fails_is_followed_by_the_next(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    turns, done = iter(range(3)), threading.Event()

    def turn() -> None:
        match next(turns, None):
            case 0:
                raise error
            case None:
                done.set()

    loop = ThreadLoop("the keeper", turn, lambda: 0.001)
    loop.start()
    assert done.wait(10)
    loop.stop()
    reported = "".join(capsys.readouterr())
    assert "the keeper" in reported and str(error) in reported


def test_news_ends_a_pause_in_a_thread() -> None:
    turns: list[int] = []
    loop = ThreadLoop("x", lambda: turns.append(1), lambda: None, waits_first=True)
    loop.start()
    assert not turns
    loop.wake()
    until_is(lambda: len(turns) == 1, what="it has taken a turn")
    loop.stop()
    assert len(turns) == 1


def test_a_thread_stops_after_the_turn_that_is_under_way_and_cleans_up_then() -> None:
    did: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def turn() -> None:
        begun.set()
        may_end.wait(10)
        did.append("done")

    loop = ThreadLoop("x", turn, lambda: 0.0, at_end=lambda: did.append("clean"))
    loop.start()
    assert begun.wait(10)
    loop.stop(within_s=0.01)
    assert did == [], "who waits no longer than that goes on without it"
    may_end.set()
    loop.stop()
    assert did == ["done", "clean"]


def test_a_turn_in_a_thread_may_stop_its_own_loop_and_one_that_never_began_is_stopped_at_once() -> None:
    turns: list[int] = []

    def turn() -> None:
        turns.append(1)
        loop.stop()

    loop = ThreadLoop("x", turn, lambda: 0.0)
    loop.stop()
    loop = ThreadLoop("x", turn, lambda: 0.0)
    loop.start()
    until_is(lambda: loop.is_stopping, what="it has stopped itself")
    loop.stop()
    assert len(turns) == 1
