"""Running functions and commands where the scheduler says: kept on their node, or offloaded to another."""

import asyncio
import contextlib
import os
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from distributed_grid.config import ConfigLike
from distributed_grid.decide.offloading.secrets import choose_environment
from distributed_grid.errors import GridError, InvalidRequest, NoCapacity, RequestNotFound
from distributed_grid.model.offloading import OffloadingRecommendation
from distributed_grid.model.policies import SharingMode as OffloadingMode
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, amount_of, units_of
from distributed_grid.model.scheduling import Affinity, SchedulingRequest, SchedulingStrategy
from distributed_grid.orchestration.connected import Connected
from distributed_grid.orchestration.executed_task import ExecutedTask, TaskState, Wish, Work
from distributed_grid.orchestration.intelligent_scheduler import IntelligentScheduler
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.moved_processes import MovedProcesses, recommendations
from distributed_grid.orchestration.program_lease import connect_to_ray
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager
from distributed_grid.orchestration.task_execution import Lost, attempt, printed_by

__all__ = ["EnhancedOffloadingExecutor", "OffloadingMode", "OffloadingRecommendation"]

log = logger()

_REMEMBERED: Final = 1000


class EnhancedOffloadingExecutor(Connected):
    """Takes work for a node and runs it there if the node can carry it, boosts counted; else on another.

    `mode`: with `offload_only` work always leaves its node; with `share_and_offload` it stays where it fits; with
    `dynamic_balancing` it also leaves a node that is under pressure. What finds no place waits, and starts by itself
    when there is one, as when a boost becomes active.
    """

    def __init__(
        self,
        ssh_manager: Any = None,
        cluster_config: ConfigLike = None,
        mode: OffloadingMode | str = OffloadingMode.DYNAMIC_BALANCING,
        boost_manager: ResourceBoostManager | None = None,
        *,
        max_retries: int = 1,
        **options: Any,
    ) -> None:
        """`ssh_manager` may be None: nothing here needs SSH. `max_retries`: how often work starts again elsewhere when
        its node is lost; a command is never started twice unless this says so."""
        super().__init__(cluster_config, **options)
        self.mode = OffloadingMode.parse(mode)
        self.boost_manager = boost_manager
        self._max_retries = max_retries
        self._scheduler: IntelligentScheduler | None = None
        self._tasks: dict[str, ExecutedTask] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ended: deque[str] = deque()
        self._moved = MovedProcesses()

    async def initialize(self) -> None:
        if self._backend is None and self.boost_manager is not None:
            self._backend = self._given = await self.boost_manager._ready()
        await super().initialize()
        if self._scheduler is None:
            assert self._backend is not None
            self._scheduler = IntelligentScheduler(backend=self._backend)
            connect_to_ray((await self._backend.cluster()).get("ray_address"))

    async def close(self) -> None:
        """Cancel what runs, and let go."""
        for task_id in list(self._running):
            await self.cancel_task(task_id)
        self._scheduler = None
        await super().close()

    async def recommend(self, node: str | None = None) -> list[OffloadingRecommendation]:
        """Heavy processes of a node, or of all, that could run elsewhere, the surest first; as `grid offload scan`."""
        return await recommendations(await self._ready(), node)

    # -- giving it work -------------------------------------------------------------------------------------

    async def execute_offloading(self, recommendation: OffloadingRecommendation | Mapping[str, Any]) -> str:
        """Carry out what is recommended: move a process, or run a command or a function. The task's id."""
        given = (
            recommendation
            if isinstance(recommendation, OffloadingRecommendation)
            else OffloadingRecommendation(**recommendation)
        )
        await self.initialize()
        if given.process is not None:
            return await self._moved.move(given, await self._ready())
        if (given.command is None) == (given.function is None):
            raise InvalidRequest("A recommendation has a process, a command or a function")
        work = (
            _command_work(given.command, None, ())
            if given.command is not None
            else Work(given.function, given.args, given.kwargs)
        )
        needs = {CPU: given.cpu, GPU: given.gpu, MEMORY: amount_of(MEMORY, given.memory)}
        return self._begin(work, needs, Wish(given.target_node, given.destination))

    async def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        target: str | None = None,
        cpu: float = 1.0,
        memory: float = 0.0,
        gpu: float = 0.0,
        priority: AllocationPriority | str = AllocationPriority.NORMAL,
        deadline: float | None = None,
        **kwargs: Any,
    ) -> str:
        """Run a function, plain or async, for a node (the head, if not given); `memory` is in GB. The task's id.

        `deadline`: what has found no place after so many seconds is rejected; else it waits.
        """
        await self.initialize()
        needs = {CPU: cpu, GPU: gpu, MEMORY: memory}
        wish = Wish(await self._target(target), None, priority, deadline)
        return self._begin(Work(function, args, kwargs), needs, wish)

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
        """Run a command; a word that ends with `.py` is a script. Its result is its exit code. The task's id.

        Of this process's environment it has what is harmless, and what `env` names (`NAME`, or `NAME=VALUE`).
        """
        await self.initialize()
        needs = {CPU: cpu, GPU: gpu, MEMORY: memory}
        wish = Wish(await self._target(target), None, priority, deadline)
        return self._begin(_command_work(command, cwd, env), needs, wish)

    # -- asking about it ------------------------------------------------------------------------------------

    async def get_task_status(self, task_id: str) -> dict[str, Any]:
        if task_id in self._moved:
            return await self._moved.status(task_id, await self._ready())
        return self._find(task_id).shown()

    async def get_result(self, task_id: str, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - as users call it
        """What a function returned or a command's exit code, once it is there; raises what the function raised."""
        if task_id in self._moved:
            return await asyncio.wait_for(self._moved.result(task_id, await self._ready()), timeout)
        task = self._find(task_id)
        if (running := self._running.get(task_id)) is not None:
            await asyncio.wait_for(asyncio.shield(running), timeout)
        if task.error is not None:
            raise task.error
        return task.result

    async def get_logs(self, task_id: str) -> str:
        """What it has printed so far."""
        if task_id in self._moved:
            return await self._moved.printed(task_id, await self._ready())
        return await printed_by(self._find(task_id))

    async def cancel_task(self, task_id: str) -> bool:
        """End it, wherever it is. False if it was over already."""
        if task_id in self._moved:
            return await self._moved.cancel(task_id, await self._ready())
        task = self._find(task_id)
        running = self._running.get(task_id)
        if running is None or task.is_over:
            return False
        running.cancel()
        await asyncio.wait([running])
        return True

    async def get_status(self) -> dict[str, Any]:
        """How much runs, waits and has ended, and all of them."""
        tasks = [task.shown() for task in self._tasks.values()]
        counts = {str(state): sum(task["state"] == state for task in tasks) for state in TaskState}
        return {"mode": str(self.mode), "counts": counts, "tasks": tasks}

    async def get_history(self) -> list[dict[str, Any]]:
        """Those that are over, the last first."""
        over = [task for task in self._tasks.values() if task.is_over]
        return [task.shown() for task in sorted(over, key=lambda task: -(task.ended_at or 0.0))]

    # -- doing it -------------------------------------------------------------------------------------------

    def _begin(self, work: Work, needs: Mapping[str, float], wish: Wish) -> str:
        amounts = ResourceVector({kind: units_of(kind, amount) for kind, amount in needs.items() if amount})
        task = ExecutedTask(uuid.uuid4().hex, wish.target, amounts, work)
        self._tasks[task.id] = task
        running = asyncio.create_task(self._carry_out(task, wish))
        self._running[task.id] = running
        running.add_done_callback(lambda _: self._over(task.id))
        return task.id

    async def _carry_out(self, task: ExecutedTask, wish: Wish) -> None:
        try:
            while not await self._attempt(task, wish):
                log.warning("a task's node is lost; it starts again elsewhere", task=task.id)
        except asyncio.CancelledError:
            task.state, task.error = TaskState.CANCELLED, asyncio.CancelledError("the task was cancelled")
        except NoCapacity as error:
            task.state, task.error, task.reasons = TaskState.REJECTED, error, tuple(error.because)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises is its result
            task.state, task.error = TaskState.FAILED, error
        else:
            task.state = TaskState.DONE if not task.exit_code else TaskState.FAILED
        finally:
            task.ended_at = time.time()

    async def _attempt(self, task: ExecutedTask, wish: Wish) -> bool:
        """One place, one try; False if its node was lost and it may be tried again."""
        assert self._scheduler is not None
        backend = await self._ready()
        task.attempts += 1
        name = task.id if task.attempts == 1 else f"{task.id}-{task.attempts}"
        try:
            task.decision = await self._place(task, await self._request(task, name, wish))
            task.state, task.started_at = TaskState.RUNNING, time.time()
            await attempt(task, task.decision, backend, name)
        except Lost:
            if task.attempts > self._max_retries:
                raise
            return False
        finally:
            with contextlib.suppress(GridError):
                await asyncio.shield(self._scheduler.complete_task(name))
        return True

    async def _place(self, task: ExecutedTask, request: SchedulingRequest) -> Any:
        assert self._scheduler is not None
        decision = await self._scheduler.schedule_task(request)
        task.reasons = decision.reasons
        if decision.queued:
            task.state = TaskState.WAITING
            decision = await self._scheduler.wait_for_place(request.task_id)
            task.reasons = decision.reasons
        if not decision.accepted:
            raise NoCapacity("No nodes have sufficient available resources", because=decision.reasons)
        return decision

    async def _request(self, task: ExecutedTask, name: str, wish: Wish) -> SchedulingRequest:
        away = self.mode is OffloadingMode.OFFLOAD_ONLY
        strategy = SchedulingStrategy.LOCAL_FIRST
        if self.mode is OffloadingMode.DYNAMIC_BALANCING and await self._is_pressed(task.target):
            strategy = SchedulingStrategy.LOAD_BALANCED
        amounts = task.needs.to_amounts()
        return SchedulingRequest(
            task_id=name,
            cpu=amounts.get(CPU, 0),
            memory=amounts.get(MEMORY, 0),
            gpu=amounts.get(GPU, 0),
            target=task.target,
            strategy=strategy,
            priority=wish.priority,
            deadline_seconds=wish.deadline_s,
            affinity=Affinity(nodes=(wish.destination,), required=False) if wish.destination else None,
            anti_affinity=Affinity(nodes=(task.target,)) if away else None,
            wait=True,
        )

    async def _is_pressed(self, name: str) -> bool:
        cluster = await (await self._ready()).cluster()
        found = next((node for node in cluster["nodes"] if node["name"] == name), None)
        pressure = None if found is None else found["pressure"]
        return pressure is not None and pressure["overall"] >= _PRESSED

    async def _target(self, given: str | None) -> str:
        if given is not None:
            return given
        cluster = await (await self._ready()).cluster()
        return str(next(node["name"] for node in cluster["nodes"] if node["is_head"]))

    def _over(self, task_id: str) -> None:
        self._running.pop(task_id, None)
        self._ended.append(task_id)
        while len(self._ended) > _REMEMBERED:
            self._tasks.pop(self._ended.popleft(), None)

    def _find(self, task_id: str) -> ExecutedTask:
        if task_id not in self._tasks:
            raise RequestNotFound(f"This executor knows no task {task_id!r}")
        return self._tasks[task_id]


_PRESSED: Final = 0.8


def _command_work(command: Sequence[str], cwd: str | None, env: Sequence[str]) -> Work:
    words = [command] if isinstance(command, str) else list(command)
    if not words:
        raise InvalidRequest("There is nothing to run")
    if words[0].endswith(".py"):
        words = [sys.executable, *words]
    chosen = choose_environment(os.environ, env)
    values = {name: os.environ[name] for name in chosen.copied} | dict(chosen.given)
    return Work(command=tuple(words), cwd=cwd or str(Path.cwd()), env=values)
