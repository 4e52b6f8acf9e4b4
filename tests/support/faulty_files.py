"""Everything that can be wrong with a file, for as long as a test says; then the file is as it was."""

import errno
import fcntl
import os
import shutil
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
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if there:
            kept.rename(path)


@contextmanager
def opening(path: Path, act: Callable[[], None]) -> Iterator[None]:
    """Something happens whenever the file, or one in the folder, is opened."""
    really = os.open

    def watched(opened: object, *args: Any, **options: Any) -> int:
        if _is_at(opened, path):
            act()
        return really(opened, *args, **options)  # type: ignore[call-overload, no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", watched)
        yield


@contextmanager
def writing(path: Path, act: Callable[[], None]) -> Iterator[None]:
    """Something happens whenever the file, or one in the folder, is opened to write, or a new one takes its place."""
    replace, really = os.replace, os.open

    def replaces(new: object, old: object, **options: Any) -> None:
        if _is_at(old, path):
            act()
        replace(new, old, **options)  # type: ignore[call-overload]

    def opens(opened: object, flags: int, *args: Any, **options: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and _is_at(opened, path):
            act()
        return really(opened, flags, *args, **options)  # type: ignore[call-overload, no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replaces)
        patch.setattr(os, "open", opens)
        yield


def _is_at(opened: object, path: Path) -> bool:
    return str(opened) == str(path) or str(opened).startswith(f"{path}/")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process has the kernel's lock on the file."""
    fd = os.open(path, os.O_RDONLY | (0 if path.exists() else os.O_CREAT))
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


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
    "locked": lambda path, _: locked(path),
    "nowhere": lambda path, _: replaced(path, lambda at: at.symlink_to("/nowhere/at/all")),
}
