"""Access: every route states its scope, every call carries a token, and the Host header must be a known one.

A page in a browser can make its own name point here, but it cannot hide that name.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

import orjson
from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from pydantic import TypeAdapter
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from distributed_grid import threads
from distributed_grid.controller.limits import FailedAttempts, TokenLimits, network_of
from distributed_grid.controller.tokens import Tokens
from distributed_grid.errors import (
    AccessDenied,
    GridError,
    TooBusy,
    TooLarge,
    TooManyAttempts,
    Unavailable,
    WrongHost,
)
from distributed_grid.model.listening import plain_host
from distributed_grid.model.principals import OWNER, Principal, Scope, check_may
from distributed_grid.model.teams import Teams
from distributed_grid.wire.values import ErrorAnswer

_SCHEMAS: Final = "#/components/schemas/"
ERRORS: Final[dict[int | str, dict[str, object]]] = {
    status: {
        "description": HTTPStatus(status).phrase,
        "content": {"application/json": {"schema": {"$ref": f"{_SCHEMAS}ErrorAnswer"}}},
    }
    for status in (401, 403, 404, 409, 413, 421, 422, 429, 500, 503)
}
"""For OpenAPI: the errors that any call may return. They refer to one schema: with a model each, FastAPI would build
the same schema for each status of each route, which would take most of a controller's start."""


