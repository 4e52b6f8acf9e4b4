"""The skeleton of the engine's background loops."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from distributed_grid.errors import GridError
from distributed_grid.logs import logger

log = logger()


class Loop:
    """Takes turns in the background until it is stopped.

    Between two turns it waits for `pause()` seconds, without a limit if that is None, or until `news` is set. A turn
    that fails is logged, and the next one tries again. Turns never overlap.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], Awaitable[object]],
        pause: Callable[[], float | None],
        *,
        news: asyncio.Event | None = None,
        waits_first: bool = False,
        sets_news: bool = False,
        retry_s: float = 0.0,
    ) -> None:
        """`waits_first`: the first turn comes after a pause. `sets_news`: the turn sets `news` itself, so news from
        during a turn does not count. `retry_s`: the shortest pause after a failure.
        """
        self._name, self._turn, self._pause = name, turn, pause
        self._news = news or asyncio.Event()
        self._waits_first, self._sets_news, self._retry_s = waits_first, sets_news, retry_s
        self.one_turn = asyncio.Lock()
        """Held during a turn; others may hold it so that none begins."""
        self.is_stopping = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def wake(self) -> None:
        """Let the next turn begin now."""
        self._news.set()

    def end(self) -> None:
        """Begin no further turn."""
        self.is_stopping = True
        self.wake()

    async def stop(self) -> None:
        """Stop after the current turn: an interrupted turn would leave more to repair."""
        self.end()
        if self._task is not None:
            await self._task

    async def try_turn(self) -> bool:
        """Take a turn, and log a failure instead of raising it. For callers who do not wait for the next one."""
        try:
            async with self.one_turn:
                await self._turn()
        except GridError as error:
            log.error(self._name, error=error.message, because=error.because)
        except Exception:
            log.exception(f"{self._name}: a turn failed; trying again")
        else:
            return True
        return False

    async def _run(self) -> None:
        if self._waits_first:
            await self._wait()
        while not self.is_stopping:
            if not await self.try_turn() and not self.is_stopping:
                await asyncio.sleep(self._retry_s)
            if self._sets_news:
                self._news.clear()
            await self._wait()

    async def _wait(self) -> None:
        if self.is_stopping:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause()):
                await self._news.wait()
        self._news.clear()
