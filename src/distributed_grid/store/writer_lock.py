"""The lock that makes one process the only writer of a store."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from distributed_grid.errors import AlreadyRunning, StoreBroken


class WriterLock:
    """Held from `acquire` to `release` or to the end of the process, however it ends.

    The kernel keeps the lock; the file only carries it, and the holder's pid for information. A child made by a bare
    `fork` shares the lock with its parent; one that runs another program does not.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    @property
    def held(self) -> bool:
        """True while no other process can take the lock; false once the file was removed, because then one can."""
        return self._fd is not None and _is_at(self._fd, self.path)

    def acquire(self) -> None:
        """Take the lock now or raise `AlreadyRunning`; never waits."""
        try:
            self._fd = _locked(self.path)
        except OSError as error:
            raise StoreBroken(
                f"Cannot lock {self.path}: {error.strerror}",
                try_next="Set GRID_HOME to a folder that you can write to.",
            ) from error

    def keep(self) -> None:
        """Take the lock again if its file was removed; `AlreadyRunning` if another process was quicker."""
        if self.held:
            return
        lost, self._fd = self._fd, None
        try:
            self.acquire()
        finally:
            if lost is not None:
                os.close(lost)

    def release(self) -> None:
        """Release the lock; the file stays. Does nothing if the lock is not held."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            with suppress(OSError):
                os.ftruncate(fd, 0)  # our pid may soon be another process's
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing alone would leave the lock to a forked child
        finally:
            os.close(fd)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _locked(path: Path) -> int:
    while True:
        fd = _opened(path)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _taken(path, os.pread(fd, 32, 0)) from None
            if _is_at(fd, path):
                with suppress(OSError):  # the pid is only information, which a full disk may refuse
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the file was removed before we had the lock, so others can lock the one that is there now


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return os.open(path, os.O_RDONLY)  # lent capacity must return even if nothing more can be written


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False


def _taken(path: Path, content: bytes) -> AlreadyRunning:
    pid = content.strip().decode("ascii", "replace")
    holder = f"process {pid}" if pid.isdigit() else "another process"
    return AlreadyRunning(
        f"{holder[0].upper()}{holder[1:]} already runs grid in {path.parent}",
        because=[f"it holds {path}, and a store has one writer"],
        try_next=f"Use {holder}, end it, or set GRID_HOME to another folder.",
    )
