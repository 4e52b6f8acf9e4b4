"""Processes that could move, and those that did, as the API's JSON, without the values of environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed_grid.decide.offload.movable import kind_of_process
from distributed_grid.decide.offload.recommend import Stuck, recommendation_of, would_use
from distributed_grid.decide.offload.secrets import shown_command
from distributed_grid.model.offload import Offloaded, OffloadingRecommendation, ProcessFacts
from distributed_grid.model.resources import GB
from distributed_grid.model.times import instant
from distributed_grid.offload.move import Move
from distributed_grid.offload.survey import Survey

if TYPE_CHECKING:
    from distributed_grid.wire.offload import (
        OffloadCandidate,
        OffloadCandidates,
        OffloadedProcess,
        OffloadObstacle,
        OffloadPlan,
    )


def survey_dict(survey: Survey) -> OffloadCandidates:
    movable, stuck, silent = survey
    return {
        "candidates": [candidate_dict(one) for one in movable],
        "others": [stuck_dict(one) for one in stuck],
        "silent": list(silent),
    }


def candidate_dict(one: OffloadingRecommendation) -> OffloadCandidate:
    assert one.process is not None
    return _candidate(one.process, one, [])


def recommendation_from(candidate: OffloadCandidate) -> OffloadingRecommendation:
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


def stuck_dict(one: Stuck) -> OffloadCandidate:
    obstacles: list[OffloadObstacle] = [{"code": str(each.code), "detail": each.detail} for each in one.obstacles]
    found = _candidate(one.process, recommendation_of(one.process), obstacles)
    return {**found, "destination": None, "confidence": 0.0}


def _candidate(
    facts: ProcessFacts, one: OffloadingRecommendation, obstacles: list[OffloadObstacle]
) -> OffloadCandidate:
    return {
        "pid": facts.pid,
        "created_at": facts.created_at,
        "node": facts.node,
        "name": facts.name,
        "kind": str(kind_of_process(facts)),
        "command": list(shown_command(facts.command)),
        "cwd": facts.cwd,
        "user": facts.user,
        "age_seconds": round(facts.age_s, 1),
        "cpu": round(facts.cpu, 2),
        "cpu_wanted": round(would_use(facts), 2),
        "memory": _gb(facts.memory),
        "gpus": facts.gpus,
        "gpu_memory": None if facts.gpu_memory is None else _gb(facts.gpu_memory),
        "gpu_utilisation": facts.gpu_utilisation,
        "children": facts.children,
        "destination": one.destination,
        "needs": {"cpu": one.cpu, "memory": _gb(one.memory), "gpu": one.gpu},
        "confidence": one.confidence,
        "reason": one.reason,
        "obstacles": obstacles,
    }


def move_dict(move: Move) -> OffloadPlan:
    """A move that is planned or done."""
    return {
        **candidate_dict(move.wanted),
        "keep": move.request.keep,
        "grace_seconds": move.request.grace_s,
        "environment": {
            "copied": list(move.environment.copied),
            "given": sorted(move.environment.given),
            "left_behind": list(move.environment.left_behind),
        },
        "output": move.order["stdout"],
    }


def offloaded_dict(one: Offloaded) -> OffloadedProcess:
    return {
        "offload_id": one.id,
        "label": one.label,
        "state": one.state.shown,
        "from_node": one.from_node,
        "from_pid": one.from_pid,
        "to_node": one.to_node,
        "pid": one.pid,
        "exit_code": one.exit_code,
        "why": one.why,
        "requester": one.requester,
        "kept": one.kept,
        "began_at": instant(one.began_at),
        "ended_at": None if one.ended_at is None else instant(one.ended_at),
        "output": one.output,
    }


def _gb(amount: int) -> float:
    return round(amount / GB, 3)
