"""Calls that are under way in local mode."""

import asyncio
import inspect
import traceback
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from copy import deepcopy
from types import TracebackType
from typing import Any, Final

Work = Callable[[], Any]

_OWN: Final = "distributed_grid.roles.local."


class LocalRef(Future[Any]):
    """A call that is under way. `await` gives its value, and so does `result`; both raise what the method raised."""

    lost: str | None = None
    """Why its member was lost meanwhile."""
    begun = False
    """Whether the method was called."""
    told = ""
    """The traceback of what it raised."""

    def __await__(self) -> Any:
        return asyncio.shield(asyncio.wrap_future(self)).__await__()

    def __deepcopy__(self, memo: object) -> "LocalRef":
        return self  # a reference in an argument is the same reference there

    def cancel(self) -> bool:
        return False  # a call is not taken back

    def settle(self, work: Work) -> None:
        self.begun = True
        try:
            self.give(work())
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is the caller's)
            self.fail(error)

    async def settle_async(self, work: Work) -> None:
        self.begun = True
        try:
            value = work()
            self.give(await value if inspect.isawaitable(value) else value)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is the caller's)
            self.fail(error)

    def give(self, value: Any) -> None:
        """A copy of it: what a member does with its own afterwards does not show here, as between processes."""
        copied = deepcopy(value)
        with suppress(InvalidStateError):  # it was given up meanwhile
            self.set_result(copied)

    def fail(self, error: BaseException) -> None:
        error.__traceback__ = _from_method_on(error.__traceback__)
        self.told = "".join(traceback.format_exception(error)).rstrip()
        with suppress(InvalidStateError):
            self.set_exception(error)

    def lose(self, why: str) -> None:
        self.lost = why
        self.fail(RuntimeError(why))


def _from_method_on(frames: TracebackType | None) -> TracebackType | None:
    """Without what is grid's own on the way to the method."""
    while frames is not None and str(frames.tb_frame.f_globals.get("__name__")).startswith(_OWN):
        frames = frames.tb_next
    return frames
