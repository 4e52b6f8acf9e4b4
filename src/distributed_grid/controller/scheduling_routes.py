"""Scheduling, over HTTP: a task asks for a place, reports its start, and reports its end."""

import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, cast

from fastapi import APIRouter

from distributed_grid.controller.access import Asker, needs
from distributed_grid.decide.leases.ownership import owned_lease, owned_task
from distributed_grid.decide.scheduler.confidence import Calibrator, base_rate, base_rate_brier, brier, reliability
from distributed_grid.decide.scheduler.strategies import strategies
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import RequestNotFound
from distributed_grid.leases.state import EngineContext
from distributed_grid.leases.view import cut_to_fit, shortened
from distributed_grid.model.codec import ANSWERS
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import ScheduledTask, SchedulingDecision, SchedulingRequest
from distributed_grid.model.teams import DEFAULT_TEAM
from distributed_grid.model.times import instant
from distributed_grid.queue.ownership import check_asks_for, check_change, check_room
from distributed_grid.scheduler.flights import positions
from distributed_grid.wire.scheduling import (
    Calibration,
    TaskDecision,
    TaskDone,
    TaskList,
    TaskPlacement,
    TaskRequest,
    TaskStatus,
)


def add_scheduling_routes(api: APIRouter, engine: Engine) -> None:
    p = engine.parts

    def own_task(task_id: str, asker: Principal, doing: str) -> None:
        """Raise unless the caller may change the task, as far as it is known, and the leases made for it."""
        things = [owned_lease(lease) for lease in engine.scheduling.leases.of(task_id)]
        if (task := engine.scheduling.state.tasks.get(task_id)) is not None:
            things.insert(0, owned_task(task))
        for thing in things:
            check_change(p, asker, thing, f"{doing} task {task_id[:40]}")

    @api.post("/tasks")
    @needs(Scope.LEND)
    async def schedule(body: TaskRequest, asker: Asker) -> TaskDecision:
        """Find a place for a task, and hold it. If there is none, the answer has a reason for every node."""
        check_room(p, engine.config.limits, asker)
        request = _request_from(body, task_id=body.get("task_id") or uuid.uuid4().hex)
        own_task(request.task_id, asker, "schedule")
        priority = AllocationPriority.parse(request.priority)
        check_asks_for(p, asker, priority, f"schedule task {request.task_id[:40]}")
        return _decision_dict(
            await engine.scheduling.schedule(request, who=asker.name, team=asker.team or DEFAULT_TEAM)
        )

    @api.get("/tasks")
    @needs(Scope.VIEW)
    async def tasks() -> TaskList:
        """The tasks that have a place, the tasks that wait, and how accurate the predictions for placements were."""
        return _scheduling_dict(p)

    @api.get("/tasks/{task_id}")
    @needs(Scope.VIEW)
    async def one_task(task_id: str) -> TaskDecision:
        """The last decision about a task."""
        return _decision_dict(engine.scheduling.find(task_id))

    @api.post("/tasks/{task_id}/started")
    @needs(Scope.LEND)
    async def started(task_id: str, asker: Asker) -> TaskDecision:
        """Report that a task has begun; its confidence is compared with that."""
        own_task(task_id, asker, "report the start of")
        return _decision_dict(await engine.scheduling.started(task_id, who=asker.name))

    @api.post("/tasks/{task_id}/complete")
    @needs(Scope.LEND)
    async def complete(task_id: str, asker: Asker) -> TaskDone:
        """Free what a task held, or withdraw a waiting task."""
        own_task(task_id, asker, "complete")
        if not await engine.scheduling.complete(task_id, who=asker.name):
            raise RequestNotFound(f"No task with the id {task_id!r:.80}")
        return {"task_id": task_id, "completed": True}


def _request_from(body: TaskRequest, *, task_id: str) -> SchedulingRequest:
    """The request in a JSON body; its fields are checked by `SchedulingRequest`."""
    given: dict[str, Any] = {**body, "task_id": task_id}
    return SchedulingRequest(**given)


def _decision_dict(decision: SchedulingDecision) -> TaskDecision:
    """Every field, and the first member's place."""
    first = {name: getattr(decision, name) for name in _OF_THE_FIRST}
    return cast("TaskDecision", ANSWERS.encode(decision) | first)


_OF_THE_FIRST: Final = ("node", "delivery", "lease_id", "boost_id", "placement_group")


def _scheduling_dict(p: EngineContext) -> TaskList:
    """All tasks, or as many as fit into an answer, counts of decisions, and how accurate predictions were."""
    state = p.sharing.scheduling
    waiting = positions(p) if state.waiting else {}
    tasks, cut = cut_to_fit([_task_dict(task, waiting) for task in state.tasks.values()], lambda task: task["who"])
    return {
        "placed": len(state.placed),
        "waiting": len(state.waiting),
        "cut": cut,
        "tasks": tasks,
        "decisions": state.decisions,
        "strategies": {str(name): strategy.summary for name, strategy in sorted(strategies().items())},
        "calibration": _calibration_dict(state.calibrator),
    }


def _task_dict(task: ScheduledTask, waiting: Mapping[str, int]) -> TaskStatus:
    request = task.request
    return {
        "task_id": task.id,
        "state": "waiting" if task.waits else "placed",
        "position": waiting.get(task.id) if task.waits else None,
        "target": request.target,
        "strategy": str(request.strategy),
        "priority": str(request.priority),
        "count": request.count,
        "tags": shortened(request.tags),
        "resources": ResourceVector(task.needs).to_amounts(),
        "who": task.who,
        "team": task.team,
        "asked_at": instant(task.asked_at),
        "placed_at": _when(task.placed_at),
        "started_at": _when(task.started_at),
        "confidence": round(task.confidence, 4),
        "members": cast("list[TaskPlacement]", [ANSWERS.encode(member) for member in task.members]),
    }


def _when(at: datetime | None) -> str | None:
    return None if at is None else instant(at)


def _calibration_dict(calibrator: Calibrator) -> Calibration:
    outcomes = calibrator.outcomes
    return {
        "count": len(outcomes),
        "base_rate": _rounded(base_rate(outcomes)),
        "brier_score": _rounded(brier(outcomes)),
        "base_rate_brier_score": _rounded(base_rate_brier(outcomes)),
        "reliability": [
            {
                "from": one.low,
                "to": one.high,
                "count": one.count,
                "said": round(one.said, 4),
                "happened": round(one.happened, 4),
            }
            for one in reliability(outcomes)
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
