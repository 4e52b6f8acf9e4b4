"""How an executor runs its work: ask for a place, wait for it, run there, and retry elsewhere if the node is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from distributed_grid.client import GridClient
from distributed_grid.client.lease_keeper import kept_in_background
from distributed_grid.decide.offload.secrets import choose_environment
from distributed_grid.errors import GridError, InvalidRequest, NoCapacity
from distributed_grid.logs import logger
from distributed_grid.model.nodes import NodeName, in_words
from distributed_grid.model.policies import AllocationPriority, SharingMode
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector
from distributed_grid.model.scheduling import Affinity, SchedulingDecision, SchedulingRequest, SchedulingStrategy
from distributed_grid.sdk.backend import Backend
from distributed_grid.sdk.scheduler import IntelligentScheduler

if TYPE_CHECKING:
    from distributed_grid.execution.on_node_runner import RunnerOrder, RunnerSaid
    from distributed_grid.wire.offload import LogPiece


class TaskState(StrEnum):
    SUBMITTED = "submitted"
    WAITING = "waiting"  # for a place
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"  # there is no place for it


_UNSUCCESSFUL: Final = frozenset({TaskState.FAILED, TaskState.CANCELLED, TaskState.REJECTED})
LEGAL: Final[Mapping[TaskState, frozenset[TaskState]]] = {
    TaskState.SUBMITTED: _UNSUCCESSFUL | {TaskState.WAITING, TaskState.RUNNING},
    TaskState.WAITING: _UNSUCCESSFUL | {TaskState.RUNNING},
    # WAITING and RUNNING again: its node was lost, and it starts elsewhere.
    TaskState.RUNNING: _UNSUCCESSFUL | {TaskState.WAITING, TaskState.RUNNING, TaskState.DONE},
    TaskState.DONE: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
    TaskState.REJECTED: frozenset(),
}


class TaskFacts(TypedDict):
    """Facts about any task, also about a process that was moved."""

    task_id: str
    state: str
    label: str
    target_node: str
    node: str | None
    runs_on: str | None
    kept_on_target: bool
    offloaded: bool
    lease_id: str | None
    exit_code: int | None
    error: str | None


class ShownTask(TaskFacts):
    """A task that the executor has placed."""

    delivery: str | None
    boost_id: str | None
    confidence: float | None
    reasons: list[str]
    resources: dict[str, float | int]
    attempts: int
    submitted_at: float
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class Work:
    """The work to run: a function or a command."""

    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Never the arguments: they may contain secrets."""
        return self.command[0] if self.command else getattr(self.function, "__name__", "function")


def command_work(command: Sequence[str], cwd: str | None = None, env: Sequence[str] = ()) -> Work:
    """A command in `cwd` or the current folder, with the variables that may be copied and those that `env` names."""
    words = [command] if isinstance(command, str) else list(command)
    if not words:
        raise InvalidRequest("There is nothing to run")
    if words[0].endswith(".py"):
        words = [sys.executable, *words]
    chosen = choose_environment(os.environ, env)
    values = {name: os.environ[name] for name in chosen.copied} | dict(chosen.given)
    return Work(command=tuple(words), cwd=cwd or str(Path.cwd()), env=values)


@dataclass(frozen=True, slots=True)
class TaskTerms:
    """Where and when to run."""

    target: NodeName
    destination: NodeName | None = None
    """The preferred node."""
    priority: AllocationPriority | str = AllocationPriority.NORMAL
    deadline_s: float | None = None
    nodes: int = 1
    """On so many nodes, with all of its needs on each."""


