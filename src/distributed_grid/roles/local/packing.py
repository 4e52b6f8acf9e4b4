"""Things as another process would get them: pickled and read again, as Ray does it, so that nobody shares anything."""

import io
import pickle
from typing import Any, Final

_PROTOCOL: Final = 5


class Stays:
    """What leads to somebody or something, and leads there from wherever it is taken."""

    __slots__ = ()


class Packed:
    """Something on its way: each `unpack` gives a copy of its own. What cannot travel raises when it is packed.

    What stays is not copied. `frozen`: arrays come out read-only, as arguments and results do with Ray, which reads
    them from shared memory.
    """

    __slots__ = ("_buffers", "_data", "_stay")

    def __init__(self, thing: Any, *, frozen: bool) -> None:
        self._stay: list[Any] = []
        self._buffers: list[bytes] = []
        try:
            self._data = self._packed(_Pickler, thing, frozen)
        except Exception:  # noqa: BLE001 (what Python cannot pickle, Ray may: its pickler says what is wrong)
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
    """A pickler that leaves out what stays where it is, and notes it."""

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
    """For lambdas, and what is defined in functions. Only then: importing Ray starts nothing, but takes its time."""
    from ray import cloudpickle

    class RaysPickler(_Staying, cloudpickle.Pickler):  # type: ignore[misc]
        pass

    return RaysPickler
