"""The HTTP server: uvicorn with limits on lengths, on waiting, and on the number of connections."""

import asyncio
from typing import Any, ClassVar, Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from distributed_grid.controller.direct_route import LONGEST_BODY
from distributed_grid.model.listening import Listening

LONGEST_HEAD: Final = 64 * 1024
HEAD_S: Final = 15.0
"""The limit for a request's first line and headers; then its connection ends. So does a silent connection."""
_HEAD_LATE: Final = "Timed out waiting for the request headers."
BODY_S: Final = 30.0
"""The limit for the rest of the request."""
UNREAD_S: Final = 30.0
"""A client that does not read its answer for this long is treated as gone."""
IDLE_S: Final = 30
MOST_CONNECTIONS: Final = 2000


class GuardedProtocol(HttpToolsProtocol):
    """One connection. uvicorn itself would wait for ever, and keep headers and answers of any length."""

    everyone: ClassVar[dict["GuardedProtocol", None]]
    """All connections of one server, the oldest first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = True
        self._moved_on = False
        self._head = 0
        self._unwanted = 0
        self._due: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    # -- coming and going -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(_TogetherWritten(transport, self.loop))  # type: ignore[arg-type] # it acts as one
        self.everyone[self] = None
        if len(self.everyone) > MOST_CONNECTIONS:
            next((each for each in self.everyone if not each._is_answered), self).transport.abort()
        self._expect_within(HEAD_S, _HEAD_LATE)

    @property
    def _is_answered(self) -> bool:
        """True while a request is being answered; otherwise only the client is waited for."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        self.everyone.pop(self, None)
        self._expect_nothing()
        self.resume_writing()
        super().connection_lost(exc)

    # -- reading --------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._moved_on = False
        if self._in_head and self._head == 0 and not self._is_answered:
            self._expect_within(HEAD_S, _HEAD_LATE)
        super().data_received(data)
        if not self._in_head or self._moved_on:  # the part of the data that began a new head is short
            return
        self._head += len(data)
        if self._head > LONGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("The headers are too long.")

    def on_headers_complete(self) -> None:
        self._in_head, self._moved_on, self._unwanted = False, True, 0
        self._expect_within(BODY_S, "Timed out waiting for the request body.")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:  # answered before it was read: the rest is not wanted
            self._unwanted += len(body)
            if self._unwanted > LONGEST_BODY:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head, self._moved_on, self._head = True, True, 0
        self._expect_nothing()
        super().on_message_complete()

    def _expect_within(self, seconds: float, otherwise: str) -> None:
        self._expect_nothing()
        self._due = self.loop.call_later(seconds, self._give_up, otherwise)

    def _expect_nothing(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _give_up(self, why: str) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is None or (self._in_head and self.cycle.response_complete) or not self.cycle.response_started:
            head = f"content-type: text/plain\r\ncontent-length: {len(why)}\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[408] + head.encode() + why.encode())
        self.transport.close()

    # -- writing --------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self._stalled or self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if self.flow is not None:
            super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # closing would wait for a client that does not read
            self.transport.abort()
        super().timeout_keep_alive_handler()


class _TogetherWritten:
    """A transport that sends what is written in one step of the event loop together: the head of an answer and its
    body, which uvicorn writes one after the other. Two packets would wake the client twice."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._unsent: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent.append(data)
            self._send()
        elif len(data) > LONGEST_HEAD:
            self._transport.write(data)
        else:
            self._unsent.append(data)
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        if self._unsent:
            data, self._unsent = b"".join(self._unsent), []
            self._transport.write(data)

    def close(self) -> None:
        self._send()
        self._transport.close()


def make_server(app: ASGIApp, listening: Listening) -> uvicorn.Server:
    class Protocol(GuardedProtocol):
        everyone: ClassVar[dict[GuardedProtocol, None]] = {}

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        http=Protocol,
        ws="none",
        proxy_headers=False,  # otherwise any program on this machine could claim another address
        timeout_keep_alive=IDLE_S,
        ssl_certfile=listening.tls_cert or None,
        ssl_keyfile=listening.tls_key or None,
    )
    return uvicorn.Server(config)
