"""Routes whose requests are limited before FastAPI reads them, and whose answers are sent as they are.

Before anything of a request is read, its token must have the scope that the route needs. A body is JSON, whatever the
caller says that it is. An answer has the shape of its definition already, so FastAPI does not build it anew.
"""

import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from distributed_grid.controller.access import LONGEST_PART, OPEN, admit, needed_by
from distributed_grid.errors import InvalidRequest, TooLarge

# Many times what any request needs.
LONGEST_BODY: Final = 2**18
_IS_JSON: Final = (b"content-type", b"application/json")

Endpoint = Callable[..., Awaitable[object]]


def json_answer(text: bytes, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


class DirectRoute(APIRoute):
    def __init__(self, path: str, endpoint: Endpoint, *, status_code: int | None = None, **others: Any) -> None:
        needed = needed_by(endpoint)
        security: list[dict[str, list[str]]] = [] if path in OPEN else [{"token": [str(needed)] if needed else []}]
        extra = {**(others.pop("openapi_extra", None) or {}), "security": security}
        answering = _as_it_is(endpoint, status_code or 200)
        super().__init__(path, answering, openapi_extra=extra, status_code=status_code, **others)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, needed = super().get_route_handler(), needed_by(self.endpoint)
        body = self.body_field

        async def limited(request: Request) -> Response:
            admit(request, needed)
            if any(len(part) > LONGEST_PART for part in request.path_params.values()):
                raise InvalidRequest(f"A name or an id in a path has at most {LONGEST_PART} characters")
            if body is None:
                return await handle(request)
            return await handle(_ReadRequest(request, await _body(request), body.field_info.is_required()))

        return limited


def _as_it_is(endpoint: Endpoint, status: int) -> Endpoint:
    @functools.wraps(endpoint)
    async def answer(*args: object, **given: object) -> Response:
        found = await endpoint(*args, **given)
        return found if isinstance(found, Response) else json_answer(orjson.dumps(found), status)

    return answer


class _ReadRequest(Request):
    """A request whose body was read, and is JSON."""

    def __init__(self, request: Request, body: bytes, is_needed: bool) -> None:
        others = [each for each in request.scope["headers"] if each[0] != b"content-type"]
        super().__init__({**request.scope, "headers": [*others, _IS_JSON]}, request.receive)
        self._text = body
        try:
            self._data: object = from_json(body) if body or is_needed else None
        except ValueError as error:
            problem = {"type": "json_invalid", "loc": ("body",), "msg": f"Invalid JSON: {error}"}
            raise RequestValidationError([problem]) from None

    async def body(self) -> bytes:
        return self._text

    async def json(self) -> object:
        return self._data


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
