"""Routes that FastAPI describes and that read their requests themselves.

FastAPI resolves a route's dependencies anew for every call, which takes longer than any other step of a boost except
the disk. Our routes need little: parts of the path, headers, a query and one body, each checked by its annotation. The
extension point is FastAPI's own; the OpenAPI document comes from the same signatures.

Before anything of a request is read, its token must have the scope that the route needs.
"""

import inspect
import typing
from collections.abc import Callable, Coroutine
from typing import Any, Final

import orjson
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.params import Depends, Header, Query
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect

from distributed_grid.controller.access import LONGEST_PART, OPEN, admit, needed_by
from distributed_grid.errors import InvalidRequest, TooLarge

# Many times what any request needs.
LONGEST_BODY: Final = 2**18

_Read = Callable[[Request, bytes], Any]


def json_answer(text: bytes, status: int = 200) -> Response:
    return Response(text, status, media_type="application/json")


class DirectRoute(APIRoute):
    def __init__(self, path: str, endpoint: Callable[..., Any], **others: Any) -> None:
        needed = needed_by(endpoint)
        security: list[dict[str, list[str]]] = [] if path in OPEN else [{"token": [str(needed)] if needed else []}]
        extra = {**(others.pop("openapi_extra", None) or {}), "security": security}
        super().__init__(path, endpoint, openapi_extra=extra, **others)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint, status = self.endpoint, self.status_code or 200
        readers = _readers(endpoint, self.param_convertors.keys())
        takes_body = self.body_field is not None
        needed = needed_by(endpoint)

        async def handle(request: Request) -> Response:
            admit(request, needed)
            body = await _body(request) if takes_body else b""
            found = await endpoint(**{name: read(request, body) for name, read in readers.items()})
            return found if isinstance(found, Response) else json_answer(orjson.dumps(found), status)

        return handle


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


def _part(request: Request, name: str) -> str:
    found: str = request.path_params[name]
    if len(found) > LONGEST_PART:
        raise InvalidRequest(f"A name or an id in a path has at most {LONGEST_PART} characters")
    return found


def _readers(endpoint: Callable[..., Any], in_path: typing.Collection[str]) -> dict[str, _Read]:
    """For each parameter of an endpoint, the function that reads it from a request."""
    hints = typing.get_type_hints(endpoint, include_extras=True)
    return {
        name: _reader(name, hints[name], parameter.default, in_path)
        for name, parameter in inspect.signature(endpoint).parameters.items()
    }


def _reader(name: str, annotation: Any, default: Any, in_path: typing.Collection[str]) -> _Read:
    if annotation is Request:
        return lambda request, _: request
    if name in in_path:
        return lambda request, _: _part(request, name)
    marks = typing.get_args(annotation)[1:]
    if (needs := next((mark for mark in marks if isinstance(mark, Depends)), None)) is not None:
        return _dependency_reader(needs)
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    place = next((mark for mark in marks if isinstance(mark, Header | Query)), None)
    if isinstance(place, Header):
        return _text_reader("header", name.replace("_", "-"), adapter, default)
    if isinstance(place, Query):
        return _text_reader("query", place.alias or name, adapter, default)
    if not any(isinstance(kind, type) and issubclass(kind, dict) for kind in _plain(annotation)):
        raise TypeError(f"{name} of a route is neither in its path nor a header, a query or a body")
    return _body_reader(adapter, default)


def _dependency_reader(needs: Depends) -> _Read:
    made_by = needs.dependency
    assert made_by is not None
    readers = _readers(made_by, ())
    return lambda request, body: made_by(**{name: read(request, body) for name, read in readers.items()})


def _text_reader(where: str, key: str, adapter: TypeAdapter[Any], default: Any) -> _Read:
    def read(request: Request, _: bytes) -> Any:
        text = (request.headers if where == "header" else request.query_params).get(key)
        if text is None and default is not inspect.Parameter.empty:
            return default
        return _checked(
            lambda: adapter.validate_strings(text) if text is not None else adapter.validate_python(None), key
        )

    return read


def _body_reader(adapter: TypeAdapter[Any], default: Any) -> _Read:
    def read(_: Request, body: bytes) -> Any:
        if not body and default is not inspect.Parameter.empty:
            return default
        return _checked(lambda: adapter.validate_json(body))

    return read


def _checked(check: Callable[[], Any], *place: str) -> Any:
    try:
        return check()
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise RequestValidationError([{**one, "loc": ("request", *place, *one["loc"])} for one in problems]) from None


def _plain(annotation: Any) -> list[Any]:
    """The types that an annotation allows."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _plain(typing.get_args(annotation)[0])
    return list(typing.get_args(annotation)) or [annotation]
