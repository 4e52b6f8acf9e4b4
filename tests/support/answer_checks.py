"""Holds answers against their definitions in `wire`: no key is missing, none is unknown, every value has its type."""

import functools
import importlib
import json
import pkgutil
import typing
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distributed_grid import wire
from distributed_grid.client import GridClient
from distributed_grid.wire.values import ErrorAnswer


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def what_is_wrong(kind: Any, text: bytes) -> str | None:
    """None if the JSON is what `kind` defines."""
    try:
        read = _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        return str(error)
    said = json.loads(text)
    return None if read == said else f"{kind} does not define all of {said}"  # unknown keys are not read


class AnswersChecked:
    """Remembers every answer of an application that is not as its route defines it, and what has been answered."""

    def __init__(self, app: ASGIApp, wrong: list[str], answered: set[str]) -> None:
        self._app, self._wrong, self._answered = app, wrong, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts: list[bytes] = []
        start: Message = {}

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                if message["status"] < 400:
                    self._answered.add(f"{scope['method']} {getattr(scope.get('route'), 'path', scope['path'])}")
            parts.append(message.get("body", b""))
            await send(message)

        await self._app(scope, receive, noting)
        route = scope.get("route")
        is_json = (b"content-type", b"application/json") in start.get("headers", ())
        if not is_json or scope.get("method") == "HEAD" or scope["path"].endswith("/openapi.json"):
            return
        kind = ErrorAnswer if start["status"] >= 400 else getattr(route, "response_model", None)
        found = f"{route} has no definition" if kind is None else what_is_wrong(kind, b"".join(parts))
        if found is not None:
            self._wrong.append(f"{scope['method']} {scope['path']}: {found}")


def checked(client: GridClient) -> GridClient:
    """The client; what its methods return must be what they say they return. For controllers in other processes."""
    modules = [importlib.import_module(f"{wire.__name__}.{one.name}") for one in pkgutil.iter_modules(wire.__path__)]
    names = {name: value for module in modules for name, value in vars(module).items()}
    for name, method in list(vars(GridClient).items()):
        if callable(method) and not name.startswith("_"):
            kind = typing.get_type_hints(method, localns=names).get("return")
            if _is_defined(kind):
                setattr(client, name, _checked(getattr(client, name), kind))
    return client


def _is_defined(kind: Any) -> bool:
    inner = (typing.get_args(kind) or (kind,))[0]
    return getattr(inner, "__module__", "").startswith(wire.__name__)


def _checked(method: Callable[..., Any], kind: Any) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **more: Any) -> Any:
        answer = method(*args, **more)
        found = what_is_wrong(kind, json.dumps(answer).encode())
        assert found is None, f"{method.__name__}: {found}"
        return answer

    return call
