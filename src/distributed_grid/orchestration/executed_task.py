"""One piece of work that an executor was given, and how it is getting on."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from distributed_grid.decide.offloading.secrets import choose_environment
from distributed_grid.errors import InvalidRequest
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import SchedulingDecision


class TaskState(StrEnum):
    SUBMITTED = "submitted"
    WAITING = "waiting"  # for a place
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"  # there is no place for it


OVER = frozenset({TaskState.DONE, TaskState.FAILED, TaskState.CANCELLED, TaskState.REJECTED})


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be done: a function or a command."""

    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Never the arguments: there may be secrets in them."""
        return self.command[0] if self.command else getattr(self.function, "__name__", "function")


def command_work(command: Sequence[str], cwd: str | None = None, env: Sequence[str] = ()) -> Work:
    """A command as it was given here: in this folder, with what may be copied of this environment and what is named."""
    words = [command] if isinstance(command, str) else list(command)
    if not words:
        raise InvalidRequest("There is nothing to run")
    if words[0].endswith(".py"):
        words = [sys.executable, *words]
    chosen = choose_environment(os.environ, env)
    values = {name: os.environ[name] for name in chosen.copied} | dict(chosen.given)
    return Work(command=tuple(words), cwd=cwd or str(Path.cwd()), env=values)


@dataclass(frozen=True, slots=True)
class Wish:
    """Where and when it is to run."""

    target: NodeName
    destination: NodeName | None = None
    """Where it had better run."""
    priority: AllocationPriority | str = AllocationPriority.NORMAL
    deadline_s: float | None = None


@dataclass(slots=True)
class ExecutedTask:
    """Changes as it goes on; only its executor changes it."""

    id: str
    target: NodeName
    needs: ResourceVector
    work: Work
    state: TaskState = TaskState.SUBMITTED
    submitted_at: float = field(default_factory=time.time)
    started_at: float | None = None
    ended_at: float | None = None
    attempts: int = 0
    decision: SchedulingDecision | None = None
    reasons: tuple[str, ...] = ()
    result: Any = None
    error: BaseException | None = None
    exit_code: int | None = None
    printed: str = ""
    """What it printed, once it is over."""
    actor: Any = None

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def shown(self) -> dict[str, Any]:
        place = self.decision.members[0] if self.decision is not None and self.decision.members else None
        return {
            "task_id": self.id,
            "state": str(self.state),
            "label": self.work.label,
            "target_node": self.target,
            "node": None if place is None else place.node,
            "runs_on": None if place is None else place.runs_on,
            "kept_on_target": place is not None and place.node == self.target,
            "offloaded": place is not None and place.node != self.target,
            "delivery": None if place is None else str(place.delivery),
            "boost_id": None if place is None else place.boost_id,
            "lease_id": None if place is None else place.lease_id,
            "confidence": None if self.decision is None else self.decision.confidence,
            "reasons": list(self.reasons),
            "resources": self.needs.to_amounts(),
            "attempts": self.attempts,
            "submitted_at": self.submitted_at,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "exit_code": self.exit_code,
            "error": None if self.error is None else f"{type(self.error).__name__}: {self.error}".splitlines()[0],
        }