def answer_error(error: GridError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    if isinstance(error, TooBusy):
        headers = {"Retry-After": str(math.ceil(error.retry_after_s)), **(headers or {})}
    if isinstance(error, TooLarge):
        headers = {"Connection": "close", **(headers or {})}  # the rest of the request is not read
    return JSONResponse({"error": error.to_dict()}, error.http_status, headers=headers)


_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class HostChecked:
    """Admits only requests addressed to this controller: a loopback name, the address they reached, or a given name."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = _LOOPBACK | {plain_host(name) for name in allowed}

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is served
        named = [value for name, value in scope["headers"] if name == b"host"]
        host = plain_host(named[0].decode("latin-1")) if len(named) == 1 else ""
        here = scope.get("server")
        if host and (host in self._allowed or (here and host == here[0])):
            await self._app(scope, receive, send)
            return
        refused = WrongHost(
            "The controller does not answer under this host name",
            because=[
                "the Host header has neither a loopback name, nor the address that was reached, nor an allowed name"
            ],
            try_next="Start grid with --allow-host NAME for every other name by which clients reach it.",
        )
        await answer_error(refused)(scope, receive, send)


# These reveal nothing about the cluster.
OPEN: Final = ("/api/v1/health", "/api/v1/docs", "/api/v1/openapi.json")
_LONG: Final = OPEN[1:]
LONGEST_PART: Final = 255
"""The longest id or name in a path."""
_PRINCIPAL: Final = "grid.principal"
_NEEDED: Final = "__grid_needs__"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
T = TypeVar("T")


def needs(scope: Scope | None) -> Callable[[Endpoint], Endpoint]:
    """State the scope that an endpoint needs. None: any valid token; without a token only `OPEN` paths are answered."""

    def decided(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _NEEDED, scope)
        return endpoint

    return decided


def needed_by(endpoint: Callable[..., object]) -> Scope | None:
    """The scope that an endpoint states; raises at start-up if it states none, before any caller can reach it."""
    if not hasattr(endpoint, _NEEDED):
        raise TypeError(f"{endpoint.__name__} does not say who may call it: @needs(...) is missing")
    scope: Scope | None = getattr(endpoint, _NEEDED)
    return scope


def admit(request: Request, scope: Scope | None) -> None:
    """Raise `ScopeMissing` if the caller's token lacks this scope."""
    if scope is not None:
        check_may(request.scope[_PRINCIPAL], scope)


def asker_of(request: Request) -> Principal:
    """The owner of the token that a request carries."""
    found: Principal = request.scope[_PRINCIPAL]
    return found


async def _asker(request: Request, x_grid_user: Annotated[str, Header(max_length=64)] = "") -> Principal:
    return asker_of(request).claiming(x_grid_user)


Asker = Annotated[Principal, Depends(_asker)]
"""An endpoint's parameter: the caller, by the name that the audit log records."""


class TokenRequired:
    """Admits only requests with a valid token, whatever they ask for, and notes the token's owner and team.

    Everything else learns the caller's team from here. A team that is not configured is `default`.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        attempts: FailedAttempts,
        limits: TokenLimits,
        teams: Teams,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._attempts = attempts
        self._limits = limits
        self._teams = teams
        self._strangers = TokenLimits(limits.configured, whose="address")
        """Limits per address, for refusals, and for long answers from `OPEN` paths, which need no token."""
        self._clock = clock

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is served
        address = sender_of(scope)
        if scope["path"] in OPEN:
            if scope["path"] in _LONG:
                await self._limited(self._strangers, network_of(address), self._app, scope, receive, send)
            else:  # costs no more than a refusal, and shows that the controller answers even during a flood
                await self._app(scope, receive, send)
            return
        given = _bearer(next((value for name, value in scope["headers"] if name == b"authorization"), b""))
        principal = self._tokens.who_has(given) if given else None
        if principal is None:
            wait_s = self._attempts.failed(address, given, now=self._clock())
            await self._limited(self._strangers, network_of(address), _refused(wait_s), scope, receive, send)
            return
        if wait_s := self._attempts.guesses(address, now=self._clock()):
            await _refused(wait_s)(scope, receive, send)
            return
        scope[_PRINCIPAL] = replace(principal, team=self._teams.in_force(principal.team))
        threads.caller.set(principal.token_id or OWNER)
        if principal.token_id is not None:
            await self._limited(self._limits, principal.token_id, self._app, scope, receive, send)
            return
        await self._app(scope, receive, send)

    @staticmethod
    async def _limited(
        limits: TokenLimits, of: str, app: ASGIApp, scope: AsgiScope, receive: Receive, send: Send
    ) -> None:
        """Answer a request of a user's token, or of an address, when its turn comes; or refuse it."""
        await limits.run(of, lambda: app(scope, receive, send), lambda error: answer_error(error)(scope, receive, send))


class Started:
    """Refuses changes until the engine has started; the status is available before."""

    def __init__(self, app: ASGIApp, has_started: Callable[[], bool], why_not: Callable[[], tuple[str, ...]]) -> None:
        self._app = app
        self._has_started = has_started
        self._why_not = why_not

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD") and not self._has_started():
            late = Unavailable(
                "The controller has not started yet",
                because=list(self._why_not()),
                try_next="Fix the problems listed above; the controller retries every second.",
            )
            await answer_error(late)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def sender_of(scope: AsgiScope) -> str:
    """The caller's address. A call from this machine counts as loopback, whichever of its addresses it uses."""
    client, server = scope.get("client"), scope.get("server")
    if client is None:
        return ""
    return "127.0.0.1" if server is not None and client[0] == server[0] else str(client[0])


def _bearer(authorization: bytes) -> bytes:
    scheme, _, given = authorization.partition(b" ")
    return given.strip() if scheme.lower() == b"bearer" else b""


def _refused(wait_s: float) -> ASGIApp:
    if wait_s > 0:
        seconds = math.ceil(wait_s)
        late: GridError = TooManyAttempts(
            "Too many attempts with a missing or wrong token came from your address",
            try_next=f"Wait {seconds} s, then try again with a valid token.",
        )
        return answer_error(late, {"Retry-After": str(seconds)})
    denied = AccessDenied(
        "The token is missing or wrong",
        because=["it may also have expired, or been revoked"],
        try_next="On the machine where grid was started, use its GRID_HOME; elsewhere: grid login URL",
    )
    return answer_error(denied, {"WWW-Authenticate": "Bearer"})


def _path_parameters(spec: dict[str, Any]) -> list[dict[str, Any]]:
    operations = (operation for path in spec["paths"].values() for operation in path.values())
    return [each for one in operations for each in one.get("parameters", ()) if each["in"] == "path"]


def describe_answers(app: FastAPI) -> None:
    """Describe in the OpenAPI document what concerns every call: the token, and the errors."""
    plain = app.openapi

    def described() -> dict[str, object]:
        spec = plain()
        error = TypeAdapter(ErrorAnswer).json_schema(ref_template=f"{_SCHEMAS}{{model}}")
        spec["components"].setdefault("schemas", {}).update(error.pop("$defs"), ErrorAnswer=error)
        spec["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        spec["security"] = [{"token": []}]
        for parameter in _path_parameters(spec):
            parameter["schema"].setdefault("maxLength", LONGEST_PART)
        return spec

    @cache
    def document() -> bytes:
        return orjson.dumps(described())

    async def answer(_: Request) -> Response:
        return Response(document(), media_type="application/json")

    app.openapi = described  # type: ignore[method-assign]
    app.router.routes.insert(0, Route(str(app.openapi_url), answer))  # before FastAPI's own, which writes it anew
