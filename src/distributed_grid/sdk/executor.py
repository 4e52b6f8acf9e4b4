"""Runs functions and commands where the scheduler says: on their node, or offloaded to another."""

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict

from distributed_grid.client import GridClient
from distributed_grid.config import ConfigLike
from distributed_grid.errors import InvalidRequest, RequestNotFound
from distributed_grid.model.offload import OffloadingRecommendation, OffloadState, ProcessFacts
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.policies import SharingMode as OffloadingMode
from distributed_grid.model.resources import CPU, GB, GPU, MEMORY, ResourceVector, amount_of, units_of
from distributed_grid.sdk.backend import Backend, Connected, connect_to_ray, head_of
from distributed_grid.sdk.boosts import ResourceBoostManager
from distributed_grid.sdk.execution import (
    Carrier,
    ExecutedTask,
    ShownTask,
    TaskFacts,
    TaskState,
    TaskTerms,
    Work,
    command_work,
    printed_by,
    read_all,
)

if TYPE_CHECKING:
    from distributed_grid.wire.offload import OffloadCandidate, OffloadedProcess, OffloadRequest

__all__ = ["EnhancedOffloadingExecutor", "OffloadingMode", "OffloadingRecommendation"]


_LOOK_AGAIN_S: Final = 0.3
_GRACE_S: Final = 10.0
_STATES: Final[Mapping[str, TaskState]] = {
    OffloadState.MOVING: TaskState.SUBMITTED,
    OffloadState.RUNNING: TaskState.RUNNING,
    OffloadState.CANCELLED: TaskState.CANCELLED,
    OffloadState.FAILED: TaskState.FAILED,
    OffloadState.LOST: TaskState.FAILED,
}


async def recommendations(backend: Backend, node: str | None) -> list[OffloadingRecommendation]:
    """The processes that could move, the surest first."""
    return [recommendation_from(one) for one in (await backend.ask(GridClient.offload_candidates, node))["candidates"]]


def recommendation_from(candidate: "OffloadCandidate") -> OffloadingRecommendation:
    """The recommendation in a candidate's JSON. Its command line may have gaps: the process is moved by its pid."""
    needs = candidate["needs"]
    command = tuple(candidate["command"])
    facts = ProcessFacts(
        pid=candidate["pid"],
        created_at=candidate["created_at"],
        node=candidate["node"],
        machine="",
        name=candidate["name"],
        command=command,
        cwd=candidate["cwd"],
        uid=-1,
        user=candidate["user"],
        worker_uid=-1,
        age_s=candidate["age_seconds"],
        cpu=candidate["cpu"],
        cpu_wanted=candidate["cpu_wanted"],
        memory=round(candidate["memory"] * GB),
        gpus=candidate["gpus"],
        children=candidate["children"],
    )
    return OffloadingRecommendation(
        target_node=facts.node,
        cpu=needs["cpu"],
        memory=round(needs["memory"] * GB),
        gpu=needs["gpu"],
        destination=candidate["destination"],
        process=facts,
        confidence=candidate["confidence"],
        reason=candidate["reason"],
    )


class MovedProcesses:
    """Moved processes, by the ids that the controller gave them."""

    def __init__(self) -> None:
        self._ids: list[str] = []

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._ids

    async def move(self, given: OffloadingRecommendation, backend: Backend) -> str:
        """Moves exactly the recommended process, never a later one with the same number."""
        assert given.process is not None
        process = given.process
        body: OffloadRequest = {
            "pid": process.pid,
            "node": process.node,
            "created_at": process.created_at,
            "to": given.destination or "auto",
        }
        moved = (await backend.ask(GridClient.offload, body))["offload"]
        assert moved is not None, "only a dry run moves nothing"
        self._ids.append(moved["offload_id"])
        return moved["offload_id"]

    async def status(self, task_id: str, backend: Backend) -> TaskFacts:
        found = await self._find(task_id, backend)
        code = found["exit_code"]
        state = _STATES.get(found["state"]) or (TaskState.FAILED if code else TaskState.DONE)
        return {
            "task_id": task_id,
            "state": str(state),
            "label": found["label"],
            "target_node": found["from_node"],
            "node": found["to_node"],
            "runs_on": found["to_node"],
            "kept_on_target": False,
            "offloaded": True,
            "lease_id": task_id,
            "exit_code": code,
            "error": found["why"],
        }

    async def result(self, task_id: str, backend: Backend) -> int | None:
        """Its exit code, once it has ended."""
        while not _is_over(found := await self._find(task_id, backend)):  # noqa: ASYNC110 - it must be polled
            await asyncio.sleep(_LOOK_AGAIN_S)
        code: int | None = found["exit_code"]
        return code

    async def printed(self, task_id: str, backend: Backend) -> str:
        return await read_all(lambda begin: backend.ask(GridClient.offload_log, task_id, begin))

    async def cancel(self, task_id: str, backend: Backend) -> bool:
        if _is_over(await self._find(task_id, backend)):
            return False
        await backend.ask(GridClient.cancel_offload, task_id, _GRACE_S)
        return True

    async def _find(self, task_id: str, backend: Backend) -> "OffloadedProcess":
        for one in (await backend.ask(GridClient.offloads))["offloads"]:
            if one["offload_id"] == task_id:
                return one
        raise RequestNotFound(f"The controller has no record of moved process {task_id!r}", try_next="grid audit log")


