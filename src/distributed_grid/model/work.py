"""A program's work in its lease, and the part of it that runs elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from distributed_grid.model.codec import PLAIN

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import JobsWork

RUN_MARK: Final = "grid_run"
"""In the metadata of a Ray job: the run that its driver belongs to."""
_ROUNDING: Final = 1e-3
HOOK_MARK: Final = "grid_hook"
"""In the metadata of a Ray job: its driver has the hook, which puts its work into the run's lease."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver process of a Ray job, as Ray knows it."""

    job_id: str
    pid: int
    address: str
    """Its machine's address."""
    began_at: float
    """In seconds since 1970."""
    run_id: str = ""
    """Empty if it belongs to no run, or does not say so."""
    is_hooked: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of the tasks of one or more Ray jobs, including actor calls."""

    running: int = 0
    waiting: int = 0
    done: int = 0
    failed: int = 0
    actors: int = 0
    outside: Mapping[str, int] = field(default_factory=dict)
    """Work that runs or ran outside the lease: counts by name."""
    unplaced: int = 0
    """How many of the waiting tasks wait for room, including actors that have not started yet."""
    held_by_actors: float = 0.0
    """CPUs of the lease that actors hold until they end, busy or not."""
    cpus_in_use: float = 0.0
    """CPUs of the lease that are in use now."""

    @property
    def waits_for_its_actors(self) -> bool:
        """Whether some of it waits for room while its own actors hold all CPUs in use."""
        return self.unplaced > 0 and 0 < self.cpus_in_use <= self.held_by_actors + _ROUNDING


def together(parts: Iterable[Work], cpus_in_use: float) -> Work:
    """The sums over several jobs, with the lease's own count of CPUs in use."""
    found = list(parts)
    outside: dict[str, int] = {}
    for part in found:
        for name, count in part.outside.items():
            outside[name] = outside.get(name, 0) + count
    summed = ("running", "waiting", "done", "failed", "actors", "unplaced", "held_by_actors")
    counts = {name: sum(getattr(part, name) for part in found) for name in summed}
    return Work(**counts, outside=outside, cpus_in_use=cpus_in_use)


def work_dict(work: Work) -> JobsWork:
    """As the API shows it."""
    return cast("JobsWork", PLAIN.encode(work) | {"waits_for_its_actors": work.waits_for_its_actors})
