"""A background loop goes on after errors, wakes up for news, and stops between two turns."""

import asyncio
from collections.abc import Callable

import pytest

from distributed_grid.errors import Unavailable
from distributed_grid.loops import Loop


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
