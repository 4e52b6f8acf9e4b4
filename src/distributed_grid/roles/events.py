"""The events of a run as people see them, the same on Ray and in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from distributed_grid.model.times import instant

if TYPE_CHECKING:
    from distributed_grid.wire.roles import EventOfRun

_MOST: Final = 20


@dataclass(frozen=True, slots=True)
class Event:
    at: datetime
    told: str
    times: int = 1
    """How many times in a row; `at` is the last."""

    def row(self) -> EventOfRun:
        told = self.told if self.times == 1 else f"{self.told} ({self.times} times)"
        return {"at": instant(self.at), "told": told}


class Events:
    """The latest events. Repetitions count as one event, so that they do not push out everything before them."""

    def __init__(self) -> None:
        self._kept: deque[Event] = deque(maxlen=_MOST)

    def note(self, told: str) -> datetime:
        """Record an event; returns its time."""
        now = datetime.now(UTC)
        if self._kept and self._kept[-1].told == told:
            self._kept[-1] = replace(self._kept[-1], at=now, times=self._kept[-1].times + 1)
        else:
            self._kept.append(Event(now, told))
        return now

    def __iter__(self) -> Iterator[Event]:
        return iter([*self._kept])

    def __len__(self) -> int:
        return len(self._kept)

    def rows(self) -> list[EventOfRun]:
        return [event.row() for event in self]
