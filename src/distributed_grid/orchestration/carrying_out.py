"""Carrying out what an executor was given: ask for a place, wait for it, run there; elsewhere, if the node is lost."""

import asyncio
import contextlib
import time
from typing import Final

from distributed_grid.errors import GridError, NoCapacity
from distributed_grid.model.policies import SharingMode
from distributed_grid.model.resources import CPU, GPU, MEMORY
from distributed_grid.model.scheduling import Affinity, SchedulingDecision, SchedulingRequest, SchedulingStrategy
from distributed_grid.orchestration.backend import Backend
from distributed_grid.orchestration.executed_task import ExecutedTask, TaskState, Wish
from distributed_grid.orchestration.intelligent_scheduler import IntelligentScheduler
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.task_execution import Lost, attempt

log = logger()

_PRESSED: Final = 0.8


class Carrier:
    """One executor's hands: how it is getting on, and how it ended, is in the task."""

    def __init__(self, backend: Backend, mode: SharingMode, max_retries: int) -> None:
        self._backend = backend
        self._scheduler = IntelligentScheduler(backend=backend)
        self._mode = mode
        self._max_retries = max_retries

    async def carry_out(self, task: ExecutedTask, wish: Wish) -> None:
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
        task.attempts += 1
        name = task.id if task.attempts == 1 else f"{task.id}-{task.attempts}"
        try:
            task.decision = await self._place(task, await self._request(task, name, wish))
            task.state, task.started_at = TaskState.RUNNING, time.time()
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
            task.state = TaskState.WAITING
            decision = await self._scheduler.wait_for_place(request.task_id)
            task.reasons = decision.reasons
        if not decision.accepted:
            raise NoCapacity("No nodes have sufficient available resources", because=decision.reasons)
        return decision

    async def _request(self, task: ExecutedTask, name: str, wish: Wish) -> SchedulingRequest:
        away = self._mode is SharingMode.OFFLOAD_ONLY
        strategy = SchedulingStrategy.LOCAL_FIRST
        if self._mode is SharingMode.DYNAMIC_BALANCING and await self._is_pressed(task.target):
            strategy = SchedulingStrategy.LOAD_BALANCED
        amounts = task.needs.to_amounts()
        return SchedulingRequest(
            task_id=name,
            cpu=amounts[CPU],
            memory=amounts[MEMORY],
            gpu=amounts[GPU],
            target=task.target,
            strategy=strategy,
            priority=wish.priority,
            deadline_seconds=wish.deadline_s,
            affinity=Affinity(nodes=(wish.destination,), required=False) if wish.destination else None,
            anti_affinity=Affinity(nodes=(task.target,)) if away else None,
            wait=True,
        )

    async def _is_pressed(self, name: str) -> bool:
        nodes = (await self._backend.cluster())["nodes"]
        pressure = next((node["pressure"] for node in nodes if node["name"] == name), None)
        return pressure is not None and pressure["overall"] >= _PRESSED
