"""Calls that are under way in local mode."""

import asyncio
import inspect
import traceback
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from distributed_grid.roles.local.packing import Packed, Stays

Work = Callable[[], Any]

_OWN: Final = "distributed_grid.roles.local."


class LocalRef(Future[Any], Stays):
    """A call that is under way. `await` gives its value, and so does `result`; both raise what the method raised.

    Whoever asks gets a copy of his own, as between processes.
    """

    lost: str | None = None
    """Why its member was lost meanwhile."""
    told = ""
    """The traceback of what it raised."""

    def __await__(self) -> Any:
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        """Read here, not where the loop calls back: that runs code of the user's, which may raise."""
        over: Future[None] = Future()
        self.add_done_callback(lambda _: over.set_result(None))
        await asyncio.shield(asyncio.wrap_future(over))
        return self.result()

    def result(self, timeout: float | None = None) -> Any:
        packed: Packed = super().result(timeout)
        return packed.unpack()

    def future(self) -> Self:
        """As an ObjectRef has it: `ref.future().result()` is the value, with Ray and without."""
        return self

    def cancel(self) -> bool:
        return False  # a call is not taken back

    def settle(self, work: Work) -> None:
        try:
            self.give(work())
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is the caller's)
            self.fail(error)

    async def settle_async(self, work: Work) -> None:
        try:
            value = work()
            self.give(await value if inspect.isawaitable(value) else value)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is the caller's)
            self.fail(error)

    def give(self, value: Any) -> None:
        """As it is now: what a member does with its own afterwards does not show."""
        packed = Packed(value, frozen=True)
        with suppress(InvalidStateError):  # it was given up meanwhile
            self.set_result(packed)

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
