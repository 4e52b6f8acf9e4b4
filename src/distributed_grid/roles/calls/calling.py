"""Calls to members that the caller waits for: a fast path while all succeed, and the handling of failures.

A transport carries the calls: Ray, or threads of this process.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from distributed_grid.errors import CallTimedOut, GridError
from distributed_grid.roles.calls.endpoints import Endpoint, EndpointUnavailable, Ref
from distributed_grid.roles.calls.failures import Failed, given_up, member_lost, timed_out


class Transport(Protocol):
    """All times are in seconds. None: no limit. Zero: only check."""

    def submit(self, endpoint: Endpoint, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ref:
        """Send a call, without waiting for it.

        Reads the target with `endpoint.current_target()`, which raises `EndpointUnavailable` if the member is away;
        then nothing was sent. What cannot be sent (an argument that cannot be copied) raises its own error.
        """

    def collect(self, refs: Sequence[Ref], within_s: float | None) -> list[Any]:
        """All values, as fast as possible. After any exception, the caller asks each reference for its `outcome`.

        Raises as soon as one call has failed, even if others have not ended.
        """

    def outcome(self, ref: Ref, endpoint: Endpoint, method: str, within_s: float | None) -> Any:
        """The value. Raises an error from `failures`: `MemberFailed`, `MemberLost`, or `CallTimedOut` for this call."""

    def first_done(self, refs: Sequence[Ref], within_s: float | None) -> int | None:
        """The index of a call that has ended, in success or failure; None if there is none yet."""

    def unfinished(self, refs: Sequence[Ref]) -> list[Ref]:
        """The calls that have not ended, in their order. Neither waits nor fetches results."""


_COUNTING: Final = threading.Lock()
"""One lock for all: it is held only for a few additions, and a group takes it once instead of once for each member."""


class Call:
    """A method with its arguments and its deadline."""

    __slots__ = ("args", "deadline_s", "kwargs", "method", "transport", "until")

    def __init__(
        self,
        transport: Transport,
        method: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        deadline_s: float | None,
    ) -> None:
        self.transport, self.method, self.args, self.kwargs = transport, method, args, kwargs
        self.deadline_s = deadline_s
        self.until = None if deadline_s is None else time.monotonic() + deadline_s

    @property
    def left_s(self) -> float | None:
        return None if self.until is None else max(0.0, self.until - time.monotonic())

    def on_all(self, endpoints: Sequence[Endpoint], stop_at_first: bool = False) -> list[Any]:
        """The values in the order of the endpoints, with a `Failed` in place of each call that failed.

        Waits until all have ended, until the deadline, or until the first failure. A call that was sent is never sent
        again.
        """
        submit, method, args, kwargs = self.transport.submit, self.method, self.args, self.kwargs
        refs: list[Ref] = []
        count(endpoints, 1)
        try:
            try:
                for endpoint in endpoints:
                    refs.append(submit(endpoint, method, args, kwargs))
            except EndpointUnavailable:
                return self._one_by_one(endpoints, refs, stop_at_first)
            try:
                return self.transport.collect(refs, self.left_s)
            except Exception:  # noqa: BLE001 (members raise anything; each call is asked for its outcome)
                return self._one_by_one(endpoints, refs, stop_at_first)
        finally:
            count(endpoints, -1)

    def send(self, endpoint: Endpoint) -> Ref:
        """Send the call to one member, and wait for it if it is away. Raises `MemberLost` or `CallTimedOut`."""
        while True:
            try:
                return self.transport.submit(endpoint, self.method, self.args, self.kwargs)
            except EndpointUnavailable:
                if not endpoint.wait(self.left_s):
                    raise timed_out(endpoint, self.method, self.deadline_s) from None
                if endpoint.retired:
                    raise member_lost(endpoint, self.method, endpoint.why, sent=False) from None

    def ended(self, ref: Ref, endpoint: Endpoint) -> Any:
        """The value, or a `Failed`."""
        try:
            return self.transport.outcome(ref, endpoint, self.method, self.left_s)
        except CallTimedOut:
            endpoint.remember(ref)  # the call continues on the member
            return Failed(timed_out(endpoint, self.method, self.deadline_s))
        except GridError as error:
            return Failed(error)

    def _one_by_one(self, endpoints: Sequence[Endpoint], refs: list[Ref], stop_at_first: bool) -> list[Any]:
        """Finish a call that only the first endpoints have: send it to all that are up, then to the others."""
        sent: dict[int, Ref] = dict(enumerate(refs))
        found: dict[int, Any] = {}
        rest = range(len(refs), len(endpoints))
        for index in rest:
            with suppress(EndpointUnavailable):
                sent[index] = self.transport.submit(endpoints[index], self.method, self.args, self.kwargs)
        for index in rest:
            if index not in sent:
                try:
                    sent[index] = self.send(endpoints[index])
                except GridError as error:
                    found[index] = Failed(error)
        if stop_at_first:
            self._until_one_fails(endpoints, sent, found)
        for index in sent.keys() - found.keys():
            found[index] = self.ended(sent[index], endpoints[index])
        return [found[index] for index in range(len(endpoints))]

    def _until_one_fails(self, endpoints: Sequence[Endpoint], sent: Mapping[int, Ref], found: dict[int, Any]) -> None:
        """Give up the calls that have not ended by then. They continue on their members."""
        under_way = list(sent)
        failed = bool(found)  # a member that was away is gone
        while under_way and not failed:
            done = self.transport.first_done([sent[index] for index in under_way], self.left_s)
            if done is None:
                return
            index = under_way.pop(done)
            found[index] = self.ended(sent[index], endpoints[index])
            failed = isinstance(found[index], Failed)
        for other in under_way:
            endpoints[other].remember(sent[other])
            found[other] = Failed(given_up(endpoints[other], self.method))


def count(endpoints: Sequence[Endpoint], by: int) -> None:
    with _COUNTING:
        for endpoint in endpoints:
            endpoint.waited += by
