"""Tasks and decisions as the API and the Python classes show them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from distributed_grid.decide.scheduler.confidence import Calibrator, base_rate, base_rate_brier, brier, reliability
from distributed_grid.decide.scheduler.strategies import strategies
from distributed_grid.leases.state import EngineContext
from distributed_grid.leases.view import cut_to_fit, shortened
from distributed_grid.model.codec import ANSWERS
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import Affinity, ScheduledTask, SchedulingDecision, SchedulingRequest
from distributed_grid.model.times import instant
from distributed_grid.scheduler.flights import positions

if TYPE_CHECKING:
    from distributed_grid.wire.scheduling import (
        Calibration,
        TaskAffinity,
        TaskDecision,
        TaskList,
        TaskPlacement,
        TaskRequest,
        TaskStatus,
    )

RESULTS = ("accepted", "queued", "rejected")


def request_body(request: SchedulingRequest) -> TaskRequest:
    """The JSON body of a request."""
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
        "wait": request.wait,
    }


def request_from(body: TaskRequest, *, task_id: str) -> SchedulingRequest:
    """The request in a JSON body; its fields are checked by `SchedulingRequest`."""
    given: dict[str, Any] = {**body, "task_id": task_id}
    return SchedulingRequest(**given)


def _affinity_dict(affinity: Affinity) -> TaskAffinity | None:
    if not affinity:
        return None
    return {
        "nodes": list(affinity.nodes),
        "labels": dict(affinity.labels),
        "tasks": list(affinity.tasks),
        "required": affinity.required,
    }


def decision_dict(decision: SchedulingDecision) -> TaskDecision:
    """Every field, and the first member's place."""
    first = {name: getattr(decision, name) for name in _OF_THE_FIRST}
    return cast("TaskDecision", ANSWERS.encode(decision) | first)


_OF_THE_FIRST: Final = ("node", "delivery", "lease_id", "boost_id", "placement_group")


def decision_from(data: TaskDecision) -> SchedulingDecision:
    return ANSWERS.decode(SchedulingDecision, data)


def scheduling_dict(p: EngineContext) -> TaskList:
    """All tasks, or as many as fit into an answer, counts of decisions, and how accurate predictions were."""
    state = p.sharing.scheduling
    waiting = positions(p) if state.waiting else {}
    tasks, cut = cut_to_fit([_task_dict(task, waiting) for task in state.tasks.values()], lambda task: task["who"])
    return {
        "placed": len(state.placed),
        "waiting": len(state.waiting),
        "cut": cut,
        "tasks": tasks,
        "decisions": {result: state.results[result] for result in RESULTS},
        "strategies": {str(name): strategy.summary for name, strategy in sorted(strategies().items())},
        "calibration": calibration_dict(state.calibrator),
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


def calibration_dict(calibrator: Calibrator) -> Calibration:
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
