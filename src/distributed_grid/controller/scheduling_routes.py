"""Scheduling, over HTTP: a task asks for a place, reports its start, and reports its end."""

import uuid

from fastapi import APIRouter

from distributed_grid.controller.access import Asker, needs
from distributed_grid.decide.leases.ownership import owned_lease, owned_task
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import RequestNotFound
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.model.teams import DEFAULT_TEAM
from distributed_grid.queue.ownership import check_asks_for, check_change, check_room
from distributed_grid.scheduler.view import decision_dict, request_from, scheduling_dict
from distributed_grid.wire.scheduling import TaskDecision, TaskDone, TaskList, TaskRequest


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
        request = request_from(body, task_id=body.get("task_id") or uuid.uuid4().hex)
        own_task(request.task_id, asker, "schedule")
        priority = AllocationPriority.parse(request.priority)
        check_asks_for(p, asker, priority, f"schedule task {request.task_id[:40]}")
        return decision_dict(await engine.scheduling.schedule(request, who=asker.name, team=asker.team or DEFAULT_TEAM))

    @api.get("/tasks")
    @needs(Scope.VIEW)
    async def tasks() -> TaskList:
        """The tasks that have a place, the tasks that wait, and how accurate the predictions for placements were."""
        return scheduling_dict(p)

    @api.get("/tasks/{task_id}")
    @needs(Scope.VIEW)
    async def one_task(task_id: str) -> TaskDecision:
        """The last decision about a task."""
        return decision_dict(engine.scheduling.find(task_id))

    @api.post("/tasks/{task_id}/started")
    @needs(Scope.LEND)
    async def started(task_id: str, asker: Asker) -> TaskDecision:
        """Report that a task has begun; its confidence is compared with that."""
        own_task(task_id, asker, "report the start of")
        return decision_dict(await engine.scheduling.started(task_id, who=asker.name))

    @api.post("/tasks/{task_id}/complete")
    @needs(Scope.LEND)
    async def complete(task_id: str, asker: Asker) -> TaskDone:
        """Free what a task held, or withdraw a waiting task."""
        own_task(task_id, asker, "complete")
        if not await engine.scheduling.complete(task_id, who=asker.name):
            raise RequestNotFound(f"No task with the id {task_id!r:.80}")
        return {"task_id": task_id, "completed": True}
