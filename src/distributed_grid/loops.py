"""The skeleton of background loops: in an event loop, and in a thread."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable

from distributed_grid.errors import GridError


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
        self._task = asyncio.create_task(self.run())

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
        except Exception as error:  # noqa: BLE001 - it ends this turn, not the loop
            log_failure(self._name, error)
        else:
            return True
        return False

    async def run(self) -> None:
        """Take turns until the end, or until this is cancelled."""
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


class ThreadLoop:
    """The same in a thread of its own, which does not keep the process alive. A turn, too, may end the loop."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], object],
        pause: Callable[[], float | None],
        *,
        waits_first: bool = False,
        at_end: Callable[[], object] | None = None,
    ) -> None:
        """`at_end`: called in the thread after the last turn."""
        self._name, self._turn, self._pause = name, turn, pause
        self._waits_first, self._at_end = waits_first, at_end
        self._news = threading.Event()
        self.is_stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Let the next turn begin now."""
        self._news.set()

    def end(self) -> None:
        """Begin no further turn."""
        self.is_stopping = True
        self.wake()

    def stop(self, within_s: float | None = None) -> None:
        """Stop after the current turn. Wait for that, up to `within_s`, unless this is the turn itself."""
        self.end()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(within_s)

    def _run(self) -> None:
        if self._waits_first:
            self._wait()
        while not self.is_stopping:
            self._try(self._turn)
            self._wait()
        if self._at_end is not None:
            self._try(self._at_end)

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it ends this turn, not the loop
            log_failure(self._name, error)

    def _wait(self) -> None:
        if self.is_stopping:
            return
        self._news.wait(self._pause())
        self._news.clear()


def log_failure(name: str, error: Exception) -> None:
    """Log why a turn failed; the next one tries again."""
    from distributed_grid.logs import logger  # only now: it would delay the start of every command that has a loop

    if isinstance(error, GridError):
        logger().error(name, error=error.message, because=error.because)
    else:
        logger().error(f"{name}: a turn failed; trying again", exc_info=error)
