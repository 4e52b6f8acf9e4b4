"""What a program does in its lease, and what of it is elsewhere."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

RUN_MARK: Final = "grid_run"
"""In the metadata of a Ray job: the run that its driver belongs to."""
_ROUNDING: Final = 1e-3
HOOK_MARK: Final = "grid_hook"
"""In the metadata of a Ray job: the hook is in its driver, which puts its work into the run's lease."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The process at the beginning of a Ray job, as Ray knows it."""

    job_id: str
    pid: int
    address: str
    """Of its machine."""
    began: float
    """In seconds since 1970."""
    run_id: str = ""
    """Empty if it belongs to none, or does not say."""
    is_hooked: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """The tasks of one or more Ray jobs, actors' calls included, counted."""

    running: int = 0
    waiting: int = 0
    done: int = 0
    failed: int = 0
    actors: int = 0
    outside: Mapping[str, int] = field(default_factory=dict)
    """What runs, or ran, not in the lease: how many, by name."""
    unplaced: int = 0
    """Those of the waiting that wait for room, actors that have yet to start included."""
    held_by_actors: float = 0.0
    """CPUs of the lease that actors hold, whatever they do, until they end."""
    cpus_in_use: float = 0.0
    """Of the lease's, now."""

    @property
    def waits_for_its_actors(self) -> bool:
        """Some of it waits for room, and all CPUs in use are held by its own actors."""
        return self.unplaced > 0 and 0 < self.cpus_in_use <= self.held_by_actors + _ROUNDING


def together(parts: Iterable[Work], cpus_in_use: float) -> Work:
    """The sums over several jobs, with what the lease says itself."""
    found = list(parts)
    outside: dict[str, int] = {}
    for part in found:
        for name, count in part.outside.items():
            outside[name] = outside.get(name, 0) + count
    summed = ("running", "waiting", "done", "failed", "actors", "unplaced", "held_by_actors")
    counts = {name: sum(getattr(part, name) for part in found) for name in summed}
    return Work(**counts, outside=outside, cpus_in_use=cpus_in_use)


def driver_dict(driver: Driver) -> dict[str, Any]:
    """As the API shows it."""
    return {
        "job_id": driver.job_id,
        "pid": driver.pid,
        "address": driver.address,
        "began_at": driver.began,
        "run_id": driver.run_id,
        "is_hooked": driver.is_hooked,
    }


def work_dict(work: Work) -> dict[str, Any]:
    """As the API shows it."""
    return {
        "running": work.running,
        "waiting": work.waiting,
        "done": work.done,
        "failed": work.failed,
        "actors": work.actors,
        "outside": dict(work.outside),
        "unplaced": work.unplaced,
        "cpus_in_use": work.cpus_in_use,
        "waits_for_its_actors": work.waits_for_its_actors,
    }
