"""Files that survive a power cut: written beside, synced, renamed over, and the folder synced."""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from distributed_grid.errors import StoreBroken


def replace_durably(path: Path, text: bytes) -> None:
    """Put a small file on disk in one step, readable by its owner only. `OSError`: the old one is as it was."""
    new = path.with_name(f"{path.name}.new")
    try:
        write_durably(new, [text])
        new.replace(path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def write_durably(path: Path, text: Iterable[bytes], *, before_sync: Callable[[], None] = lambda: None) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(fd, 0o600)  # one left by a crash keeps its own mode
        for part in text:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(fd, rest) :]
        before_sync()
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """A rename is durable only once its folder is."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def bytes_of(path: Path) -> bytes | None:
    """What is in a file; None if there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreBroken(
            f"Cannot read {path}: {error.strerror}",
            try_next="Make it readable for your user, or set GRID_HOME to another folder.",
        ) from error


def set_aside(path: Path) -> Path:
    """Link the file under a name that tells when it was written; never over another one."""
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    first = f"{path.name}.broken-{written:%Y%m%dT%H%M%SZ}"
    for name in chain([first], (f"{first}-{n}" for n in count(2))):
        with suppress(FileExistsError):
            path.with_name(name).hardlink_to(path)
            break
    return path.with_name(name)
