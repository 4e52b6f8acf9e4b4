"""The HTTP API under `/api/v1`: thin; parsing here, meaning in the service."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from distributed_grid import __version__
from distributed_grid.controller import schemas
from distributed_grid.controller.access import TokenRequired, describe_token
from distributed_grid.controller.direct_route import DirectRoute, json_answer
from distributed_grid.errors import BoostNotFound, GridError, InvalidRequest, NotFound
from distributed_grid.model.requests import seconds
from distributed_grid.orchestration.boost_service import BoostService
from distributed_grid.orchestration.boost_view import StatusText, boost_dict, node_dicts, sharing_dict, status_dict
from distributed_grid.orchestration.engine import Engine

_WATCH_S = 0.25
User = Annotated[str, Header(max_length=64)]
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer} for status in (401, 403, 404, 409, 422, 500, 503)
}


@asynccontextmanager
async def abandoned_on_disconnect(
    request: Request, service: BoostService, idempotency_key: str | None
) -> AsyncIterator[None]:
    """While a request waits for capacity, watch whether its client is still there."""

    async def watch(key: str) -> None:
        while not await request.is_disconnected():  # noqa: ASYNC110 - it has to be asked
            await asyncio.sleep(_WATCH_S)
        service.abandon(key)

    watching = asyncio.create_task(watch(idempotency_key)) if idempotency_key else None
    try:
        yield
    finally:
        if watching is not None:
            watching.cancel()


def make_app(
    engine: Engine, token: str, where: Callable[[], dict[str, Any]], leave: Callable[[], Awaitable[None]]
) -> FastAPI:
    """The application. `where` tells how the controller is reached; `leave` ends it after a stop."""
    app = FastAPI(
        title="Distributed Grid",
        version=__version__,
        docs_url="/api/v1/docs",
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )

    app.add_middleware(TokenRequired, token=token)
    describe_token(app)
    api = APIRouter(prefix="/api/v1", route_class=DirectRoute, responses=_ERRORS)
    service, config = engine.service, engine.config
    status_text = StatusText()

    def shown(lease: Any) -> dict[str, Any]:
        return boost_dict(lease, engine.parts.notes.get(lease.id, ()))

    @api.post("/boosts", response_model=schemas.Boost, status_code=201)
    async def request_boost(
        body: schemas.BoostRequest,
        request: Request,
        x_grid_user: User = "",
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    ) -> dict[str, Any]:
        """Lend part of a node's capacity to another for a while."""
        async with abandoned_on_disconnect(request, service, idempotency_key if body.wait_seconds else None):
            return shown(await engine.request(body.model_dump(), who=x_grid_user, idempotency_key=idempotency_key))

    @api.get("/boosts", response_model=schemas.BoostStatus)
    async def boost_status(node: Annotated[str | None, Query()] = None) -> Any:
        """Totals per resource type, then every boost."""
        if node is not None:
            return status_dict(service.boosts(node), engine.parts.notes)
        return json_answer(status_text.render(service.boosts(), engine.parts.notes))

    @api.get("/boosts/{boost_id}", response_model=schemas.Boost)
    async def one_boost(boost_id: str) -> dict[str, Any]:
        return shown(engine.parts.ledger.find(boost_id))

    @api.post("/boosts/{boost_id}/release", response_model=schemas.Boost)
    async def release_boost(
        boost_id: str,
        x_grid_user: User = "",
        x_grid_retry: Annotated[bool, Header()] = False,
        body: Annotated[schemas.ReleaseRequest | None, Body()] = None,
    ) -> dict[str, Any]:
        """Give the capacity back: `released` when it is home, `releasing` while the target still uses it."""
        body = body or schemas.ReleaseRequest()
        grace = None if body.grace_seconds is None else seconds("grace period", body.grace_seconds, zero_allowed=True)
        try:
            return shown(await service.release(boost_id, grace_s=grace, wait_s=body.wait_seconds, who=x_grid_user))
        except BoostNotFound:
            if x_grid_retry and (ended := service.released_before(boost_id)) is not None:
                return ended
            raise

    @api.post("/boosts/{boost_id}/renew", response_model=schemas.Boost)
    async def renew_boost(
        boost_id: str,
        x_grid_user: User = "",
        body: Annotated[schemas.RenewRequest | None, Body()] = None,
    ) -> dict[str, Any]:
        return shown(await service.renew(boost_id, (body or schemas.RenewRequest()).duration_seconds, who=x_grid_user))

    @api.get("/cluster", response_model=schemas.ClusterStatus)
    async def cluster_status() -> dict[str, Any]:
        """Every node's base, total, free, lent and borrowed amounts, and the boosts."""
        nodes = await engine.parts.look()
        found = where()
        return {
            "ray_address": found["ray_address"],
            "controller": {"state": "running", "url": found["url"], "pid": found["pid"]},
            "nodes": node_dicts(nodes, engine.parts.ledger.snapshot()),
            "boosts": status_dict(service.boosts(), engine.parts.notes),
            "problems": list(engine.problems()),
        }

    @api.get("/resource-sharing", response_model=schemas.SharingStatus)
    async def sharing_status() -> dict[str, Any]:
        nodes = await engine.parts.look()
        return sharing_dict(nodes, engine.parts.ledger.snapshot(), config.resource_sharing)

    @api.get("/events", response_model=schemas.EventList)
    async def events(after: Annotated[int, Query(ge=0, le=2**53)] = 0) -> dict[str, Any]:
        return {"events": [event.to_dict() for event in engine.parts.journal.since(after)]}

    @api.get("/config", response_model=schemas.RunningConfig)
    async def running_config() -> dict[str, Any]:
        return {"digest": config.digest(), "source": where()["config_source"], "config": config.to_dict()}

    @api.post("/controller/stop", response_model=schemas.Stopped)
    async def stop(body: Annotated[schemas.StopRequest | None, Body()] = None) -> dict[str, Any]:
        """Give all capacity back and take grid out of the cluster."""
        body = body or schemas.StopRequest()
        released = await engine.give_all_back(force=body.force, wait_s=body.wait_seconds)
        await leave()
        return {"released": released}

    @api.get("/health", openapi_extra={"security": []})
    async def health() -> dict[str, str]:
        """Whether somebody answers; needs no token and tells nothing else."""
        return {"status": "ok"}

    @app.exception_handler(GridError)
    async def grid_error(_: Request, error: GridError) -> JSONResponse:
        return JSONResponse({"error": error.to_dict()}, status_code=error.http_status)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        told = NotFound(str(error.detail)) if error.status_code == 404 else InvalidRequest(str(error.detail))
        return JSONResponse({"error": told.to_dict()}, status_code=error.status_code)

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: RequestValidationError) -> JSONResponse:
        lines = [f"{'.'.join(str(part) for part in e['loc'][1:]) or 'body'}: {e['msg']}" for e in error.errors()]
        told = InvalidRequest("The request cannot be understood", because=lines)
        return JSONResponse({"error": told.to_dict()}, status_code=told.http_status)

    app.router.routes.extend(api.routes)  # included, each call would look for its route twice
    return app
