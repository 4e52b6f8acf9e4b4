"""The Host header: a page in somebody's browser may have its name point here, but cannot hide the name."""

from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from distributed_grid.controller.answers import answer_error
from distributed_grid.errors import WrongHost
from distributed_grid.model.listening import plain_host

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class HostChecked:
    """Lets only those through who mean this controller: a loopback name, the address they reached, or a given name."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = _LOOPBACK | {plain_host(name) for name in allowed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # nothing else is served
        named = [value for name, value in scope["headers"] if name == b"host"]
        host = plain_host(named[0].decode("latin-1")) if len(named) == 1 else ""
        here = scope.get("server")
        if host and (host in self._allowed or (here and host == here[0])):
            await self._app(scope, receive, send)
            return
        refused = WrongHost(
            "This is not the controller of that name",
            because=["the Host header is neither a loopback name, nor the address that was reached, nor allowed"],
            try_next="Start grid with --allow-host NAME for every other name by which it is reached.",
        )
        await answer_error(refused)(scope, receive, send)
