"""Requests that wait for capacity."""

from dataclasses import dataclass
from datetime import datetime

from distributed_grid.model.leases import Cause
from distributed_grid.model.requests import Ask


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request in the queue. The lease that it becomes has the same id."""

    id: str
    ask: Ask
    since: datetime
    until: datetime | None = None
    """When it gives up; None: it waits until it is met or taken back."""
    is_kept: bool = False
    """It waits over restarts, with nobody on the line."""

    def is_over(self, now: datetime) -> bool:
        return self.until is not None and now >= self.until

    @property
    def is_for_a_task(self) -> bool:
        """Whether a task waits with it, rather than a caller: the scheduler then has the lease."""
        return self.is_kept and self.ask.cause is Cause.SCHEDULED
