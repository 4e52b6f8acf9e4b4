"""A run's record, the same on Ray and in this process: its latest events, and its roles and members as JSON."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from distributed_grid.model.resources import amount_of
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.times import instant
from distributed_grid.roles.calls.endpoints import Endpoint

if TYPE_CHECKING:
    from distributed_grid.wire.roles import EventOfRun, MemberOfRun, RoleOfRun


def role_row(spec: RoleSpec, *, wanted: int, up: int, failures: int = 0, scaling: str = "") -> RoleOfRun:
    together = spec.colocation_group is not None
    return {
        "role": spec.name,
        "asked": [spec.least, spec.most],
        "wanted": wanted,
        "up": up,
        "pool": spec.pool,
        "colocation_group": spec.colocation_group,
        "colocation": str(spec.colocation) if together else None,
        "needs": {kind: float(amount_of(kind, units)) for kind, units in spec.needs.items()},
        "call_deadline_seconds": spec.call_deadline_seconds,
        "failure_policy": str(spec.failure_policy),
        "failures": failures,
        "failure_budget": spec.failure_budget,
        "scaling": scaling,
    }


def member_row(
    endpoint: Endpoint,
    state: str,
    actor: str,
    *,
    gpus: tuple[int | str, ...] = (),
    restarts: int = 0,
    queue: int = 0,
    running: int = 0,
    pid: int | None = None,
    why: str | None = None,
) -> MemberOfRun:
    return {
        "role": endpoint.role,
        "rank": endpoint.rank,
        "node": endpoint.node,
        "gpus": list(gpus),
        "state": state,
        "restarts": restarts,
        "queue": queue,
        "running": running,
        "pid": pid,
        "actor": actor,
        "methods": sorted(endpoint.methods),
        "concurrency": endpoint.concurrency,
        "why": endpoint.why if why is None else why,
    }


_MOST: Final = 20


@dataclass(frozen=True, slots=True)
class Event:
    at: datetime
    message: str
    times: int = 1
    """How many times in a row; `at` is the last."""

    def row(self) -> EventOfRun:
        message = self.message if self.times == 1 else f"{self.message} ({self.times} times)"
        return {"at": instant(self.at), "message": message}


class Events:
    """The latest events. Repetitions count as one event, so that they do not push out everything before them."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=_MOST)

    def note(self, message: str) -> datetime:
        """Record an event; returns its time."""
        now = datetime.now(UTC)
        if self._kept and self._kept[-1].message == message:
            self._kept[-1] = replace(self._kept[-1], at=now, times=self._kept[-1].times + 1)
        else:
            self._kept.append(Event(now, message))
        return now

    def __iter__(self) -> Iterator[Event]:
        return iter([*self._kept])

    def __len__(self) -> int:
        return len(self._kept)

    def rows(self) -> list[EventOfRun]:
        return [event.row() for event in self]
