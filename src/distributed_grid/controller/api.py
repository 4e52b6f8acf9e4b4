"""The HTTP API under `/api/v1`: a thin layer. Parsing is here; the meaning is in the service."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Final

from fastapi import APIRouter, Body, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from distributed_grid.controller.access import (
    ERRORS,
    Asker,
    HostChecked,
    Started,
    TokenRequired,
    answer_error,
    asker_of,
    describe_answers,
    needs,
)
from distributed_grid.controller.audit_routes import audit_routes
from distributed_grid.controller.boost_routes import add_boost_routes
from distributed_grid.controller.direct_route import DirectRoute, json_answer
from distributed_grid.controller.event_stream import EventStream
from distributed_grid.controller.limits import BLOCKED_S, MOST_FAILURES, FailedAttempts, TokenLimits
from distributed_grid.controller.monitoring_routes import add_metrics_route, add_monitoring_routes, nodes_dict
from distributed_grid.controller.offload_routes import add_offload_routes
from distributed_grid.controller.role_routes import add_role_routes
from distributed_grid.controller.run_routes import add_run_routes
from distributed_grid.controller.scheduling_routes import add_scheduling_routes
from distributed_grid.controller.sharing_routes import add_sharing_routes, waiting_dict
from distributed_grid.controller.token_routes import add_token_routes
from distributed_grid.controller.tokens import Tokens
from distributed_grid.controller.window_routes import add_window_routes
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import GridError, InvalidRequest, NotFound, ScopeMissing, StoreBroken
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.leases.view import status_dict
from distributed_grid.model.principals import Scope
from distributed_grid.model.validators import LONGEST_RETURN_WAIT_S, waiting_time
from distributed_grid.wire.audit import EventList
from distributed_grid.wire.controller import RunningConfig, Stopped, StopRequest, Whereabouts
from distributed_grid.wire.nodes import ClusterStatus
from distributed_grid.wire.values import Health

# Limits on the length of an error about an invalid request.
_LINES, _LINE = 20, 300
_IN_JSON: Final = {"dict_type": "Input should be an object", "list_type": "Input should be a valid array"}
"""Errors that pydantic words in terms of Python."""


def make_app(
    engine: Engine,
    tokens: Tokens,
    where: Callable[[], Whereabouts],
    leave: Callable[[], Awaitable[None]],
    allow_hosts: Sequence[str] = (),
    role_records: RoleRecords | None = None,
) -> FastAPI:
    """The application. `where` tells how the controller is reached; `leave` ends it after a stop."""
    app = FastAPI(
        title="Distributed Grid",
        version=version("distributed-grid"),
        docs_url="/api/v1/docs",
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        openapi_url="/api/v1/openapi.json",
    )

    def tell(address: str) -> None:
        message = f"{address}: {MOST_FAILURES} attempts with a missing or wrong token; blocked for {BLOCKED_S:.0f} s"
        with suppress(StoreBroken):  # a full disk must not change the answer
            engine.parts.journal.note("address_blocked", message)

    app.add_middleware(Started, has_started=lambda: engine.has_started, why_not=lambda: engine.problems())
    limits = TokenLimits(engine.config.limits)
    app.add_middleware(
        TokenRequired,
        tokens=tokens,
        attempts=FailedAttempts(on_block=tell),
        limits=limits,
        teams=engine.parts.teams,
    )
    app.add_middleware(HostChecked, allowed=allow_hosts)  # added last, runs first
    describe_answers(app)
    api = APIRouter(prefix="/api/v1", route_class=DirectRoute, responses=ERRORS)
    config = engine.config
    stream = EventStream(engine.parts.journal, tokens)

    add_boost_routes(api, engine, tokens)  # first: these are called most

    @api.get("/cluster")
    @needs(Scope.VIEW)
    async def cluster_status() -> ClusterStatus:
        """Every node: what Ray counts and what was measured; what waits for room; and the boosts."""
        found, p = where(), engine.parts
        return {
            "cluster": config.name,
            **nodes_dict(engine, await p.look()),
            **waiting_dict(p, engine.service.queue),
            "boosts": status_dict(engine.service.boosts(), p.notes),
            "problems": list(engine.problems()),
            "cordoned": sorted(p.sharing.cordoned),
            "ray_address": found["ray_address"],
            "ray_auth_mode": found["ray_auth_mode"],
            "controller": {"state": "running", "url": found["url"], "pid": found["pid"]},
        }

    @api.get("/events", response_model=EventList)
    @needs(Scope.VIEW)
    async def events(request: Request, after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> EventList | Response:
        """The last events; with `Accept: text/event-stream` also those to come, as they happen."""
        if stream.is_wanted(request):
            return stream.answer(request, after, asker_of(request))
        return json_answer(b'{"events":[%s]}' % b",".join(event.encoded for event in engine.parts.journal.since(after)))

    @api.get("/config")
    @needs(Scope.VIEW)
    async def running_config() -> RunningConfig:
        return {"digest": config.digest(), "source": where()["config_source"], "config": config.to_dict()}

    @api.post("/controller/stop")
    @needs(Scope.ADMIN)
    async def stop(asker: Asker, body: Annotated[StopRequest | None, Body()] = None) -> Stopped:
        """Return all capacity and remove grid from the cluster."""
        body = body or {}
        force = body.get("force", False)
        wait_s = waiting_time(body.get("wait_seconds", 30), LONGEST_RETURN_WAIT_S)
        message = f"all boosts end{', including those in use' if force else ''}, and grid leaves the cluster"
        engine.parts.journal.note("stop_asked", message, who=asker.name)
        released = await engine.give_all_back(force=force, wait_s=wait_s, who=asker.name)
        try:
            await leave()
        except BaseException:
            engine.take_requests()
            raise
        return {"released": released}

    @api.get("/health")
    @needs(None)
    async def health() -> Health:
        """Whether the controller answers, and is whole: `ok`, `degraded` or `starting`. Needs no token."""
        if not engine.has_started:
            return {"status": "starting"}
        return {"status": "degraded" if engine.is_degraded else "ok"}

    add_run_routes(api, engine, where)
    add_token_routes(api, tokens, engine.parts)
    add_monitoring_routes(api, engine)
    add_sharing_routes(api, engine)
    add_window_routes(api, engine)
    add_offload_routes(api, engine)
    add_scheduling_routes(api, engine)
    add_role_routes(api, role_records, engine)
    add_metrics_route(app, engine)

    @app.exception_handler(GridError)
    async def grid_error(request: Request, error: GridError) -> JSONResponse:
        if isinstance(error, ScopeMissing):
            message = f"{request.method} {request.url.path}: {error.message}"
            engine.parts.journal.note("access_refused", message, who=asker_of(request).name, code=error.code)
        return answer_error(error)

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, error: Exception) -> JSONResponse:
        """Tell the caller about an unexpected error; the traceback is in the controller's log."""
        return answer_error(
            GridError(
                "Internal error in the controller",
                because=[f"{type(error).__name__}: {error}".splitlines()[0][:300]],
                try_next="Retry; if the error persists, see grid audit, and the controller's log.",
            )
        )

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        translated = NotFound(str(error.detail)) if error.status_code == 404 else InvalidRequest(str(error.detail))
        return JSONResponse({"error": translated.to_dict()}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: RequestValidationError) -> JSONResponse:
        found = error.errors()
        lines = [
            f"{'.'.join(str(part) for part in e['loc'][1:]) or 'body'}: {_IN_JSON.get(e['type'], e['msg'])}"[:_LINE]
            for e in found[:_LINES]
        ]
        more = [f"and {len(found) - _LINES} more"] if len(found) > _LINES else []
        return answer_error(InvalidRequest("The request is invalid", because=[*lines, *more]))

    app.router.routes.extend(audit_routes(engine, ERRORS).routes)
    app.router.routes.extend(api.routes)  # if the router were included, each call would look up its route twice
    return app
