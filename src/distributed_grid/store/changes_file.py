"""The changes to the boost file since it was last written as a whole: one line for each change, append-only.

    {"of": "8f0c...", "after": "51d2...", "number": 1, "boosts": [{"id": "...", ...}], "ended": ["..."],
     "checksum": "sha256:..."}

Appending a line takes one synced write, where replacing the boost file takes two, and a rename. `of` is the mark of the
version of the boost file that the line continues: each version has a mark of its own, so no line ever counts for
another one. `after` is the mark of the version before, the boost file's `.previous`: if the version itself is lost, its
lines still continue that one. A line counts as a whole or not at all, and only after all lines with lower numbers.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Final, Literal

from distributed_grid.errors import StoreBroken
from distributed_grid.faults import Point, fault_point
from distributed_grid.store.durable import bytes_of, record_of, write_all

_BEFORE_CHECKSUM: Final = b', "checksum": '
_LARGEST: Final = 2**20
"""A file that would grow beyond this many bytes takes no more lines: the boost file is due."""


def new_mark() -> str:
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Change:
    """One write: boosts that were added or changed, in their encoded form, and the ids of those that ended."""

    boosts: tuple[Mapping[str, object], ...]
    ended: tuple[str, ...]


class ChangesFile:
    """The writer's end of the file. It takes no lines before `begin`, and none after a write that failed.

    A new file begins with every version of the boost file. The one before is kept as `.previous.changes`: it continues
    the `.previous` of the boost file. The file is opened for every line, so that one that another program removed, or
    whose folder became read-only, is noticed.
    """

    def __init__(self, boosts: Path) -> None:
        self.path = boosts.with_name(f"{boosts.name}.changes")
        self.previous = boosts.with_name(f"{boosts.name}.previous.changes")
        self._of: str | None = None
        self._after: str | None = None
        self._number = self._size = 0

    @property
    def takes_lines(self) -> bool:
        return self._of is not None

    @property
    def has_lines(self) -> bool:
        """Whether lines were appended since `begin`."""
        return self._number > 0

    def begin(self, of: str, after: str | None) -> None:
        """Begin an empty file for a new version of the boost file. The name is durable after `sync_folder`.

        `after`: the mark of the version that is now `.previous`.
        """
        self.end()
        with suppress(FileNotFoundError):
            self.path.replace(self.previous)
        os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        self._of, self._after = of, after

    def end(self) -> None:
        """Take no more lines."""
        self._of, self._number, self._size = None, 0, 0

    def append(self, boosts: Sequence[bytes], ended: Sequence[str]) -> bool:
        """Put a change on disk; on return True it survives a power cut. False: the boost file must be written instead.

        `boosts`: each as JSON, in any layout.
        """
        each = b", ".join(b" ".join(map(bytes.strip, boost.split(b"\n"))) for boost in boosts)
        marks = {"of": self._of} if self._after is None else {"of": self._of, "after": self._after}
        numbered = json.dumps({**marks, "number": self._number + 1})[:-1].encode() + b', "boosts": ['
        body = numbered + each + b'], "ended": ' + json.dumps(list(ended)).encode()
        line = body + _BEFORE_CHECKSUM + json.dumps(_checksum(body)).encode() + b"}\n"
        if self._of is None or self._size + len(line) > _LARGEST:
            return False
        try:
            is_done = self._write(line)
        except OSError:
            is_done = False
        if not is_done:
            self.end()
            return False
        self._number, self._size = self._number + 1, self._size + len(line)
        fault_point(Point.CHANGE_DURABLE)
        return True

    def _write(self, line: bytes) -> bool:
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            if os.fstat(fd).st_size != self._size:
                return False  # another program changed it
            try:
                write_all(fd, line)
                fault_point(Point.CHANGE_WRITTEN)
                os.fdatasync(fd)
            except OSError:
                with suppress(OSError):  # a line that is not confirmed should not count
                    os.ftruncate(fd, self._size)
                raise
        finally:
            os.close(fd)
        return True


def changes_of(
    mark: str, files: Iterable[Path], *, by: Literal["of", "after"] = "of", strict: bool = True
) -> tuple[tuple[Change, ...], str | None]:
    """The changes to the version of the boost file with this mark, in order, and what is wrong with them, if anything.

    With `by="after"`, the changes to the version that followed the one with this mark.

    With `strict`, raises `StoreBroken` for a file that cannot be read; otherwise its changes are missing.

    A crash leaves at most one incomplete line, at the end, which was never confirmed: that is no damage.
    """
    found: dict[int, Change] = {}
    damage = None
    for path in files:
        try:
            *lines, _ = (bytes_of(path) or b"").split(b"\n")
        except StoreBroken as error:
            if strict:
                raise
            damage = error.message
            continue
        for line in lines:
            try:
                if (numbered := _change(line, by, mark)) is not None:
                    found[numbered[0]] = numbered[1]
            except ValueError as error:
                damage = f"a line of {path.name} is damaged ({error}): that change and later ones may be missing"
    in_order = tuple(found[number] for number in takewhile(found.__contains__, count(1)))
    return in_order, damage


def _change(line: bytes, by: str, mark: str) -> tuple[int, Change] | None:
    """A line's number and its change; None if it is of another version. `ValueError` if the line is damaged."""
    found = record_of(line)
    if found.get("checksum") != _checksum(line.rpartition(_BEFORE_CHECKSUM)[0]):
        raise ValueError("its checksum does not match")
    number, boosts, ended = found.get("number"), found.get("boosts"), found.get("ended")
    if not (isinstance(number, int) and isinstance(boosts, list) and isinstance(ended, list)):
        raise ValueError("it is not a change")
    if found.get(by) != mark:
        return None
    return number, Change(tuple(boosts), tuple(map(str, ended)))


def _checksum(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"