@dataclass(slots=True)
class ExecutedTask:
    """Updated as it progresses. Only its executor changes it."""

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
    """Its output, once it has ended."""
    actor: Any = None

    @property
    def is_over(self) -> bool:
        return not LEGAL[self.state]

    def become(self, state: TaskState, error: BaseException | None = None) -> None:
        """The only way in which its state changes."""
        assert state in LEGAL[self.state], (self.state, state)
        self.state, self.error = state, error
        if state is TaskState.RUNNING:
            self.started_at = time.time()
        if self.is_over:
            self.ended_at = time.time()

    def end_as_cancelled(self) -> None:
        self.become(TaskState.CANCELLED, asyncio.CancelledError("the task was cancelled"))

    def shown(self) -> ShownTask:
        members = () if self.decision is None else self.decision.members
        place = members[0] if members else None
        return {
            "task_id": self.id,
            "state": str(self.state),
            "label": self.work.label,
            "target_node": self.target,
            "node": None if place is None else place.node,
            "runs_on": None if place is None else in_words(list(dict.fromkeys(m.runs_on for m in members))),
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


log = logger()

_FOLLOW_S: Final = 0.1
_LASTS_S: Final = 90.0
"""A task's lease is treated as if it lasted no longer, whatever the scheduler gave it."""
_UP_TO_S: Final = 300.0
"""How far each renewal extends a lease: if this process dies, its place stays taken for that long."""


class Lost(Exception):
    """The node or the lease is gone. The work itself did not fail."""


async def attempt(task: ExecutedTask, decision: SchedulingDecision, backend: Backend, name: str) -> None:
    """Run the task to its end; the outcome is in the task. Raises `Lost`, or what the function raised."""
    from distributed_grid.execution import runner

    first = decision.members[0]
    group = first.placement_group
    assert group is not None, "every place is part of a group"
    # On several nodes, all capacity is for what the function starts there.
    needs = task.needs if len(decision.members) == 1 else ResourceVector()
    async with _renewing(decision.lease_id, backend):
        if task.work.command:
            task.actor = runner.host_command(group, needs, name, first.bundle)
        else:
            task.actor = runner.host_function(group, needs, first.bundle)
        try:
            await (_command if task.work.command else _function)(task, backend, name)
        except runner.LOST as error:
            raise Lost(str(error).strip().splitlines()[0]) from error
        finally:
            await _keep_what_it_printed(task)
            _end(task)


async def _function(task: ExecutedTask, backend: Backend, name: str) -> None:
    import ray

    from distributed_grid.execution import runner

    work = task.work
    assert work.function is not None
    reference = runner.run_function(task.actor, work.function, work.args, work.kwargs)
    await backend.ask(GridClient.task_started, name)
    try:
        task.result = await reference
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(getattr(error, "cause", None), Exception) else error from None


async def _command(task: ExecutedTask, backend: Backend, name: str) -> None:
    """The result is the exit code."""
    work = task.work
    order: RunnerOrder = {
        "command": list(work.command),
        "cwd": work.cwd,
        "stdin": None,
        "stdout": None,
        "stderr": None,
    }
    await task.actor.prepare.remote(order, dict(work.env), {})
    said: RunnerSaid = await task.actor.go.remote()
    await backend.ask(GridClient.task_started, name)
    while said["state"] == "running":
        await asyncio.sleep(_FOLLOW_S)
        said = await task.actor.about.remote()
    if said["state"] == "failed":
        raise RuntimeError(said["why"])
    task.exit_code = task.result = said["exit_code"]


async def printed_by(task: ExecutedTask) -> str:
    """All that it has printed so far."""
    if task.actor is None or task.is_over:
        return task.printed
    return await read_all(task.actor.read.remote)


async def read_all(read: Callable[[int], Awaitable[LogPiece]]) -> str:
    """Read a log in pieces, up to where it ended at the last reading: a process may go on writing for ever."""
    piece = await read(0)
    pieces: list[str] = [piece["text"]]
    while piece["more"]:
        piece = await read(piece["next"])
        pieces.append(piece["text"])
    return "".join(pieces)


async def _keep_what_it_printed(task: ExecutedTask) -> None:
    import ray

    with contextlib.suppress(ray.exceptions.RayError, asyncio.CancelledError):
        task.printed = await asyncio.wait_for(printed_by(task), 5.0)


def _end(task: ExecutedTask) -> None:
    import ray

    actor, task.actor = task.actor, None
    if actor is not None:
        ray.kill(actor)


@contextlib.asynccontextmanager
async def _renewing(lease_id: str | None, backend: Backend) -> AsyncIterator[None]:
    """A lease made for the task lasts as long as the task. A boost lasts as long as its owner wants."""
    if lease_id is None:
        yield
        return
    renewal = kept_in_background(lease_id, _LASTS_S, lambda: backend.ask(GridClient.renew_boost, lease_id, _UP_TO_S))
    try:
        yield
    finally:
        renewal.cancel()


class Carrier:
    """Carries out one executor's tasks. Progress and outcome are in the task."""

    def __init__(self, backend: Backend, mode: SharingMode, max_retries: int) -> None:
        self._backend = backend
        self._scheduler = IntelligentScheduler(backend=backend)
        self._mode = mode
        self._max_retries = max_retries

    async def carry_out(self, task: ExecutedTask, terms: TaskTerms) -> None:
        try:
            while not await self._attempt(task, terms):
                log.warning("a task's node is lost; it starts again elsewhere", task=task.id)
        except asyncio.CancelledError:
            task.end_as_cancelled()
        except NoCapacity as error:
            task.reasons = tuple(error.because)
            task.become(TaskState.REJECTED, error)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises is its result
            task.become(TaskState.FAILED, error)
        else:
            task.become(TaskState.FAILED if task.exit_code else TaskState.DONE)

    async def _attempt(self, task: ExecutedTask, terms: TaskTerms) -> bool:
        """One try in one place. False if the node was lost and the task may be tried again."""
        task.attempts += 1
        name = task.id if task.attempts == 1 else f"{task.id}-{task.attempts}"
        try:
            task.decision = await self._place(task, await self._request(task, name, terms))
            task.become(TaskState.RUNNING)
            await attempt(task, task.decision, self._backend, name)
        except Lost:
            if task.attempts > self._max_retries:
                raise
            return False
        finally:
            with contextlib.suppress(GridError):
                await asyncio.shield(self._scheduler.complete_task(name))
        return True

    async def _place(self, task: ExecutedTask, request: SchedulingRequest) -> SchedulingDecision:
        decision = await self._scheduler.schedule_task(request)
        task.reasons = decision.reasons
        if decision.queued:
            task.become(TaskState.WAITING)
            decision = await self._scheduler.wait_for_place(request.task_id)
            task.reasons = decision.reasons
        if not decision.accepted:
            raise NoCapacity("No nodes have sufficient available resources", because=decision.reasons)
        return decision

    async def _request(self, task: ExecutedTask, name: str, terms: TaskTerms) -> SchedulingRequest:
        away = self._mode is SharingMode.OFFLOAD_ONLY
        strategy = SchedulingStrategy.LOCAL_FIRST
        if self._mode is SharingMode.DYNAMIC_BALANCING and await self._is_pressed(task.target):
            strategy = SchedulingStrategy.LOAD_BALANCED
        amounts, several = task.needs.to_amounts(), terms.nodes > 1
        far = Affinity(nodes=(task.target,) if away else (), tasks=(name,) if several else ())
        return SchedulingRequest(
            task_id=name,
            cpu=amounts[CPU],
            memory=amounts[MEMORY],
            gpu=amounts[GPU],
            target=task.target,
            strategy=strategy,
            priority=terms.priority,
            deadline_seconds=terms.deadline_s,
            affinity=Affinity(nodes=(terms.destination,), required=False) if terms.destination else None,
            anti_affinity=far if away or several else None,
            count=terms.nodes,
            own_lease=several,
            wait=True,
        )

    async def _is_pressed(self, name: str) -> bool:
        nodes = (await self._backend.ask(GridClient.cluster_status))["nodes"]
        return any(node["pressed"] for node in nodes if node["name"] == name)
