"""Callbacks of Python programs whose boosts are asked back: a look at the notices while there are such boosts."""

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

from distributed_grid.errors import BoostNotFound, GridError
from distributed_grid.model.notices import ReclaimNotice, asks_more, notice_in
from distributed_grid.orchestration.backend import Backend
from distributed_grid.orchestration.logs import logger

log = logger()

LOOK_EVERY_S: Final = 0.5

Given = float | bool | None
"""What a callback gives up: an amount; True or None for all of it; False for nothing, and it is taken later."""
OnReclaim = Callable[[ReclaimNotice], Given | Awaitable[Given]]


class ReclaimWatch:
    """Looks only while some boost has a callback."""

    def __init__(self, ready: Callable[[], Awaitable[Backend]], every_s: float = LOOK_EVERY_S) -> None:
        self._ready = ready
        self._every_s = every_s
        self._callbacks: dict[str, OnReclaim] = {}
        self._told: dict[str, tuple[datetime, float]] = {}
        self._looking: asyncio.Task[None] | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def add(self, boost_id: str, callback: OnReclaim) -> None:
        self._callbacks[boost_id] = callback
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())

    def drop(self, boost_id: str) -> None:
        self._callbacks.pop(boost_id, None)
        self._told.pop(boost_id, None)

    async def stop(self) -> None:
        """Look no more. A callback that is under way is cancelled, if it is a coroutine."""
        self._callbacks.clear()
        tasks = {*self._answering, *([self._looking] if self._looking else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        while self._callbacks:
            await asyncio.sleep(self._every_s)
            watched = set(self._callbacks)  # one that comes during the look may not be in it yet
            try:
                status = await (await self._ready()).status()
                there = {boost["boost_id"]: boost for boost in status["boosts"] if boost["boost_id"] in watched}
                if status.get("cut"):
                    there |= await self._each(watched - there.keys())
            except GridError as error:  # the controller is away for a moment, or for good
                log.warning("could not look for notices; trying again", message=error.message)
                continue
            for boost_id in watched - there.keys():
                self.drop(boost_id)
            for boost in there.values():
                self._tell(boost)

    async def _each(self, boost_ids: set[str]) -> dict[str, dict[str, Any]]:
        """Those of these boosts that there are, asked for one by one: a list that is cut does not tell."""
        backend, found = await self._ready(), {}
        for boost_id in boost_ids:
            with contextlib.suppress(BoostNotFound):
                found[boost_id] = await backend.boost(boost_id)
        return found

    def _tell(self, boost: dict[str, Any]) -> None:
        callback, notice = self._callbacks.get(boost["boost_id"]), notice_in(boost)
        if callback is None or notice is None:
            return
        before, self._told[notice.boost_id] = self._told.get(notice.boost_id), (notice.asked_at, notice.amount)
        if asks_more(before, notice.asked_at, notice.amount):
            answering = asyncio.create_task(self._answer(notice, callback, boost["amount"]))
            self._answering.add(answering)
            answering.add_done_callback(self._answering.discard)

    async def _answer(self, notice: ReclaimNotice, callback: OnReclaim, has: float) -> None:
        """Whatever a callback does or fails to do: what it does not give is taken at the deadline."""
        try:
            given = await _called(callback, notice)
            if given is False or (given is not None and given is not True and given <= 0):
                return
            part = None if given is None or given is True or given >= has else given
            backend = await self._ready()
            open_now = notice_in(await backend.boost(notice.boost_id))
            if open_now is None or open_now.asked_at != notice.asked_at:
                log.warning("a reclaim callback came back too late: what was asked is taken", boost=notice.boost_id)
                return
            await backend.release(notice.boost_id, part)
        except GridError as error:
            log.warning("what was given up could not be given back", boost=notice.boost_id, message=error.message)
        except Exception:
            log.exception("a reclaim callback failed; what is asked is taken at the deadline", boost=notice.boost_id)


async def _called(callback: OnReclaim, notice: ReclaimNotice) -> Given:
    """A plain function may save for minutes: it runs in a thread, and nothing else waits for it."""
    answer: Any = callback(notice) if inspect.iscoroutinefunction(callback) else await _in_thread(callback, notice)
    given: Given = await answer if inspect.isawaitable(answer) else answer
    return given


async def _in_thread(callback: Callable[[ReclaimNotice], Any], notice: ReclaimNotice) -> Any:
    return await asyncio.to_thread(callback, notice)
