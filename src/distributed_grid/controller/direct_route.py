"""Routes whose requests are limited before FastAPI reads them, and whose answers are sent as they are.

Before anything of a request is read, its token must have the scope that the route needs. A body is JSON, whatever the
caller says that it is. An answer has the shape of its definition already, so FastAPI does not build it anew.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson
from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from distributed_grid.controller.access import LONGEST_PART, OPEN, admit, needed_by
from distributed_grid.errors import InvalidRequest, TooLarge

# Many times what any request needs.
LONGEST_BODY: Final = 2**18
_MISSING: Final = object()

Endpoint = Callable[..., Awaitable[object]]


def json_answer(text: bytes, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


class DirectRoute(APIRoute):
    """FastAPI reads the endpoint's signature, for its checks and for the OpenAPI document. What it would do around
    each call is for forms, files and dependencies with an end, and takes longer than the rest of a short call."""

    def __init__(self, path: str, endpoint: Endpoint, *, status_code: int | None = None, **others: Any) -> None:
        self._needed = needed = needed_by(endpoint)
        security: list[dict[str, list[str]]] = [] if path in OPEN else [{"token": [str(needed)] if needed else []}]
        extra = {**(others.pop("openapi_extra", None) or {}), "security": security}
        answering = _as_it_is(endpoint, status_code or 200)
        super().__init__(path, answering, openapi_extra=extra, status_code=status_code, **others)
        self.app = self._answer

    async def _answer(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        admit(request, self._needed)
        if any(len(part) > LONGEST_PART for part in request.path_params.values()):
            raise InvalidRequest(f"A name or an id in a path has at most {LONGEST_PART} characters")
        errors: list[Any] = []
        given = await _arguments(request, self.dependant, errors)
        if (body := self.body_field) is not None:
            read = await _json(request, is_needed=body.field_info.is_required())
            _take(given, body, read, ("body",), errors)
        if errors:
            raise RequestValidationError(errors)
        response: Response = await self.endpoint(**given)
        await response(scope, receive, send)


async def _arguments(request: Request, of: Dependant, errors: list[Any]) -> dict[str, Any]:
    """What a call gives a function, from everywhere but its body. Errors are added to the list."""
    given: dict[str, Any] = {}
    for needed in of.dependencies:
        before = len(errors)
        arguments = await _arguments(request, needed, errors)
        if needed.call is not None and needed.name is not None and len(errors) == before:
            given[needed.name] = await needed.call(**arguments)
    sources = (
        ("path", of.path_params, request.path_params),
        ("query", of.query_params, request.query_params),
        ("header", of.header_params, request.headers),
    )
    for place, fields, values in sources:
        for field in fields:
            _take(given, field, values.get(field.alias, _MISSING), (place, field.alias), errors)
    if of.request_param_name is not None:
        given[of.request_param_name] = request
    return given


def _take(given: dict[str, Any], field: Any, value: object, place: tuple[str, ...], errors: list[Any]) -> None:
    if value is not _MISSING:
        given[field.name], found = field.validate(value, loc=place)
        errors += found
    elif field.field_info.is_required():
        errors.append({"type": "missing", "loc": place, "msg": "Field required"})
    else:
        given[field.name] = field.get_default()


def _as_it_is(endpoint: Endpoint, status: int) -> Endpoint:
    @functools.wraps(endpoint)
    async def answer(*args: object, **given: object) -> Response:
        found = await endpoint(*args, **given)
        return found if isinstance(found, Response) else json_answer(orjson.dumps(found), status)

    return answer


async def _json(request: Request, *, is_needed: bool) -> object:
    """The value of the body; `_MISSING` if there is none, and none is needed."""
    body = await _body(request)
    if not body and not is_needed:
        return _MISSING
    try:
        return from_json(body)
    except ValueError as error:
        problem = {"type": "json_invalid", "loc": ("body",), "msg": f"Invalid JSON: {error}"}
        raise RequestValidationError([problem]) from None


async def _body(request: Request) -> bytes:
    """The whole body, up to `LONGEST_BODY`."""
    promised = request.headers.get("content-length", "")
    length = int(promised) if promised.isdecimal() and len(promised) < 16 else 0
    parts: list[bytes] = []
    try:
        if length <= LONGEST_BODY:
            length = 0
            async for part in request.stream():
                parts.append(part)
                length += len(part)
                if length > LONGEST_BODY:
                    break
    except ClientDisconnect:
        raise InvalidRequest("The connection closed before the request was complete") from None
    if length > LONGEST_BODY:
        raise TooLarge(f"The request body is larger than the limit of {LONGEST_BODY} bytes")
    return b"".join(parts)
