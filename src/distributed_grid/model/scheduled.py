"""Tasks that have a place or wait for one, as the scheduler keeps them in mind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from distributed_grid.model.requests import DEFAULT_DURATION_S
from distributed_grid.model.scheduling import Alternative, Placement, SchedulingDecision, SchedulingRequest


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """A task, or a gang, from when it is asked for until it is done."""

    request: SchedulingRequest
    """With its id and its target."""
    needs: Mapping[str, int]
    """What each place takes away, in units."""
    asked_at: datetime
    who: str = ""
    team: str = ""
    members: tuple[Placement, ...] = ()
    """Its places; none while it waits."""
    placed_at: datetime | None = None
    started_at: datetime | None = None
    """When it really began, as was told."""
    predicted: tuple[tuple[float, float], ...] = ()
    """What the model gave, and what was said, each time that something was said of it."""
    reasons: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    is_judged: bool = False
    """What was said of it has been held against what happened."""

    @property
    def id(self) -> str:
        return self.request.task_id

    @property
    def waits(self) -> bool:
        return not self.members

    @property
    def start_by(self) -> datetime | None:
        limit = self.request.deadline_seconds
        return None if limit is None else self.asked_at + timedelta(seconds=limit)

    @property
    def expected_end(self) -> datetime | None:
        lasts = self.request.duration_seconds
        return None if lasts is None or self.placed_at is None else self.placed_at + timedelta(seconds=lasts)

    @property
    def held_s(self) -> float | None:
        """For how long its place is held where nobody says that it is done; None: as long as leases usually last."""
        lasts = self.request.duration_seconds
        return None if lasts is None else 2 * lasts + 60.0

    def is_forgotten(self, now: datetime) -> bool:
        """Its place is in boosts alone, which may last, and it should have been over for long."""
        if self.placed_at is None or any(member.lease_id is not None for member in self.members):
            return False
        return now - self.placed_at > timedelta(seconds=self.held_s or DEFAULT_DURATION_S)

    @property
    def confidence(self) -> float:
        return self.predicted[-1][1] if self.predicted else 0.0

    def decision(self, position: int | None = None) -> SchedulingDecision:
        return SchedulingDecision(
            self.id,
            accepted=not self.waits,
            confidence=self.confidence,
            reasons=self.reasons,
            members=self.members,
            alternatives=self.alternatives,
            queued=self.waits,
            position=position,
        )


@dataclass(frozen=True, slots=True)
class SchedulingRecord:
    """What of the scheduler outlives a restart."""

    tasks: tuple[ScheduledTask, ...] = ()
    outcomes: tuple[tuple[float, float, bool], ...] = ()
    """Of the last places: what the model gave, what was said, and whether it happened."""
    start_delays_s: tuple[float, ...] = field(default=())
