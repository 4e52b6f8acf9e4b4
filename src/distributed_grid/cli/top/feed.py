"""The screen's data, fetched in the background: a slow or absent controller never blocks the screen."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from distributed_grid.cli.node_columns import POINTS
from distributed_grid.cli.output import readable
from distributed_grid.client import GridClient
from distributed_grid.errors import GridError
from distributed_grid.loops import ThreadLoop

if TYPE_CHECKING:
    from distributed_grid.wire.audit import Event
    from distributed_grid.wire.nodes import ClusterStatus
    from distributed_grid.wire.windows import Window

EVERY_S: Final = 2.0
_HISTORY_S: Final = 10.0  # nodes are measured every ten seconds

T = TypeVar("T")
Series = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Seen:
    """The cluster at one moment, and the events since the previous one."""

    status: ClusterStatus
    history: Mapping[str, Series] = field(default_factory=dict)
    events: Sequence[Event] = ()
    windows: Sequence[Window] = ()


Tell = Callable[[Seen | GridError], None]


class Feed:
    """Polls the controller in its own thread, and passes on each answer or error."""

    def __init__(self, client: GridClient, tell: Tell, every_s: float = EVERY_S) -> None:
        self._client = client
        self._tell = tell
        self._history: dict[str, Series] = {}
        self._windows: Sequence[Window] = ()
        self._history_due = 0.0
        self._last_event = 0
        self._controller: int | None = None
        self._loop = ThreadLoop("feed", self._turn, lambda: every_s)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        """Returns at once; the thread may still wait for an answer."""
        self._loop.end()

    def hurry(self) -> None:
        """Poll now, since something has changed."""
        self._loop.wake()

    def _turn(self) -> None:
        answer = attempt(self._look)
        if not self._loop.is_stopping:
            with contextlib.suppress(RuntimeError):  # the screen has closed, or is not open yet
                self._tell(answer)

    def _look(self) -> Seen:
        status = self._client.cluster_status()
        if status["controller"]["pid"] != self._controller:
            # A new controller numbers its events from one again.
            self._controller, self._last_event = status["controller"]["pid"], 0
        events = self._client.events(self._last_event)
        self._last_event = max((event["number"] for event in events), default=self._last_event)
        if time.monotonic() >= self._history_due or any(n["name"] not in self._history for n in status["nodes"]):
            nodes = self._client.nodes(history=POINTS)["nodes"]
            self._history = {node["name"]: node["history"]["series"] for node in nodes}
            self._windows = readable(self._client.windows())
            self._history_due = time.monotonic() + _HISTORY_S
        return Seen(readable(status), self._history, readable(events), self._windows)


def attempt(call: Callable[[], T]) -> T | GridError:
    """The call's result; any exception is returned as an error to show."""
    try:
        return call()
    except GridError as error:
        return error
    except Exception as error:  # noqa: BLE001 - one bad answer must not end the screen
        return GridError("Internal error in grid top", because=[f"{type(error).__name__}: {error}"])


def in_background(call: Callable[[], T], then: Callable[[T | GridError], None]) -> None:
    """Run the call in its own thread; `then` gets the result, or the `GridError`, in that thread."""

    def run() -> None:
        result = attempt(call)
        with contextlib.suppress(RuntimeError):  # the screen has closed meanwhile
            then(result)

    threading.Thread(target=run, daemon=True).start()
