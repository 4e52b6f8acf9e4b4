"""Calls under way in local mode. Arguments and results are pickled and unpickled, as in Ray, so nothing is shared."""

import asyncio
import inspect
import io
import pickle
import traceback
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

_PROTOCOL: Final = 5


class Stays:
    """A handle that is passed by reference: every copy refers to the same object."""

    __slots__ = ()


class Packed:
    """A value on its way: each `unpack` returns a new copy. A value that cannot travel raises when it is packed.

    Handles that stay (`Stays`) are not copied. `frozen`: arrays come out read-only, as arguments and results do with
    Ray, which reads them from shared memory.
    """

    __slots__ = ("_buffers", "_data", "_stay")

    def __init__(self, thing: Any, *, frozen: bool) -> None:
        self._stay: list[Any] = []
        self._buffers: list[bytes] = []
        try:
            self._data = self._packed(_Pickler, thing, frozen)
        except Exception:  # noqa: BLE001 (Ray's pickler may handle what Python's cannot, or says what is wrong)
            self._data = self._packed(_rays_pickler(), thing, frozen)

    def unpack(self) -> Any:
        return _Unpickler(io.BytesIO(self._data), buffers=self._buffers, stay=self._stay).load()

    def _packed(self, pickler: Any, thing: Any, frozen: bool) -> bytes:
        self._stay.clear()
        self._buffers.clear()
        file = io.BytesIO()
        pickler(file, self._stay, self._keep if frozen else None).dump(thing)
        return file.getvalue()

    def _keep(self, buffer: pickle.PickleBuffer) -> None:
        self._buffers.append(bytes(buffer.raw()))


class _Staying:
    """A pickler that leaves out what stays, and notes it."""

    def __init__(self, file: io.BytesIO, stay: list[Any], keep: Any) -> None:
        super().__init__(file, protocol=_PROTOCOL, buffer_callback=keep)  # type: ignore[call-arg]
        self._stay = stay

    def persistent_id(self, one: Any) -> int | None:
        if not isinstance(one, Stays):
            return None
        self._stay.append(one)
        return len(self._stay) - 1


class _Pickler(_Staying, pickle.Pickler):
    pass


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, *, buffers: list[bytes], stay: list[Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._stay = stay

    def persistent_load(self, pid: Any) -> Any:
        return self._stay[pid]


def _rays_pickler() -> Any:
    """For lambdas and definitions inside functions. Used only then: importing Ray starts nothing, but takes time."""
    from ray import cloudpickle

    class RaysPickler(_Staying, cloudpickle.Pickler):  # type: ignore[misc]
        pass

    return RaysPickler


Work = Callable[[], Any]

_OWN: Final = "distributed_grid.roles.local."


class LocalRef(Future[Any], Stays):
    """A call that is under way. `await` and `result` give its value; both raise what the method raised.

    Each reader gets its own copy, as between processes.
    """

    lost: str | None = None
    """Why its member was lost meanwhile."""
    trace = ""
    """The traceback of what the method raised."""

    def __await__(self) -> Any:
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        """Unpacks here, not in the loop's callback: unpacking runs user code, which may raise."""
        over: Future[None] = Future()
        self.add_done_callback(lambda _: over.set_result(None))
        await asyncio.shield(asyncio.wrap_future(over))
        return self.result()

    def result(self, timeout: float | None = None) -> Any:
        packed: Packed = super().result(timeout)
        return packed.unpack()

    def future(self) -> Self:
        """As on an ObjectRef: `ref.future().result()` is the value, with Ray and without."""
        return self

    def cancel(self) -> bool:
        return False  # a call cannot be taken back

    def settle(self, work: Work) -> None:
        try:
            self.give(work())
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is for the caller)
            self.fail(error)

    async def settle_async(self, work: Work) -> None:
        try:
            value = work()
            self.give(await value if inspect.isawaitable(value) else value)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is for the caller)
            self.fail(error)

    def give(self, value: Any) -> None:
        """The value as it is now: later changes by the member do not show."""
        packed = Packed(value, frozen=True)
        with suppress(InvalidStateError):  # the call was given up meanwhile
            self.set_result(packed)

    def fail(self, error: BaseException) -> None:
        error.__traceback__ = _from_method_on(error.__traceback__)
        self.trace = "".join(traceback.format_exception(error)).rstrip()
        with suppress(InvalidStateError):
            self.set_exception(error)

    def lose(self, why: str) -> None:
        self.lost = why
        self.fail(RuntimeError(why))


def _from_method_on(frames: TracebackType | None) -> TracebackType | None:
    """Without grid's own frames on the way to the method."""
    while frames is not None and str(frames.tb_frame.f_globals.get("__name__")).startswith(_OWN):
        frames = frames.tb_next
    return frames
