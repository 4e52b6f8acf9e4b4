"""Events as they happen, for requests with `Accept: text/event-stream` (server-sent events).

Every event has an id. A client that was cut off sends the last id it got (`Last-Event-ID`; browsers do this by
themselves) and continues after it. An id from an earlier controller process is of no use: all stored events come again.
"""

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from distributed_grid.controller.tokens import Tokens
from distributed_grid.errors import TooBusy, TooManyRequests
from distributed_grid.leases.journal import Event, Journal
from distributed_grid.model import principals
from distributed_grid.model.principals import Principal

MEDIA_TYPE: Final = "text/event-stream"
MOST_AT_ONCE: Final = 100
OF_ONE: Final = 10
"""Streams of one token."""
FOR_ADMINS: Final = 10
"""Of all streams, this many are reserved for tokens with the scope `admin`."""
_HEARTBEAT_S: Final = 15.0
_TOGETHER: Final = 100
"""Events that are sent in one piece to a reader that is behind."""
APART_S: Final = 0.25
"""The least time between two pieces; what happens meanwhile comes in one. Streams cost little on a busy grid."""
# A stream ends within this time after its token is revoked or expires, or its client leaves.
_ASK_AGAIN_S: Final = 1.0
# After this time a stream ends, and its client reconnects by itself.
_LONGEST_S: Final = 600.0


class EventStream:
    """All event streams of one controller's journal."""

    def __init__(self, journal: Journal, tokens: Tokens) -> None:
        self._journal = journal
        self._tokens = tokens
        self._life = uuid.uuid4().hex[:8]
        self._listening: Counter[str | None] = Counter()
        """How many streams each token has; None is the installation's own."""

    @staticmethod
    def is_wanted(request: Request) -> bool:
        return MEDIA_TYPE in request.headers.get("accept", "")

    def answer(self, request: Request, after: int, listener: Principal) -> StreamingResponse:
        self._check_room(listener)
        last = self._last_sent(request.headers.get("last-event-id", "")) or after
        return _Counted(self, self.lines(request, last, listener), listener)

    def _check_room(self, listener: Principal) -> None:
        mine = self._listening[listener.token_id]
        if listener.token_id is not None and mine >= OF_ONE:
            raise TooManyRequests(f"Your token already has {mine} event streams", try_next="Close one of them first.")
        most = MOST_AT_ONCE - (0 if listener.may(principals.Scope.ADMIN) else FOR_ADMINS)
        if self._listening.total() >= most:
            raise TooBusy(
                f"{most} event streams are already open",
                try_next="Retry later, or poll GET /api/v1/events without a stream.",
            )

    @contextmanager
    def place(self, listener: Principal) -> Iterator[None]:
        """Occupy one of the places for as long as a stream lasts."""
        self._listening[listener.token_id] += 1
        try:
            yield
        finally:
            self._listening[listener.token_id] -= 1
            if not self._listening[listener.token_id]:
                del self._listening[listener.token_id]

    def _last_sent(self, last_id: str) -> int:
        life, _, number = last_id.partition("-")
        return int(number) if life == self._life and number.isdecimal() and len(number) < 19 else 0

    async def lines(self, request: Request, number: int, listener: Principal) -> AsyncIterator[bytes]:
        began = heard = time.monotonic()
        yield b"retry: 2000\n\n"
        with self._journal.listening() as news:
            while heard - began < _LONGEST_S and self._tokens.is_valid(listener):
                if await request.is_disconnected():
                    return
                news.clear()
                pending = self._journal.since(number)
                for begin in range(0, len(pending), _TOGETHER):
                    if not self._tokens.is_valid(listener):  # a slow reader may spend a long time in this loop
                        return
                    some = pending[begin : begin + _TOGETHER]
                    yield b"".join(map(self._line, some))
                    number = some[-1].number
                    await asyncio.sleep(0)  # sending need not wait, and others must get their turn
                with suppress(TimeoutError):
                    async with asyncio.timeout(_ASK_AGAIN_S):
                        await news.wait()
                if not news.is_set() and time.monotonic() - heard >= _HEARTBEAT_S:
                    yield b": still here\n\n"
                if news.is_set() or time.monotonic() - heard >= _HEARTBEAT_S:
                    await asyncio.sleep(max(0.0, heard + APART_S - time.monotonic()))
                    heard = time.monotonic()

    def _line(self, event: Event) -> bytes:
        head = f"id: {self._life}-{event.number}\nevent: {event.event}\ndata: "
        return head.encode() + event.encoded + b"\n\n"


class _Counted(StreamingResponse):
    """One stream. It takes its place before its first byte, so that streams opened at the same time are all counted.

    It runs in the task of its request, so that its cost is counted as that of any other request.
    """

    def __init__(self, stream: EventStream, lines: AsyncIterator[bytes], listener: Principal) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines, media_type=MEDIA_TYPE, headers=headers)
        self._stream = stream
        self._listener = listener

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._stream.place(self._listener):
            await self.stream_response(send)
