"""The audit log: who did what when, one JSON object per line, append-only.

Access events have files of their own beside it, which no other event can fill: no number of boosts pushes out refused
attempts (`REFUSED`), and no number of either pushes out changes of access (`SECURITY`). A reader of the log gets all
files as one, in order of time.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from distributed_grid import threads
from distributed_grid.errors import StoreBroken
from distributed_grid.model.codec import encode_instant
from distributed_grid.store.durable import json_of

if TYPE_CHECKING:
    from distributed_grid.wire.audit import Entry

_BLOCK: Final = 64 * 1024
_CLOCKS_DIFFER: Final = timedelta(minutes=1)
_LONGEST_LINE: Final = 2**20
_SLICE_S: Final = 0.001
_PAUSE_S: Final = 0.002
_MOST_WAITING: Final = 1000
_SLOW_S: Final = 5.0
_FLUSH_S: Final = 2.0
MOST_BYTES: Final = 2**20
"""The most bytes of the log that one call returns."""
SECURITY: Final = frozenset(
    {
        "token_created",
        "token_revoked",
        "adopted",
        "other_cluster",
        "store_problem",
        "audit_repair",
    }
)
"""Changes of access, and adopted boosts. Only callers with the scope `admin` can cause these events."""
REFUSED: Final = frozenset({"access_refused", "address_blocked"})
"""Attempts without permission: any client can cause these events."""


class Found(list["Entry"]):
    """Entries of the log, oldest first. `is_cut`: more entries match, but they would exceed the limit."""

    is_cut = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter for entries: all of them, or those that match every given field."""

    who: str | None = None
    node: str | None = None
    """Matches an entry that names the node in any field."""
    boost: str | None = None
    """The beginning of the id of a boost, or of the request that it was."""
    event: str | None = None
    since: datetime | None = None

    def matches(self, entry: Entry) -> bool:
        if self.since is not None and not _is_from(entry, self.since):
            return False
        return (
            (self.who is None or entry.get("who") == self.who)
            and (self.event is None or entry.get("event") == self.event)
            and (self.node is None or self.node in (entry.get(part) for part in ("node", "source", "target")))
            and (self.boost is None or id_of(entry).startswith(self.boost.lower()))
        )

    def texts(self) -> tuple[bytes, ...]:
        """Texts that the line of every matching entry contains, as written in the file."""
        wanted = (self.who, self.event, self.node, self.boost and self.boost.lower())
        return tuple(json.dumps(text)[1:-1].encode() for text in wanted if text)

    def may_come_before(self, entry: Entry) -> bool:
        """False once a backwards read can find no more matches. Writers' clocks may differ a little."""
        return self.since is None or _is_from(entry, self.since, _CLOCKS_DIFFER)


def id_of(entry: Entry) -> str:
    """The id of the boost or the request that an entry is about; empty if it is about neither."""
    return str(entry.get("boost_id") or entry.get("request_id") or "")


