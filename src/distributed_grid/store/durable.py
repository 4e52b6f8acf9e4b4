"""Files that survive a power cut: written beside, synced, renamed over, and the folder synced.

They also hold on full disks, without hard links, and over a network that loses answers.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Final

from distributed_grid.errors import StoreBroken

Content = Sequence[bytes]

LARGEST: Final = 256 * 2**20
"""No state file of grid's comes near this size; a larger file is not one, and reading it could take all memory."""


def replace_durably(path: Path, text: bytes) -> None:
    """Put a small file on disk in one step, readable by its owner only. On `OSError` the old one is unchanged."""
    new = path.with_name(f"{path.name}.new")
    try:
        write_durably(new, [text])
        rename_over(new, path, [text])
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def write_durably(path: Path, text: Content, *, before_sync: Callable[[], None] = lambda: None) -> None:
    """Write a new file, readable by its owner only; its name survives a power cut after `sync_folder`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(fd, 0o600)  # a file left by a crash keeps its own mode
        for part in text:
            write_all(fd, part)
        before_sync()
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, part: bytes) -> None:
    rest = memoryview(part)
    while rest:
        rest = rest[os.write(fd, rest) :]


def rename_over(new: Path, path: Path, text: Content) -> None:
    """Rename a written file over the file that has its final name."""
    try:
        new.replace(path)
    except OSError:
        # A rename over NFS whose answer was lost is sent again, and then finds nothing left to rename.
        if not holds(path, text):
            raise


def holds(path: Path, text: Content) -> bool | None:
    """Whether the file holds exactly this; None if it cannot be read."""
    try:
        return path.read_bytes() == b"".join(text)
    except FileNotFoundError:
        return False
    except OSError:
        return None


def keep_as(second: Path, path: Path) -> None:
    """Give the file a second name, replacing any file that has it; `FileNotFoundError` if there is no file."""
    second.unlink(missing_ok=True)
    try:
        second.hardlink_to(path)
    except FileNotFoundError:
        raise
    except OSError:
        # Not every file system has hard links; over NFS a link may exist although the call reported a failure.
        if not _are_one(second, path):
            replace_durably(second, path.read_bytes())


def set_aside(path: Path) -> Path:
    """Give the file a name that tells when it was written; never over another file."""
    aside = name_aside(path)
    keep_as(aside, path)
    return aside


def name_aside(path: Path) -> Path:
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return free_name(path, f".broken-{written:%Y%m%dT%H%M%SZ}")


def free_name(path: Path, ending: str) -> Path:
    """The path with this ending, or else with the first number after it that no file has yet."""
    names = chain([ending], (f"{ending}-{n}" for n in count(2)))
    return next(free for name in names if not os.path.lexists(free := path.with_name(path.name + name)))


def sync_folder(path: Path) -> None:
    """A rename is durable only once its folder is."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot, and need not
            raise
    finally:
        os.close(fd)


def bytes_of(path: Path, largest: int = LARGEST) -> bytes | None:
    """The content of a file; None if there is none. `StoreBroken` says what is there that cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place must not block us
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            raise _unreadable(path, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise _unreadable(path, "it is not a regular file")
        if found.st_size > largest:
            has, limit = f"{found.st_size / 2**20:,.0f} MB", f"{largest / 2**20:.0f}"
            raise _unreadable(path, f"it is {has} large; grid's own files have at most {limit} MB")
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    finally:
        os.close(fd)


def stamp(path: Path) -> tuple[int, int, int] | None:
    """A stamp that differs between versions of a file; None if no file can be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def text_of(path: Path) -> str:
    """A small text, stripped; `OSError` if it cannot be read or is not text."""
    try:
        data = bytes_of(path)
    except StoreBroken as error:
        raise OSError(errno.EIO, error.message.removeprefix(f"Cannot read {path}: ")) from error
    if data is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    try:
        return data.decode().strip()
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "it is not text in UTF-8") from None


def _unreadable(path: Path, why: str) -> StoreBroken:
    return StoreBroken(
        f"Cannot read {path}: {why}",
        try_next="Make it a file that your user can read, or set GRID_HOME to another folder.",
    )


def json_of(data: bytes | str) -> object:
    """The value of a JSON text; `ValueError` for anything else, including endless nesting."""
    try:
        found: object = json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def record_of(data: bytes | str) -> dict[str, object]:
    """The object of a JSON text; `ValueError` for anything else."""
    found = json_of(data)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def text_in(record: Mapping[str, object], key: str) -> str:
    """The text under a key of a record; `ValueError` if there is none."""
    found = record.get(key)
    if not isinstance(found, str):
        raise ValueError(f"it has no text under {key!r}")
    return found


def _are_one(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
