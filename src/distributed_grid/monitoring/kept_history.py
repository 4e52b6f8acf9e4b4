"""Keeps the measurements of the last hour on disk, and begins with them after a restart.

Nothing depends on it: whatever is wrong with the file or the disk is logged, and measuring continues.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from distributed_grid import threads
from distributed_grid.errors import GridError
from distributed_grid.logs import logger
from distributed_grid.loops import Loop
from distributed_grid.monitoring.collector import Collector
from distributed_grid.store.boost_file import ClusterIdentity
from distributed_grid.store.history_file import HistoryFile

log = logger()

EVERY_S: Final = 30.0
_WITHIN_S: Final = 5.0
"""How long a start waits for the file."""


class KeptHistory:
    """For one collector. The identity of the cluster must be known before `restore`."""

    def __init__(
        self,
        file: HistoryFile,
        collector: Collector,
        identity: Callable[[], ClusterIdentity],
        check_writer: Callable[[], None],
    ) -> None:
        """`check_writer` raises if this process may not write the file."""
        self._file, self._collector = file, collector
        self._identity, self._check_writer = identity, check_writer
        self._loop = Loop("keeping the measurements", self._save, lambda: EVERY_S, waits_first=True)
        self._saved_until: float | None = None
        self._trouble = ""

    async def restore(self) -> None:
        """Give the collector what the file holds. Never raises."""
        try:
            async with asyncio.timeout(_WITHIN_S):
                found = await threads.DISK.run(self._file.load, self._identity())
            if found is not None:
                self._collector.restore(found)
        except (OSError, GridError, ValueError) as error:  # a timeout, too, is an `OSError`
            log.warning("measurements begin anew", file=self._file.path.name, reason=_why(error))
        except Exception:
            log.exception("measurements begin anew", file=self._file.path.name)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()
        await self._loop.try_turn()

    async def _save(self) -> None:
        recorded = self._collector.history.recorded()
        until = float(recorded.times[-1]) if recorded.times.size else None
        if until is None or until == self._saved_until:
            return
        try:
            await threads.DISK.run(self._check_writer)
            await threads.DISK.run(self._file.save, recorded, self._identity())
        except (OSError, GridError) as error:
            if _why(error) != self._trouble:  # once, not every half minute
                self._trouble = _why(error)
                log.warning(
                    "measurements could not be saved; retrying", file=self._file.path.name, reason=self._trouble
                )
        else:
            self._saved_until, self._trouble = until, ""


def _why(error: Exception) -> str:
    return error.message if isinstance(error, GridError) else str(error) or type(error).__name__
