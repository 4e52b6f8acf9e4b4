"""Moving processes, over HTTP. Answers leave out the values of environments."""

from typing import Annotated, Final

import orjson
from fastapi import APIRouter, Body, Header, Query, Response

from distributed_grid import threads
from distributed_grid.controller.access import Asker, needs
from distributed_grid.controller.direct_route import json_answer
from distributed_grid.decide.offload.movable import kind_of_process
from distributed_grid.decide.offload.recommend import Stuck, recommendation_of, would_use
from distributed_grid.decide.offload.secrets import shown_command
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import Unavailable
from distributed_grid.model.offload import MoveRequest, Offloaded, OffloadingRecommendation, ProcessFacts
from distributed_grid.model.principals import Scope
from distributed_grid.model.resources import CPU, GB, GPU, MEMORY, amount_of, units_requested
from distributed_grid.model.times import instant
from distributed_grid.model.validators import grace_period
from distributed_grid.offload.move import Move
from distributed_grid.offload.offloader import Offloading
from distributed_grid.offload.survey import Survey
from distributed_grid.wire.offload import (
    CancelOffload,
    OffloadAnswer,
    OffloadCandidate,
    OffloadCandidates,
    OffloadedProcess,
    OffloadLog,
    OffloadObstacle,
    OffloadPlan,
    OffloadRequest,
    OffloadStatus,
)

GRACE_S: Final = 10.0
SURVEY_LASTS_S: Final = 10.0
"""A survey reads everything about every heavy process of every node."""


def add_offload_routes(api: APIRouter, engine: Engine) -> None:
    def offloading() -> Offloading:
        if engine.offloading is None:
            raise Unavailable("This controller cannot reach the processes of its nodes")
        return engine.offloading

    surveys: threads.Shared[str | None, bytes] = threads.Shared(SURVEY_LASTS_S, of=threads.SURVEYS)

    @api.get("/offload/candidates", response_model=OffloadCandidates)
    @needs(Scope.VIEW)
    async def candidates(node: Annotated[str | None, Query(max_length=255)] = None) -> Response:
        """Heavy processes that could run on another node, and those that could not, with the reasons.

        Callers get the same answer for ten seconds.
        """

        async def survey() -> bytes:
            return orjson.dumps(_survey_dict(await offloading().scan(node)))

        return json_answer(await surveys.run(node, survey))

    @api.post("/offload")
    @needs(Scope.RUN)
    async def execute(
        body: OffloadRequest,
        asker: Asker,
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    ) -> OffloadAnswer:
        """Stop a process and start the same command on another node."""
        request = _request(body, engine.parts.longest_grace_s)
        if body.get("dry_run"):
            return {"plan": _move_dict(await offloading().plan(request, asker)), "offload": None}
        move, moved = await offloading().execute(request, asker, asker.own_key(idempotency_key))
        return {"plan": None if move is None else _move_dict(move), "offload": _offloaded_dict(moved)}

    @api.get("/offload")
    @needs(Scope.VIEW)
    async def status() -> OffloadStatus:
        """List moved processes: those that run, and those that ended recently."""
        return {"offloads": [_offloaded_dict(one) for one in offloading().processes.all()]}

    @api.post("/offload/{offload_id}/cancel")
    @needs(Scope.RUN)
    async def cancel(
        offload_id: str, asker: Asker, body: Annotated[CancelOffload | None, Body()] = None
    ) -> OffloadedProcess:
        """End a moved process where it runs now."""
        grace_s = grace_period((body or {}).get("grace_seconds", GRACE_S), engine.parts.longest_grace_s)
        return _offloaded_dict(await offloading().cancel(offload_id, grace_s, asker))

    @api.get("/offload/{offload_id}/log")
    @needs(Scope.RUN)
    async def log(
        offload_id: str, asker: Asker, begin: Annotated[int, Query(alias="from", ge=0, le=2**53)] = 0
    ) -> OffloadLog:
        """A piece of its output since the move, from an offset in bytes on."""
        return await offloading().log(offload_id, begin, asker)


def _request(body: OffloadRequest, longest_grace_s: float) -> MoveRequest:
    def amount(kind: str, given: float | str | None) -> int | None:
        return None if given is None else units_requested(kind, given)

    to = body.get("to", "auto")
    cpus, gpus = amount(CPU, body.get("cpus")), amount(GPU, body.get("gpus"))
    return MoveRequest(
        pid=body["pid"],
        node=body.get("node"),
        created_at=body.get("created_at"),
        to=None if to == "auto" else to,
        keep=body.get("keep", False),
        grace_s=grace_period(body.get("grace_seconds", GRACE_S), longest_grace_s),
        env=tuple(body.get("env", ())),
        cpu=None if cpus is None else float(amount_of(CPU, cpus)),
        memory=amount(MEMORY, body.get("memory")),
        gpu=None if gpus is None else float(amount_of(GPU, gpus)),
    )


def _survey_dict(survey: Survey) -> OffloadCandidates:
    movable, stuck, silent = survey
    return {
        "candidates": [_candidate_dict(one) for one in movable],
        "others": [_stuck_dict(one) for one in stuck],
        "silent": list(silent),
    }


def _candidate_dict(one: OffloadingRecommendation) -> OffloadCandidate:
    assert one.process is not None
    return _candidate(one.process, one, [])


def _stuck_dict(one: Stuck) -> OffloadCandidate:
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


def _move_dict(move: Move) -> OffloadPlan:
    """A move that is planned or done."""
    return {
        **_candidate_dict(move.wanted),
        "keep": move.request.keep,
        "grace_seconds": move.request.grace_s,
        "environment": {
            "copied": list(move.environment.copied),
            "given": sorted(move.environment.given),
            "left_behind": list(move.environment.left_behind),
        },
        "output": move.order["stdout"],
    }


def _offloaded_dict(one: Offloaded) -> OffloadedProcess:
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
