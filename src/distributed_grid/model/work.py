"""What a program does in its lease, and what of it is elsewhere."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


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
    cpus_in_use: float = 0.0
    """Of the lease's, now."""


def together(parts: Iterable[Work], cpus_in_use: float) -> Work:
    """The sums over several jobs, with what the lease says itself."""
    found = list(parts)
    outside: dict[str, int] = {}
    for part in found:
        for name, count in part.outside.items():
            outside[name] = outside.get(name, 0) + count
    counts = {
        name: sum(getattr(part, name) for part in found) for name in ("running", "waiting", "done", "failed", "actors")
    }
    return Work(**counts, outside=outside, cpus_in_use=cpus_in_use)


def work_dict(work: Work) -> dict[str, Any]:
    """As the API shows it."""
    return {
        "running": work.running,
        "waiting": work.waiting,
        "done": work.done,
        "failed": work.failed,
        "actors": work.actors,
        "outside": dict(work.outside),
        "cpus_in_use": work.cpus_in_use,
    }
