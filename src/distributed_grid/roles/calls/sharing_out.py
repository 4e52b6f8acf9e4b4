"""Distributes many shards over few members: a member gets the next shard when it finishes one."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from distributed_grid.errors import GridError, MemberLost
from distributed_grid.roles.calls.calling import Call, Transport, count
from distributed_grid.roles.calls.endpoints import Endpoint, EndpointUnavailable, Ref
from distributed_grid.roles.calls.failures import Failed, no_members, none_free, timed_out

_LOOK_AGAIN_S: Final = 0.05
"""The longest single wait while a member is away and may come back."""
_NEWCOMERS_S: Final = 0.25
"""The longest single wait while no member is away: the role may be scaled."""


@dataclass(frozen=True, slots=True)
class MapOptions:
    deadline_s: float | None
    """For each shard: the limit for its call, and for finding a member when none is working."""
    at_once: int
    """Shards that a member works on at a time; at most its concurrency."""
    stop_on_error: bool
    """Send no more shards after one has failed."""


@dataclass(slots=True)
class _SentShard:
    index: int
    endpoint: Endpoint
    target: Any
    call: Call
    ref: Ref
    late: bool = False
    """The call was given up, but the member still works on it and gets no other shard in its place."""


class SharingOut:
    """One `map`. Each shard is sent once. A lost member gets no more until it is back: else it would fail them all."""

    def __init__(
        self,
        transport: Transport,
        first: Endpoint,
        endpoints: Callable[[], Sequence[Endpoint]],
        method: str,
        shards: Iterable[Any],
        others: tuple[tuple[Any, ...], Mapping[str, Any]],
        options: MapOptions,
    ) -> None:
        """`endpoints`: called repeatedly, returns the current ones. `first`: one of them, for error messages."""
        self._transport, self._endpoints, self._method, self._options = transport, endpoints, method, options
        self._first = first
        self._others = others
        """The arguments that are the same for all shards."""
        self._shards: Iterator[tuple[int, Any]] = enumerate(shards)
        self._next: tuple[int, Any] | None = None
        self._found: dict[int, Any] = {}
        self._out: list[_SentShard] = []
        self._lost: dict[Endpoint, Any] = {}
        """By endpoint, the target that was lost. An endpoint with another target is back."""
        self._stalled_at: float | None = None

    def run(self) -> list[Any]:
        """The values in the order of the shards, with a `Failed` in place of each call that failed."""
        try:
            self._next = next(self._shards, None)
            while self._next is not None or self._working():
                while self._next is not None and (endpoint := self._free()) is not None:
                    self._give(endpoint, *self._next)
                if not self._working() and self._next is not None and (why := self._hopeless()):
                    self._give_up(why)
                else:
                    self._wait()
        finally:
            count([one.endpoint for one in self._out], -1)
            for one in self._out:
                one.endpoint.remember(one.ref)
        return [self._found[index] for index in range(len(self._found))]

    def _working(self) -> bool:
        return any(not one.late for one in self._out)

    def _free(self) -> Endpoint | None:
        """The member with the fewest shards that can take one more."""
        busy = Counter(one.endpoint for one in self._out)
        most = self._options.at_once
        free = [
            endpoint
            for endpoint in self._endpoints()
            if self._is_there(endpoint) and busy[endpoint] < min(most, endpoint.concurrency)
        ]
        return min(free, key=lambda endpoint: busy[endpoint], default=None)

    def _is_there(self, endpoint: Endpoint) -> bool:
        target = endpoint.target
        return target is not None and self._lost.get(endpoint) is not target

    def _give(self, endpoint: Endpoint, index: int, shard: Any) -> None:
        args, kwargs = self._others
        call = Call(self._transport, self._method, (shard, *args), kwargs, self._options.deadline_s)
        target = endpoint.target
        try:
            ref = self._transport.submit(endpoint, self._method, call.args, kwargs)
        except EndpointUnavailable:
            return  # the member has just left, so it is no longer free
        count([endpoint], 1)
        self._out.append(_SentShard(index, endpoint, target, call, ref))
        self._stalled_at = None
        self._next = next(self._shards, None)

    def _wait(self) -> None:
        """Wait until a call ends, a call is late, or a member may be back."""
        if not self._out:
            time.sleep(_LOOK_AGAIN_S)
            return
        done = self._transport.first_done([one.ref for one in self._out], self._patience_s())
        if done is not None:
            self._done(self._out.pop(done))
            return
        for one in self._out:
            if not one.late and one.call.left_s == 0:
                one.late = True
                self._fail(one.index, timed_out(one.endpoint, self._method, self._options.deadline_s))

    def _patience_s(self) -> float | None:
        waits = [left for one in self._out if not one.late and (left := one.call.left_s) is not None]
        if self._next is not None:
            is_short = self._stalled_at is not None or not all(map(self._is_there, self._endpoints()))
            waits.append(_LOOK_AGAIN_S if is_short else _NEWCOMERS_S)
        return min(waits, default=None)

    def _done(self, one: _SentShard) -> None:
        count([one.endpoint], -1)
        if one.late:
            return
        try:
            self._found[one.index] = self._transport.outcome(one.ref, one.endpoint, self._method, None)
        except GridError as error:
            if isinstance(error, MemberLost):
                self._lost[one.endpoint] = one.target
            self._fail(one.index, error)

    def _fail(self, index: int, error: GridError) -> None:
        self._found[index] = Failed(error)
        if self._options.stop_on_error:
            self._next = None

    def _hopeless(self) -> Callable[[], GridError] | None:
        """The error if no member takes the next shard: all are gone, or too long away or busy with late calls."""
        role, within = self._first.role, self._options.deadline_s
        if all(endpoint.retired for endpoint in self._endpoints()):
            return lambda: no_members(role, self._first.why)
        now = time.monotonic()
        if self._stalled_at is None:
            self._stalled_at = now
        if within is None or now - self._stalled_at < within:
            return None
        return lambda: none_free(role, self._method, within)

    def _give_up(self, error: Callable[[], GridError]) -> None:
        """Fail all remaining shards at once: one by one, each would wait as long."""
        while self._next is not None:
            index, _ = self._next
            self._next = next(self._shards, None)
            self._fail(index, error())
