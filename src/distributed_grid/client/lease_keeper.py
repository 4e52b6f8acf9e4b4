"""The lease keeper: when a holder renews its lease, and what the answer means."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from distributed_grid.errors import GridError, NotFound, Refused


class LeaseKeeper:
    """Keeps one lease alive: it is renewed after each third of its length.

    A lease that is gone or being returned is renewed no more: `ended` says why. While the controller is away, the
    keeper tries more often, since the lease lasts a while.
    """

    def __init__(self, length_s: float, clock: Callable[[], float] | None = None) -> None:
        self._length_s, self._clock = length_s, clock or time.monotonic
        self._due_at = self._clock() + length_s / 3
        self.ended: GridError | None = None

    @property
    def is_due(self) -> bool:
        return self.ended is None and self._clock() >= self._due_at

    @property
    def pause_s(self) -> float:
        """How long until the next renewal."""
        return max(0.0, self._due_at - self._clock())

    def renew(self, call: Callable[[], object]) -> None:
        """Renew it now by this call, which may block."""
        try:
            call()
        except GridError as error:
            self._failed(error)
        else:
            self._due_at = self._clock() + self._length_s / 3

    async def keep(self, call: Callable[[], Awaitable[object]]) -> GridError:
        """Renew it whenever it is due, until it ends; returns why it ended."""
        while self.ended is None:
            await asyncio.sleep(self.pause_s)
            try:
                await call()
            except GridError as error:
                self._failed(error)
            else:
                self._due_at = self._clock() + self._length_s / 3
        return self.ended

    def _failed(self, error: GridError) -> None:
        if isinstance(error, NotFound | Refused):
            self.ended = error
        self._due_at = self._clock() + self._length_s / 12