class AuditLog:
    """Any number of threads and processes may append: each line is one write at the end of the file.

    A file that has grown past `rotate_above` bytes becomes `.1`, the one before it `.2`, up to `keep`.
    """

    def __init__(self, path: Path, *, rotate_above: int = 64 * 2**20, keep: int = 3) -> None:
        self.path = path
        self._rotate_above = rotate_above
        self._keep = keep
        self.security = path.with_name(f"{path.stem}-security{path.suffix}")
        self.refused = path.with_name(f"{path.stem}-refused{path.suffix}")

    def file_for(self, event: str) -> Path:
        """The file that such an event goes to."""
        return self.security if event in SECURITY else self.refused if event in REFUSED else self.path

    def append(
        self,
        event: str,
        at: datetime,
        *,
        who: str = "",
        boost_id: str | None = None,
        node: str | None = None,
        **details: object,
    ) -> None:
        """Add one line. `StoreBroken` if it is not accepted."""
        entry = {
            "at": encode_instant(at),
            "event": event,
            "who": who,
            "boost_id": boost_id,
            "node": node,
            **details,
        }
        line = json.dumps(entry, default=str).encode() + b"\n"
        self._take(self.file_for(event), line)

    @property
    def trouble(self) -> str | None:
        """Why accepted lines are not in the file yet."""
        return None

    @property
    def waiting(self) -> int:
        """How many accepted lines are not in the file yet."""
        return 0

    def flush(self) -> None:
        """Try to write the waiting lines again; `StoreBroken` while the disk refuses them."""

    def _take(self, path: Path, line: bytes) -> None:
        self._write(path, line)

    def _write(self, path: Path, line: bytes) -> None:
        try:
            fd = self._open(path)
            try:
                # A line torn by a crash must not swallow this one.
                line = line if _ends_a_line(fd) else b"\n" + line
                if os.write(fd, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreBroken(
                f"Cannot write the audit log {path}: {error.strerror}",
                try_next="Free some space there, or set GRID_HOME to a folder that you can write to.",
            ) from error

    def read(self, limit: int | None = None) -> Found:
        """The last `limit` entries, or all, oldest first, including rotated files. Torn lines are left out."""
        return self.find(Wanted(), limit)

    def find(self, wanted: Wanted, limit: int | None = None) -> Found:
        """The last `limit` matching entries, oldest first, including rotated files; torn lines are left out.

        Reads backwards, and no further than necessary. Returns at most `MOST_BYTES`.
        """
        found, size = Found(), 0
        try:
            files = (self._newest_first(path, wanted) for path in (self.path, self.security, self.refused))
            for length, entry in merge(*files, key=lambda sized: _moment(sized[1]), reverse=True):
                if len(found) == limit:
                    break
                size += length
                if size > MOST_BYTES:
                    found.is_cut = True
                    break
                found.append(entry)
        except OSError as error:
            raise StoreBroken(f"Cannot read the audit log {self.path}: {error.strerror}") from error
        found.reverse()
        return found

    def _newest_first(self, path: Path, wanted: Wanted) -> Iterator[tuple[int, Entry]]:
        """The entries of one file and of its rotated predecessors, with their lengths."""
        lines = _in_slices(chain.from_iterable(_lines_backwards(each) for each in (path, *self._older(path))))
        if wanted.since is None and (texts := wanted.texts()):  # then most lines need not be parsed as JSON
            lines = (line for line in lines if all(text in line for text in texts))
        entries = ((len(line), entry) for line in lines if (entry := _entry(line)) is not None)
        recent = takewhile(lambda sized: wanted.may_come_before(sized[1]), entries)
        return (sized for sized in recent if wanted.matches(sized[1]))

    def _older(self, path: Path) -> list[Path]:
        return [path.with_name(f"{path.name}.{n}") for n in range(1, self._keep + 1)]

    def _open(self, path: Path) -> int:
        fd = _open_newest(path)
        if os.fstat(fd).st_size <= self._rotate_above:
            return fd
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return fd  # another process rotates it, or only holds it: the next line tries again
        try:
            self._rotate_if_large(path)
        finally:
            os.close(fd)
        return _open_newest(path)

    def _rotate_if_large(self, path: Path) -> None:
        """Check the size again under the lock: another process may just have rotated the file."""
        with suppress(FileNotFoundError):
            if path.stat().st_size > self._rotate_above:
                for newer, older in reversed(list(pairwise([path, *self._older(path)]))):
                    if newer.exists():
                        newer.replace(older)


class QueuedAuditLog(AuditLog):
    """For an event loop: `append` only queues the line, and a thread writes it, in order. Readers see queued lines.

    Each file has its own queue. A line that the disk refuses stays first in its queue. Until the disk accepts it, and
    while the queue is full, `append` raises.

    Outside an event loop each line is written at once.
    """

    def __init__(self, path: Path, *, rotate_above: int = 64 * 2**20, keep: int = 3) -> None:
        super().__init__(path, rotate_above=rotate_above, keep=keep)
        self._queues: dict[Path, deque[bytes]] = {each: deque() for each in (self.path, self.security, self.refused)}
        self._moved_at = 0.0
        """When the last line was written, or the first waiting line was queued."""
        self._broken: dict[Path, StoreBroken] = {}
        self._writing = threading.Lock()
        self._is_scheduled = False

    @property
    def trouble(self) -> str | None:
        for error in self._broken.values():
            return error.message
        waits_s = time.monotonic() - self._moved_at
        if self.waiting and waits_s > _SLOW_S:
            return f"The disk has not accepted a line of the audit log {self.path} for {waits_s:.0f} s"
        return None

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def flush(self) -> None:
        if self.waiting:
            self._schedule()
        for error in self._broken.values():
            raise error

    def find(self, wanted: Wanted, limit: int | None = None) -> Found:
        """Like `AuditLog.find`, but writes the queued lines first, unless the disk takes too long."""
        if self.waiting and self._writing.acquire(timeout=_FLUSH_S):
            self._write_all()
        return super().find(wanted, limit)

    async def finish(self) -> None:
        """Wait until all is written, within bounds."""
        if self.waiting:
            with suppress(TimeoutError):
                await asyncio.wait_for(threads.AUDIT.run(self._work), _FLUSH_S)

    def _take(self, path: Path, line: bytes) -> None:
        if path in self._broken:
            self._schedule()
            raise self._broken[path]
        if len(self._queues[path]) >= _MOST_WAITING:
            raise StoreBroken(self.trouble or f"The disk is slow to take the audit log {path}")
        if not self.waiting:
            self._moved_at = time.monotonic()
        self._queues[path].append(line)
        self._schedule()

    def _schedule(self) -> None:
        if self._is_scheduled:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._work()
            return
        self._is_scheduled = True
        threads.AUDIT.begin(self._work)

    def _work(self) -> None:
        self._writing.acquire()
        self._is_scheduled = False  # lines queued from now on schedule another write
        self._write_all()

    def _write_all(self) -> None:
        """Write the queued lines, as far as the disk accepts them, and release the lock, which is held."""
        try:
            for path, queue in self._queues.items():
                self._write_queue(path, queue)
        finally:
            self._writing.release()

    def _write_queue(self, path: Path, queue: deque[bytes]) -> None:
        try:
            while queue:
                self._write(path, queue[0])
                queue.popleft()
                self._moved_at = time.monotonic()
                self._broken.pop(path, None)
        except StoreBroken as error:
            self._broken[path] = error


def _open_newest(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)


def _ends_a_line(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size == 0 or os.pread(fd, 1, size - 1) == b"\n"


def _entry(line: bytes) -> Entry | None:
    if len(line) > _LONGEST_LINE:
        return None  # grid writes no such line
    try:
        entry = _json(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _json(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except ValueError:
        return json_of(line)  # accepts what is not quite JSON: NaN


def _is_from(entry: Entry, since: datetime, give_or_take: timedelta = timedelta()) -> bool:
    """True if an entry is not older than `since`, or if its time is unreadable."""
    try:
        return since - datetime.fromisoformat(str(entry.get("at"))) <= give_or_take
    except (ValueError, TypeError, OverflowError):
        return True


def _moment(entry: Entry) -> datetime:
    """The sort key; an entry without a readable time sorts as the newest."""
    try:
        at = datetime.fromisoformat(str(entry.get("at")))
    except ValueError:
        return _LAST
    return at if at.tzinfo else at.replace(tzinfo=UTC)


_LAST: Final = datetime.max.replace(tzinfo=UTC)


def _in_slices(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The same lines, with a short pause after each millisecond of computing.

    Python computes in one thread at a time and lets a thread run for five milliseconds: without the pauses, every
    answer of the controller would wait that long, several times, while a long log is read.
    """
    began = time.thread_time()
    for number, line in enumerate(lines):
        yield line
        if number % 16 == 0 and time.thread_time() - began > _SLICE_S:
            time.sleep(_PAUSE_S)
            began = time.thread_time()


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """A file's lines, last first, without reading more of it than is asked for.

    A line that is longer than any of grid's is dropped: empty lines come in its place, so that the reader can pause.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        position = file.seek(0, os.SEEK_END)
        rest, is_too_long = b"", False
        while position:
            size = min(_BLOCK, position)
            position -= size
            file.seek(position)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            if lines and is_too_long:
                lines[-1], is_too_long = b"", False
            yield from reversed(lines)
            if is_too_long or len(rest) > _LONGEST_LINE:
                rest, is_too_long = b"", True
                yield b""
        yield rest
