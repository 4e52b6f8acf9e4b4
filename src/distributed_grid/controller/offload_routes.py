"""Moving processes, over HTTP."""

from typing import Annotated, Final

import orjson
from fastapi import APIRouter, Body, Header, Query, Response

from distributed_grid import threads
from distributed_grid.controller.access import Asker, needs
from distributed_grid.controller.direct_route import json_answer
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import Unavailable
from distributed_grid.model.offload import MoveRequest
from distributed_grid.model.principals import Scope
from distributed_grid.model.resources import CPU, GPU, MEMORY, amount_of, units_requested
from distributed_grid.model.validators import grace_period
from distributed_grid.offload.offloader import Offloading
from distributed_grid.offload.view import move_dict, offloaded_dict, survey_dict
from distributed_grid.wire.offload import (
    CancelOffload,
    OffloadAnswer,
    OffloadCandidates,
    OffloadedProcess,
    OffloadLog,
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
            return orjson.dumps(survey_dict(await offloading().scan(node)))

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
            return {"plan": move_dict(await offloading().plan(request, asker)), "offload": None}
        move, moved = await offloading().execute(request, asker, asker.own_key(idempotency_key))
        return {"plan": None if move is None else move_dict(move), "offload": offloaded_dict(moved)}

    @api.get("/offload")
    @needs(Scope.VIEW)
    async def status() -> OffloadStatus:
        """List moved processes: those that run, and those that ended recently."""
        return {"offloads": [offloaded_dict(one) for one in offloading().processes.all()]}

    @api.post("/offload/{offload_id}/cancel")
    @needs(Scope.RUN)
    async def cancel(
        offload_id: str, asker: Asker, body: Annotated[CancelOffload | None, Body()] = None
    ) -> OffloadedProcess:
        """End a moved process where it runs now."""
        grace_s = grace_period((body or {}).get("grace_seconds", GRACE_S), engine.parts.longest_grace_s)
        return offloaded_dict(await offloading().cancel(offload_id, grace_s, asker))

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
