"""Everything that can be wrong with a file, for as long as a test says; then the file is as it was."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from distributed_grid.store.durable import LARGEST

Slowly = Callable[[], None]
"""What passes the time while a slow disk is waited for."""


@contextmanager
def replaced(path: Path, make: Callable[[Path], object]) -> Iterator[None]:
    """Something else is in the file's place meanwhile; the file itself comes back."""
    kept = path.with_name(f"kept-{path.name}")
    there = path.exists()
    if there:
        path.rename(kept)
    make(path)
    try:
        yield
    finally:
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        if there:
            kept.rename(path)


@contextmanager
def opening(path: Path, act: Callable[[], None]) -> Iterator[None]:
    """Something happens whenever the file is opened."""
    really = os.open

    def watched(opened: object, *args: Any, **options: Any) -> int:
        if str(opened) == str(path):
            act()
        return really(opened, *args, **options)  # type: ignore[call-overload, no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        yield


@contextmanager
def writing(path: Path, act: Callable[[], None]) -> Iterator[None]:
    """Something happens whenever a new version is to take the file's place."""
    really = os.replace

    def watched(new: object, old: object, **options: Any) -> None:
        if str(old) == str(path):
            act()
        really(new, old, **options)  # type: ignore[call-overload]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", watched)
        yield


def failing(number: int) -> Callable[[], None]:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    return fail


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, LARGEST + 1)


FAULTS: dict[str, Callable[[Path, Slowly], AbstractContextManager[None]]] = {
    "missing": lambda path, _: replaced(path, lambda _: None),
    "folder": lambda path, _: replaced(path, Path.mkdir),
    "deep": lambda path, _: replaced(path, lambda at: at.write_bytes(b"[" * 100_000)),
    "huge": lambda path, _: replaced(path, sparse),
    "encoding": lambda path, _: replaced(path, lambda at: at.write_bytes("{\u00e4}".encode("utf-16"))),
    "pipe": lambda path, _: replaced(path, os.mkfifo),
    "unreadable": lambda path, _: opening(path, failing(errno.EACCES)),
    "failing": lambda path, _: opening(path, failing(errno.EIO)),
    "unwritable": lambda path, _: writing(path, failing(errno.EIO)),
    "slow": lambda path, slowly: opening(path, slowly),
}
