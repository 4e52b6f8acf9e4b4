"""The journal: every event goes to current watchers and, for good, into the audit log.

What one caller can write is bounded: texts are cut, and of many events of one kind most are only counted.

To note an event takes almost no time, since the caller's answer usually waits. A moment later, or as soon as anybody
reads, the events since then are encoded and passed on.
"""

import asyncio
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from distributed_grid.errors import StoreBroken
from distributed_grid.model.leases import Lease
from distributed_grid.model.principals import GRID
from distributed_grid.model.times import instant
from distributed_grid.store.audit_log import SECURITY, AuditLog, Found, Wanted

if TYPE_CHECKING:
    pass

_KEPT: Final = 1000
_KEPT_BYTES: Final = 4 * 2**20
_LONGEST_TEXT: Final = 1000
_MOST_ITEMS: Final = 200
_MOST_BYTES: Final = 32 * 1024
"""The most bytes of an event's details."""
FOLDED: Final[Mapping[str, int]] = {"refused": 10, "offload_refused": 10, "access_refused": 100, "address_blocked": 100}
"""Events without effect that a caller can cause freely -> how many a minute are reported individually."""
FOLDED_ABOVE: Final = 60
"""The same limit for each other kind of event that one user causes."""
NEVER_FOLDED: Final = SECURITY | {"granted", "not_granted", "split", "returned"}
"""Always reported: who may do what, and what was lent. Repeated requests are answered from the latter, too."""
_FOLDED_FOR: Final = timedelta(minutes=1)
_SOON_S: Final = 0.01
_MOST_FOLDS: Final = 10_000


@dataclass(frozen=True)
class Event:
    number: int
    at: str
    event: str
    message: str
    boost_id: str | None = None
    node: str | None = None
    details: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def encoded(self) -> bytes:
        """As JSON. It is written once for all streams and answers that show the event."""
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        return orjson.dumps(shown, default=str, option=orjson.OPT_NON_STR_KEYS)


@dataclass(frozen=True, slots=True)
class _Noted:
    """An event as it was noted; a lease is immutable."""

    event: str
    at: datetime
    message: str
    lease: Lease | None
    node: str | None
    who: str
    details: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class _Line:
    """An entry for the audit log."""

    event: str
    at: datetime
    who: str
    boost_id: str | None
    node: str | None
    details: Mapping[str, object]


@dataclass
class _Fold:
    """Events of one kind and of one caller, since the first of them."""

    since: datetime
    count: int = 0


