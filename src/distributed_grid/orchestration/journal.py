"""What happened, told twice: to whoever watches now (events) and for good (the audit log)."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from distributed_grid.errors import StoreBroken
from distributed_grid.model.instants import instant
from distributed_grid.model.leases import Lease
from distributed_grid.store.audit_log import AuditLog, Wanted

_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Event:
    number: int
    at: str
    event: str
    message: str
    boost_id: str | None = None
    node: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Journal:
    """What cannot be written waits for its turn: no capacity stays out because a line could not be written."""

    def __init__(self, audit: AuditLog, now: Callable[[], datetime]) -> None:
        self._audit = audit
        self._now = now
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self.counts: Counter[str] = Counter()
        """How often each kind of event was noted since the start."""
        self._number = 0
        self._owed: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._missed = 0
        self._trouble: str | None = None
        self._listeners: set[asyncio.Event] = set()

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set whenever something was noted, for as long as somebody listens."""
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
        who: str = "grid",
        **details: Any,
    ) -> None:
        """Tell watchers and the audit log about one thing."""
        at = self._now()
        self._number += 1
        self.counts[event] += 1
        boost_id = lease.id if lease else None
        if lease is not None:
            details = {
                "source": lease.source,
                "target": lease.target,
                "resource_type": lease.kind,
                "units": lease.units,
                "state": str(lease.state),
            } | details
        self._events.append(Event(self._number, instant(at), event, message, boost_id, node, details))
        for news in self._listeners:
            news.set()
        self._missed += len(self._owed) == _KEPT
        self._owed.append(
            {"event": event, "at": at, "who": who, "boost_id": boost_id, "node": node, "message": message} | details
        )
        self.catch_up()

    def catch_up(self) -> None:
        """Write what the audit log has not taken yet."""
        try:
            while self._owed:
                self._audit.append(**self._owed[0])
                self._owed.popleft()
            if self._missed:
                message = f"{self._missed} older entries could not be written and are lost"
                self._audit.append("audit_gap", self._now(), who="grid", message=message)
        except StoreBroken as error:
            self._trouble = error.message
        else:
            self._trouble, self._missed = None, 0

    @property
    def problems(self) -> tuple[str, ...]:
        return () if self._trouble is None else (f"{self._trouble}; {len(self._owed)} entries wait to be written",)

    def recorded(self, wanted: Wanted, limit: int) -> list[dict[str, Any]]:
        """What the audit log says, of this and of earlier lives. Reads files: not for an event loop."""
        return self._audit.find(wanted, limit)

    def since(self, number: int) -> list[Event]:
        return [event for event in self._events if event.number > number]
