"""One call to the controller: where it is, what is tried again and for how long, and why there is no answer."""

from __future__ import annotations

import getpass
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from http import HTTPStatus
from typing import Final, TypeVar

from distributed_grid.client.connections import ANSWER_S, Answer, Call, Channel, Connections, Unreachable, listens
from distributed_grid.client.whereabouts import NO_CLUSTER, Whereabouts
from distributed_grid.errors import ControllerUnreachable, GridError, NoCluster, TooBusy, error_from_dict
from distributed_grid.model.plain_text import plain_data
from distributed_grid.store.home import GridHome

T = TypeVar("T")
RETRY_S: Final = 10.0
_RETRY_CHANGES_S: Final = 60.0
"""For changes: on a busy machine a controller may need this long to come back."""
_BUSY_PAUSE_S: Final = 1.0
_PAUSE_S: Final = 0.2
_SLOW_S: Final = 2.0
_FROM_ELSEWHERE: Final = (
    "Check the URL, and that the network lets you reach it. On the head, grid cluster status shows whether grid is up."
)


@contextmanager
def message_if_slow(message: str, tell: Callable[[str], None], after_s: float = _SLOW_S) -> Iterator[None]:
    """Tell the message once if the block takes longer than `after_s`."""
    timer = threading.Timer(after_s, tell, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Caller:
    """Calls one controller: over HTTP, unless it is given another channel."""

    def __init__(
        self,
        home: GridHome | None = None,
        *,
        at: Whereabouts | None = None,
        through: Channel | None = None,
        retry_s: float | None = None,
        on_wait: Callable[[str], None] | None = None,
        plain: bool = False,
    ) -> None:
        """The controller that `home` leads to; or the one `at` a place, whatever `home` says.

        `through`: what carries the calls to it, if they do not go over HTTP. `plain`: for a terminal. Invisible
        characters in the answers are written out, except in the output of processes.
        """
        self.home = home or GridHome.find()
        self._at, self._through = at, through
        self._retry_s = retry_s
        self._plain = plain
        self._on_wait = on_wait
        self._channel: tuple[Whereabouts, Channel] | None = None

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel[1].close()

    def url(self) -> str:
        """The controller's URL."""
        return (self._channel or self._find())[0].url

    def _answer(self, call: Call[T]) -> T:
        """Call the controller; retry while it is too busy, or away: Ray restarts it after a crash."""
        retry_s = (RETRY_S if call.method == "GET" else _RETRY_CHANGES_S) if self._retry_s is None else self._retry_s
        sent = replace(call, path=f"/api/v1{call.path}")
        deadline = time.monotonic() + retry_s
        has_said = False
        while True:
            is_known = self._channel is not None
            found, connections = self._channel or self._find()
            try:
                with self._waiting(found.url, call.answer_s):
                    answer = connections.ask(sent)
            except Unreachable as error:
                self.close()
                # The call may have succeeded, and only the answer was lost.
                sent = replace(sent, headers={**call.headers, "X-Grid-Retry": "1"})
                if found.ray_address and not listens(found.ray_address):
                    raise NoCluster(
                        "No cluster is running",
                        because=[f"the cluster at {found.ray_address} has ended", *self._other_place()],
                        try_next=NO_CLUSTER,
                    ) from error
                if time.monotonic() > deadline:
                    raise ControllerUnreachable(
                        f"The controller at {found.url} does not answer",
                        because=[str(error)],
                        try_next="To find the cause: grid doctor" if found.ray_address else _FROM_ELSEWHERE,
                    ) from error
                if not has_said and self._on_wait:
                    self._on_wait(f"The controller does not answer; trying again for {retry_s:.0f} s ...")
                    has_said = True
                time.sleep(_PAUSE_S)
                continue
            if answer.status == HTTPStatus.UNAUTHORIZED and is_known:
                self.close()  # another controller is there by now
                continue
            if not answer.is_success:
                failure = _error_of(answer)
                if isinstance(failure, TooBusy) and time.monotonic() + _BUSY_PAUSE_S < deadline:
                    time.sleep(_BUSY_PAUSE_S)
                    continue
                raise failure
            try:
                result: T = answer.json()
            except ValueError:
                raise self._not_grid() from None
            return plain_data(result) if self._plain and not call.as_it_is else result

    def _waiting(self, url: str, answer_s: float) -> AbstractContextManager[None]:
        """Report once what a call is waiting for; calls that normally take longer get that time first."""
        if self._on_wait is None:
            return nullcontext()
        after_s = _SLOW_S + max(0.0, answer_s - ANSWER_S)
        return message_if_slow(f"Waiting for the controller at {url} to answer ...", self._on_wait, after_s)

    def _find(self) -> tuple[Whereabouts, Channel]:
        """The controller's present place; cached until it does not answer there."""
        found = self._at or Whereabouts.of(self.home)
        if self._through is not None:
            self._channel = (found, self._through)
            return self._channel
        headers = {"X-Grid-User": user_name()}
        if found.token:
            headers["Authorization"] = f"Bearer {found.token}"
        self._channel = (found, Connections(found.url, headers, found.trust))
        return self._channel

    def _not_grid(self) -> ControllerUnreachable:
        return ControllerUnreachable(f"The server at {self.url()} is not grid's controller", try_next=_FROM_ELSEWHERE)

    def _other_place(self) -> list[str]:
        if not self.home.login.exists():
            return []
        return [f"you are also logged in elsewhere, but {self.home.controller} takes precedence while it exists"]


def _error_of(answer: Answer) -> GridError:
    try:
        return error_from_dict(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return ControllerUnreachable(f"The server answered {answer.status} with no reason", try_next=_FROM_ELSEWHERE)


def user_name() -> str:
    """The user's name for the audit log, in characters that a header may carry."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    return name.encode("ascii", "replace").decode()[:64]