class Journal:
    """Entries that cannot be written wait: a failed write never keeps capacity from returning."""

    def __init__(self, audit: AuditLog, now: Callable[[], datetime]) -> None:
        self._audit = audit
        self._now = now
        self._noted: deque[_Noted] = deque()
        """What has not been passed on yet."""
        self._passing_on = threading.RLock()
        """Readers of the audit log run in threads."""
        self._is_scheduled = False
        self._events: deque[tuple[Event, int]] = deque(maxlen=_KEPT)
        """Each with its size."""
        self._bytes = 0
        self.counts: Counter[str] = Counter()
        """How often each kind of event was noted since the start."""
        self._number = 0
        self._owed: dict[Path, deque[_Line]] = defaultdict(lambda: deque(maxlen=_KEPT))
        """By file, the entries that it has not taken yet: no other event can push out those about access."""
        self._missed = 0
        self._trouble: str | None = None
        self._listeners: set[asyncio.Event] = set()
        self._folds: dict[tuple[str, str], _Fold] = {}
        """The oldest first."""

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever something is noted, until the context ends."""
        news = asyncio.Event()
        self._listeners.add(news)
        try:
            yield news
        finally:
            self._listeners.discard(news)

    def note(
        self,
        event: str,
        message: str,
        *,
        lease: Lease | None = None,
        node: str | None = None,
        who: str = GRID,
        **details: object,
    ) -> None:
        """Report one event to watchers and to the audit log."""
        self.counts[event] += 1
        is_a_users = who not in (GRID, "") and event not in NEVER_FOLDED
        if not (event in FOLDED or is_a_users) or self._is_written(event, who):
            self._note(event, message, lease, node, who, details)

    def _is_written(self, event: str, who: str) -> bool:
        """Whether to report an event individually; else it is counted, and the count is reported after a while."""
        self._tell_folded()
        fold = self._folds.get((event, who))
        if fold is None:
            if len(self._folds) >= _MOST_FOLDS:
                return False
            fold = self._folds[(event, who)] = _Fold(self._now())
        fold.count += 1
        return fold.count <= _written_of(event)

    def _tell_folded(self) -> None:
        now = self._now()
        for (event, who), fold in list(takewhile(lambda each: now - each[1].since >= _FOLDED_FOR, self._folds.items())):
            del self._folds[(event, who)]
            if (more := fold.count - _written_of(event)) > 0:
                message = f"{more} more of these within {_FOLDED_FOR.total_seconds():.0f} s are not listed"
                self._note(event, message, None, None, who, {"count": more})

    def _note(
        self, event: str, message: str, lease: Lease | None, node: str | None, who: str, details: dict[str, object]
    ) -> None:
        self._noted.append(_Noted(event, self._now(), message, lease, node, who, details))
        for news in self._listeners:
            news.set()
        if self._is_scheduled:
            return
        try:
            asyncio.get_running_loop().call_later(_SOON_S, self.pass_on)
        except RuntimeError:  # no event loop, and no answer that waits
            self.pass_on()
        else:
            self._is_scheduled = True

    def is_waiting(self, event: str) -> bool:
        """Whether an event of this kind was noted and not passed on yet."""
        return any(noted.event == event for noted in tuple(self._noted))

    def pass_on(self) -> None:
        """Pass on to watchers and to the audit log what was noted. From any thread."""
        with self._passing_on:
            self._is_scheduled = False
            has_news = bool(self._noted)
            while self._noted:
                self._pass_on(self._noted.popleft())
            if has_news:
                self._write()

    def _pass_on(self, noted: _Noted) -> None:
        self._number += 1
        lease, details = noted.lease, dict(noted.details)
        if lease is not None:
            details = {
                "source": lease.source,
                "target": lease.target,
                "resource_type": lease.kind,
                "units": lease.units,
                "state": lease.state.shown,
            } | details
        boost_id, node = lease.id if lease else None, None if noted.node is None else _cut_text(noted.node)
        message, details = _cut_text(noted.message), _bounded(details)
        self._keep(Event(self._number, instant(noted.at), noted.event, message, boost_id, node, details))
        owed = self._owed[self._audit.file_for(noted.event)]
        self._missed += len(owed) == _KEPT
        owed.append(_Line(noted.event, noted.at, noted.who, boost_id, node, {"message": message} | details))

    def _keep(self, event: Event) -> None:
        size = len(event.encoded)
        if len(self._events) == _KEPT:
            self._bytes -= self._events.popleft()[1]
        self._events.append((event, size))
        self._bytes += size
        while self._bytes > _KEPT_BYTES:
            self._bytes -= self._events.popleft()[1]

    def catch_up(self) -> None:
        """Write what the audit log has not taken yet."""
        self._tell_folded()
        with self._passing_on:
            self.pass_on()
            self._write()

    def _write(self) -> None:
        trouble = None
        for owed in self._owed.values():
            try:
                while owed:
                    line = owed[0]
                    self._audit.append(
                        line.event, line.at, who=line.who, boost_id=line.boost_id, node=line.node, **line.details
                    )
                    owed.popleft()
            except StoreBroken as error:
                trouble = error.message
        try:
            if self._missed and trouble is None:
                message = f"{self._missed} older entries could not be written and are lost"
                self._audit.append("audit_gap", self._now(), who=GRID, message=message)
                self._missed = 0
            self._audit.flush()
        except StoreBroken as error:
            trouble = error.message
        self._trouble = trouble

    @property
    def problems(self) -> tuple[str, ...]:
        self.pass_on()
        trouble = self._audit.trouble or self._trouble
        waiting = sum(map(len, self._owed.values())) + self._audit.waiting
        return () if trouble is None else (f"{trouble}; {waiting} entries wait to be written",)

    def recorded(self, wanted: Wanted, limit: int | None = None) -> Found:
        """Entries of the audit log, of this and of earlier runs. Reads files: not for an event loop."""
        self.pass_on()
        return self._audit.find(wanted, limit)

    def since(self, number: int) -> list[Event]:
        self.pass_on()
        newest = takewhile(lambda event: event.number > number, (event for event, _ in reversed(self._events)))
        return [*newest][::-1]


def _written_of(event: str) -> int:
    return FOLDED.get(event, FOLDED_ABOVE)


def _bounded(details: dict[str, object]) -> dict[str, object]:
    """Details with long texts and lists cut; if they are still too large, only the plain values stay."""
    cut = {key: _cut(value) for key, value in details.items()}
    if len(orjson.dumps(cut, default=str, option=orjson.OPT_NON_STR_KEYS)) <= _MOST_BYTES:
        return cut
    return {key: value for key, value in cut.items() if not isinstance(value, list | dict)} | {"cut": True}


def _cut_text(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}... ({len(text)} characters)"


def _cut(value: object) -> object:
    match value:
        case str():
            return _cut_text(value)
        case list() | tuple():
            return [_cut(each) for each in value[:_MOST_ITEMS]]
        case dict():
            return {_cut(key): _cut(each) for key, each in list(value.items())[:_MOST_ITEMS]}
    return value
