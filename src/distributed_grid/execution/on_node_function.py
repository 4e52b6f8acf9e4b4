"""The actor that runs a function on a node. This module travels by value, because grid is not installed there."""

from __future__ import annotations

import asyncio
import inspect
import io
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from distributed_grid.execution.on_node_imports import look_for_modules_in, unpacked

if TYPE_CHECKING:
    from distributed_grid.wire.offload import LogPiece

_MOST = 4_000_000


class FunctionHost:
    """Runs one function, plain or async, and keeps what it prints."""

    def __init__(self, folders: tuple[Sequence[str], Sequence[str]]) -> None:
        """`folders`: where the sender finds its modules, before and after what is installed."""
        look_for_modules_in(*folders)
        self._printed = _Printed(sys.stdout)
        sys.stdout = sys.stderr = self._printed

    def run(self, packed: bytes, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        function: Callable[..., object] = unpacked(packed)
        found = function(*args, **kwargs)
        return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found

    def read(self, begin: int) -> LogPiece:
        """The output from character `begin` on, and where the next piece begins."""
        text = self._printed.text()[begin:]
        return {"text": text, "next": begin + len(text), "more": False}


async def _awaited(found: Awaitable[object]) -> object:
    return await found


class _Printed(io.TextIOBase):
    """Keeps output up to a limit, and passes it on to where Ray's workers write."""

    def __init__(self, onwards: TextIO) -> None:
        self._onwards = onwards
        self._kept = io.StringIO()
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            if self._kept.tell() < _MOST:
                self._kept.write(text)
        self._onwards.write(text)
        return len(text)

    def flush(self) -> None:
        self._onwards.flush()

    def text(self) -> str:
        with self._lock:
            return self._kept.getvalue()