def _is_over(found: "OffloadedProcess") -> bool:
    return OffloadState(found["state"]).is_over


_REMEMBERED: Final = 1000


class ExecutorStatus(TypedDict):
    mode: str
    counts: dict[str, int]
    tasks: list[ShownTask]


class EnhancedOffloadingExecutor(Connected):
    """Takes work for a node and runs it there if the node has room, including boosts; otherwise on another node.

    `mode`: with `offload_only`, work always leaves its node; with `share_and_offload`, it stays where it fits; with
    `dynamic_balancing`, it also leaves a node that is under pressure. Work without a place waits, and starts by itself
    when there is one, for example when a boost becomes active.
    """

    def __init__(
        self,
        ssh_manager: object = None,
        cluster_config: ConfigLike = None,
        mode: OffloadingMode | str = OffloadingMode.DYNAMIC_BALANCING,
        boost_manager: ResourceBoostManager | None = None,
        *,
        max_retries: int = 1,
        backend: Backend | None = None,
        **_historic: object,
    ) -> None:
        """`ssh_manager` may be None: nothing here needs SSH. `max_retries`: how often work (a function or a command)
        restarts elsewhere when its node is lost; with 0, nothing is ever started twice."""
        super().__init__(cluster_config, backend=backend, shared=boost_manager)
        self.mode = OffloadingMode.parse(mode)
        self.boost_manager = boost_manager
        self._max_retries = max_retries
        self._carrier: Carrier | None = None
        self._tasks: dict[str, ExecutedTask] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ended: deque[str] = deque()
        self._moved = MovedProcesses()

    async def initialize(self) -> None:
        await super().initialize()
        if self._carrier is None:
            assert self._backend is not None
            connect_to_ray(await self._backend.ask(GridClient.cluster_status))
            self._carrier = Carrier(self._backend, self.mode, self._max_retries)

    async def close(self) -> None:
        """Cancel what runs, and disconnect."""
        for task_id in list(self._running):
            await self.cancel_task(task_id)
        self._carrier = None
        await super().close()

    async def recommend(self, node: str | None = None) -> list[OffloadingRecommendation]:
        """Heavy processes of a node, or of all, that could run elsewhere, the surest first; as `grid offload scan`."""
        return await recommendations(await self._ready(), node)

    # -- giving it work -------------------------------------------------------------------------------------

    async def execute_offloading(self, recommendation: OffloadingRecommendation | Mapping[str, Any]) -> str:
        """Carry out a recommendation: move a process, or run a command or a function. Returns the task's id."""
        given = (
            recommendation
            if isinstance(recommendation, OffloadingRecommendation)
            else OffloadingRecommendation(**recommendation)
        )
        backend = await self._ready()
        if given.process is not None:
            return await self._moved.move(given, backend)
        if (given.command is None) == (given.function is None):
            raise InvalidRequest("A recommendation must have a process, a command or a function")
        work = (
            command_work(given.command) if given.command is not None else Work(given.function, given.args, given.kwargs)
        )
        needs = {CPU: given.cpu, GPU: given.gpu, MEMORY: amount_of(MEMORY, given.memory)}
        return self._begin(work, needs, TaskTerms(given.target_node, given.destination))

    async def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        target: str | None = None,
        cpu: float = 1.0,
        memory: float = 0.0,
        gpu: float = 0.0,
        nodes: int = 1,
        priority: AllocationPriority | str = AllocationPriority.NORMAL,
        deadline: float | None = None,
        **kwargs: Any,
    ) -> str:
        """Run a function, plain or async, for a node (default: the head). `memory` is in GB. Returns the task's id.

        `nodes`: if there are several, it has these amounts on each of so many nodes, in one lease. The function itself
        takes nothing of it; the tasks and actors that it starts run in it.

        `deadline`: reject the work if it has no place after so many seconds; without one, it waits.
        """
        needs = {CPU: cpu, GPU: gpu, MEMORY: memory}
        terms = TaskTerms(await self._target(target), None, priority, deadline, nodes)
        return self._begin(Work(function, args, kwargs), needs, terms)

    async def run_command(
        self,
        command: Sequence[str],
        *,
        target: str | None = None,
        cpu: float = 1.0,
        memory: float = 0.0,
        gpu: float = 0.0,
        priority: AllocationPriority | str = AllocationPriority.NORMAL,
        deadline: float | None = None,
        cwd: str | None = None,
        env: Sequence[str] = (),
    ) -> str:
        """Run a command; a first word that ends with `.py` is a script. Its result is its exit code.

        Returns the task's id. The command gets the harmless variables of this process's environment, and those that
        `env` names (`NAME`, or `NAME=VALUE`).
        """
        needs = {CPU: cpu, GPU: gpu, MEMORY: memory}
        terms = TaskTerms(await self._target(target), None, priority, deadline)
        return self._begin(command_work(command, cwd, env), needs, terms)

    # -- asking about it ------------------------------------------------------------------------------------

    async def get_task_status(self, task_id: str) -> TaskFacts:
        if task_id in self._moved:
            return await self._moved.status(task_id, await self._ready())
        return self._find(task_id).shown()

    async def get_result(self, task_id: str, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - as users call it
        """A function's result, or a command's exit code, once available. Raises the function's exception."""
        if task_id in self._moved:
            return await asyncio.wait_for(self._moved.result(task_id, await self._ready()), timeout)
        task = self._find(task_id)
        if (running := self._running.get(task_id)) is not None:
            await asyncio.wait_for(asyncio.shield(running), timeout)
        if task.error is not None:
            raise task.error
        return task.result

    async def get_logs(self, task_id: str) -> str:
        """The output of the task so far."""
        if task_id in self._moved:
            return await self._moved.printed(task_id, await self._ready())
        return await printed_by(self._find(task_id))

    async def cancel_task(self, task_id: str) -> bool:
        """End the task, wherever it is. False if it had already ended."""
        if task_id in self._moved:
            return await self._moved.cancel(task_id, await self._ready())
        task = self._find(task_id)
        running = self._running.get(task_id)
        if running is None or task.is_over:
            return False
        running.cancel()
        await asyncio.wait([running])
        return True

    async def get_status(self) -> ExecutorStatus:
        """How many tasks run, wait and have ended, and all of them."""
        tasks = [task.shown() for task in self._tasks.values()]
        counts = {str(state): sum(task["state"] == state for task in tasks) for state in TaskState}
        return {"mode": str(self.mode), "counts": counts, "tasks": tasks}

    async def get_history(self) -> list[ShownTask]:
        """The tasks that have ended, the latest first."""
        over = [task for task in self._tasks.values() if task.is_over]
        return [task.shown() for task in sorted(over, key=lambda task: -(task.ended_at or 0.0))]

    # -- doing it -------------------------------------------------------------------------------------------

    async def _target(self, given: str | None) -> str:
        backend = await self._ready()
        return given or head_of(await backend.ask(GridClient.cluster_status))

    def _begin(self, work: Work, needs: Mapping[str, float], terms: TaskTerms) -> str:
        assert self._carrier is not None
        amounts = ResourceVector({kind: units_of(kind, amount) for kind, amount in needs.items() if amount})
        task = ExecutedTask(uuid.uuid4().hex, terms.target, amounts, work)
        self._tasks[task.id] = task
        running = asyncio.create_task(self._carrier.carry_out(task, terms))
        self._running[task.id] = running
        running.add_done_callback(lambda _: self._over(task))
        return task.id

    def _over(self, task: ExecutedTask) -> None:
        if not task.is_over:  # cancelled before it could begin
            task.end_as_cancelled()
        self._running.pop(task.id, None)
        self._ended.append(task.id)
        while len(self._ended) > _REMEMBERED:
            self._tasks.pop(self._ended.popleft(), None)

    def _find(self, task_id: str) -> ExecutedTask:
        if task_id not in self._tasks:
            raise RequestNotFound(f"This executor has no task {task_id!r}")
        return self._tasks[task_id]
