"""Scheduling from Python: where a task goes and how confident that is. The place is held for the task."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from distributed_grid.client import GridClient
from distributed_grid.config import ConfigLike
from distributed_grid.decide.scheduler import NodeColumns, Sought, register_strategy
from distributed_grid.errors import NotFound
from distributed_grid.model.codec import ANSWERS
from distributed_grid.model.scheduling import (
    Affinity,
    Alternative,
    PlacedBy,
    Placement,
    SchedulingDecision,
    SchedulingRequest,
    SchedulingStrategy,
)
from distributed_grid.sdk.backend import Backend, Connected
from distributed_grid.sdk.boosts import ResourceBoostManager

if TYPE_CHECKING:
    from distributed_grid.wire.scheduling import TaskAffinity, TaskDecision, TaskList, TaskRequest

__all__ = [
    "Affinity",
    "Alternative",
    "IntelligentScheduler",
    "NodeColumns",
    "PlacedBy",
    "Placement",
    "SchedulingDecision",
    "SchedulingRequest",
    "SchedulingStrategy",
    "Sought",
    "ray_options",
    "register_strategy",
]


_LOOK_AGAIN_S: Final = 0.1
_LOOK_SELDOM_S: Final = 1.0


class IntelligentScheduler(Connected):
    """Finds places for tasks and holds them. The ledger's one writer does the scheduling itself.

    `boost_manager` may be one that is already in use: its connection is used and stays its own.
    """

    def __init__(
        self,
        cluster_config: ConfigLike = None,
        boost_manager: ResourceBoostManager | None = None,
        *,
        backend: Backend | None = None,
        **_historic: object,
    ) -> None:
        super().__init__(cluster_config, backend=backend, shared=boost_manager)
        self.boost_manager = boost_manager

    async def schedule_task(self, request: SchedulingRequest) -> SchedulingDecision:
        """A place for the task, held until the task is completed, or why there is none, for every node. A decision
        without a place is false; if the task may wait, it is `queued`.

        An invalid request (an unknown node or strategy, a negative amount) raises its `GridError`.
        """
        if not request.task_id:  # made here: if the answer is lost, a retry asks for the same task
            request = replace(request, task_id=uuid.uuid4().hex)
        return _decision_from(await self._ask(GridClient.schedule_task, _request_body(request)))

    async def get_decision(self, task_id: str) -> SchedulingDecision:
        """The latest decision about a task. A task that waited may have a place by now."""
        return _decision_from(await self._ask(GridClient.task, task_id))

    async def wait_for_place(self, task_id: str) -> SchedulingDecision:
        """Wait until a task has a place, or will have none."""
        pause = _LOOK_AGAIN_S
        while (decision := await self.get_decision(task_id)).queued:
            await asyncio.sleep(pause)
            pause = min(_LOOK_SELDOM_S, 1.2 * pause)  # many may wait, and all ask the same controller
        return decision

    async def task_started(self, task_id: str) -> SchedulingDecision:
        """Report that a task has begun. Grid learns from this how long it takes."""
        return _decision_from(await self._ask(GridClient.task_started, task_id))

    async def complete_task(self, task_id: str) -> bool:
        """Free what a task held, and end a lease made for it. False if there is no such task (any more)."""
        try:
            return (await self._ask(GridClient.complete_task, task_id))["completed"]
        except NotFound:
            return False

    async def get_scheduling_status(self) -> TaskList:
        """Every task, the waiting ones, how many were accepted, and how accurate the predictions were."""
        return await self._ask(GridClient.tasks)


def ray_options(decision: SchedulingDecision, member: int = 0, **more: Any) -> dict[str, Any]:
    """Ray options that put a task or actor into its place: `f.options(**ray_options(decision)).remote()`."""
    if not decision.members:
        raise ValueError(f"task {decision.task_id} has no place: {'; '.join(decision.reasons)}")
    place = decision.members[member]
    assert place.placement_group is not None, "every place is part of a group"
    from distributed_grid.execution.groups import inside

    return {"scheduling_strategy": inside(place.placement_group, place.bundle)} | more


def _request_body(request: SchedulingRequest) -> TaskRequest:
    """The request as the API takes it."""
    return {
        "task_id": request.task_id,
        "cpu": request.cpu,
        "memory": request.memory,
        "gpu": request.gpu,
        "custom": dict(request.custom),
        "target": request.target,
        "node": request.node,
        "strategy": str(request.strategy),
        "priority": str(request.priority),
        "affinity": _affinity_dict(request.near),
        "anti_affinity": _affinity_dict(request.far),
        "tags": list(request.tags),
        "deadline_seconds": request.deadline_seconds,
        "duration_seconds": request.duration_seconds,
        "count": request.count,
        "own_lease": request.own_lease,
        "wait": request.wait,
    }


def _affinity_dict(affinity: Affinity) -> TaskAffinity | None:
    if not affinity:
        return None
    return {
        "nodes": list(affinity.nodes),
        "labels": dict(affinity.labels),
        "tasks": list(affinity.tasks),
        "required": affinity.required,
    }


def _decision_from(data: TaskDecision) -> SchedulingDecision:
    return ANSWERS.decode(SchedulingDecision, data)
