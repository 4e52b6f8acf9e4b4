"""Events as they happen, for whoever asks with `Accept: text/event-stream` (server-sent events).

Every event has an id; who was cut off shows the last one it got (`Last-Event-ID`, as browsers do by themselves) and
goes on after it. An id of another controller's life is no use here: then all events that are kept come again.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import orjson
from fastapi import Request
from fastapi.responses import StreamingResponse

from distributed_grid.controller.tokens import Tokens
from distributed_grid.errors import Unavailable
from distributed_grid.model.principals import Principal
from distributed_grid.orchestration.journal import Event, Journal

MEDIA_TYPE: Final = "text/event-stream"
MOST_AT_ONCE: Final = 100
_HEARTBEAT_S: Final = 15.0
# A stream ends within this after its token was revoked or has expired.
_ASK_AGAIN_S: Final = 1.0
# Then whoever listens comes again by itself.
_LONGEST_S: Final = 600.0


class EventStream:
    """All who listen to one controller's journal."""

    def __init__(self, journal: Journal, tokens: Tokens) -> None:
        self._journal = journal
        self._tokens = tokens
        self._life = uuid.uuid4().hex[:8]
        self._listening = 0

    @staticmethod
    def is_wanted(request: Request) -> bool:
        return MEDIA_TYPE in request.headers.get("accept", "")

    def answer(self, request: Request, after: int, listener: Principal) -> StreamingResponse:
        if self._listening >= MOST_AT_ONCE:
            raise Unavailable(
                f"{MOST_AT_ONCE} others listen to the events already", try_next="Ask again without Accept, or later."
            )
        told = self._told_before(request.headers.get("last-event-id", "")) or after
        return StreamingResponse(
            self._lines(told, listener),
            media_type=MEDIA_TYPE,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    def _told_before(self, last_id: str) -> int:
        life, _, number = last_id.partition("-")
        return int(number) if life == self._life and number.isdecimal() and len(number) < 19 else 0

    async def _lines(self, number: int, listener: Principal) -> AsyncIterator[bytes]:
        self._listening += 1
        began = heard = time.monotonic()
        try:
            yield b"retry: 2000\n\n"
            with self._journal.listening() as news:
                while heard - began < _LONGEST_S and self._tokens.is_valid(listener):
                    news.clear()
                    for event in self._journal.since(number):
                        if not self._tokens.is_valid(listener):  # who reads slowly may be at this for long
                            return
                        yield self._line(event)
                        number = event.number
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_ASK_AGAIN_S):
                            await news.wait()
                    if not news.is_set() and time.monotonic() - heard >= _HEARTBEAT_S:
                        yield b": still here\n\n"
                    if news.is_set() or time.monotonic() - heard >= _HEARTBEAT_S:
                        heard = time.monotonic()
        finally:
            self._listening -= 1

    def _line(self, event: Event) -> bytes:
        head = f"id: {self._life}-{event.number}\nevent: {event.event}\ndata: "
        return head.encode() + orjson.dumps(event.to_dict()) + b"\n\n"
