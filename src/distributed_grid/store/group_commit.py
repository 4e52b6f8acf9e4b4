"""Concurrent changes share one write, and concurrent looks share one look."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from distributed_grid import threads

Snapshot = TypeVar("Snapshot")
Result = TypeVar("Result")


class GroupCommit(Generic[Snapshot, Result]):
    """Writes snapshots in a worker thread, one at a time, for any number of callers of one event loop."""

    def __init__(
        self,
        write: Callable[[Snapshot], Result],
        snapshot: Callable[[], Snapshot],
        pool: "threads.Pool" = threads.DISK,
    ) -> None:
        self._write = write
        self._snapshot = snapshot
        self._pool = pool
        self._current: asyncio.Task[Result] | None = None
        self._next: asyncio.Task[Result] | None = None

    async def commit(self) -> Result:
        """Return once everything up to this call is written; raise what that write raised.

        A caller that comes during a write waits for the next one: the snapshot of the present one may be older than the
        call. A cancelled caller does not affect the others.
        """
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._write_after(self._current))
        return await asyncio.shield(self._next)

    async def _write_after(self, earlier: "asyncio.Task[Result] | None") -> Result:
        if earlier is not None and not earlier.done():
            await asyncio.wait([earlier])
        self._current, self._next = self._next, None
        return await self._pool.run(self._write, self._snapshot())
