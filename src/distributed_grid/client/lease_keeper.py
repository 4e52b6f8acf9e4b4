"""A lease as its holder sees it: when it is renewed, and what the controller's answers mean."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from distributed_grid.errors import GridError, NotFound, Refused, ReservedForWindow
from distributed_grid.loops import log_failure
from distributed_grid.model.endings import why_it_ends
from distributed_grid.model.leases import RENEWED_AFTER, LeaseState
from distributed_grid.model.times import parse_instant

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost, BoostEnding


class LeaseKeeper:
    """Keeps one lease alive: it is renewed after each third of its length (`RENEWED_AFTER`).

    A lease that is gone or being returned is renewed no more: `ended` says why. While the controller is away, the
    keeper tries more often, since the lease lasts a while.
    """

    def __init__(self, length_s: float, clock: Callable[[], float] | None = None) -> None:
        self._length_s, self._clock = length_s, clock or time.monotonic
        self._due_at = self._clock() + length_s * RENEWED_AFTER
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
        except Exception as error:  # noqa: BLE001 - the lease lasts a while, so it is tried again
            self._failed(error)
        else:
            self._due_at = self._clock() + self._length_s * RENEWED_AFTER

    def keep_here(self, call: Callable[[], object]) -> GridError:
        """Renew it by this call whenever it is due, until it ends; returns why it ended. Blocks until then."""
        while self.ended is None:
            time.sleep(self.pause_s)
            self.renew(call)
        return self.ended

    async def keep(self, call: Callable[[], Awaitable[object]]) -> GridError:
        """The same without blocking."""
        while self.ended is None:
            await asyncio.sleep(self.pause_s)
            try:
                await call()
            except Exception as error:  # noqa: BLE001 - as in `renew`
                self._failed(error)
            else:
                self._due_at = self._clock() + self._length_s * RENEWED_AFTER
        return self.ended

    def _failed(self, error: Exception) -> None:
        if isinstance(error, NotFound | Refused) and not isinstance(error, ReservedForWindow):
            self.ended = error
        elif not isinstance(error, GridError):  # not as usual as a controller that is away
            log_failure("renewing a lease", error)
        self._due_at = self._clock() + self._length_s / 12


def kept_in_background(lease_id: str, length_s: float, call: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
    """Renew a lease in this event loop, until it ends or the task is cancelled. Its end is logged."""
    return asyncio.create_task(_keep(lease_id, LeaseKeeper(length_s), call))


async def _keep(lease_id: str, keeper: LeaseKeeper, call: Callable[[], Awaitable[object]]) -> None:
    from distributed_grid.logs import logger  # only now: it would delay the start of every command that renews

    why = await keeper.keep(call)
    logger().warning("a lease is no longer renewed", lease=lease_id, message=why.message)


class WatchedLease:
    """A lease as of the last query: held, being reclaimed, or gone. It is renewed only while it is held."""

    def __init__(self, boost: Boost) -> None:
        self.id = boost["boost_id"]
        self.length_s = (parse_instant(boost["expires_at"]) - parse_instant(boost["allocated_at"])).total_seconds()
        self.ending: BoostEnding | None = boost["ending"]
        """Why it is being reclaimed or returned: by whom, for whom and by when. It is held until then."""
        self.ended: str | None = None
        """Why it is gone."""
        self._keeper = LeaseKeeper(self.length_s)

    def take_in(self, boost: Boost) -> None:
        """Take over the controller's current answer about it."""
        self.ending = boost["ending"]
        if is_gone(boost):
            self.ended = self._why_it_ends(f"the lease is {boost['state']}")

    def look(self, ask: Callable[[], Boost]) -> None:
        """Query it. While the controller is away nothing changes, since the lease lasts a while."""
        try:
            self.take_in(ask())
        except NotFound as error:
            self.ended = self._why_it_ends(error.message)
        except GridError:
            pass

    def keep(self, renew: Callable[[str], object]) -> None:
        """Renew it by this call if that is due."""
        if self.ended is None and self.ending is None and self._keeper.is_due:
            self._keeper.renew(lambda: renew(self.id))

    def _why_it_ends(self, otherwise: str) -> str:
        return otherwise if self.ending is None else why_it_ends(self.ending)


def is_gone(boost: Boost) -> bool:
    return boost["state"] in (LeaseState.RELEASED, LeaseState.LOST)
