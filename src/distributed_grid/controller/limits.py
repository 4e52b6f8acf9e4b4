"""How much one token may ask for. The installation's own token has no limits: its owner could end grid as well."""

import asyncio
import time
import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from distributed_grid.config import CallerLimits
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import TooManyRequests
from distributed_grid.model.leases import Lease
from distributed_grid.model.principals import Principal

LONGEST_DELAY_S: Final = 5.0
"""A caller that is slightly too fast is answered later; one that would have to wait longer than this is refused."""
REFUSED_AFTER_S: Final = 1.0
"""A refusal is delayed by this much, so that requests in a loop cost the controller little."""
AT_ONCE: Final = 256
_BURST_S: Final = 4.0
_REFUSAL_COUNTS: Final = 5
"""A refused request counts as this many: a caller that sends only such requests has a fifth of the rate."""
_BYTES_COUNT: Final = 20_000
"""This many bytes of an answer count as one more request."""
_MOST_FOR_BYTES: Final = 20
"""The most that an answer counts for its length: most of it may be about what other callers have."""
FREE_S: Final = 0.001
_SECOND_COUNTS: Final = 2000
"""Requests per second of the event loop, which serves all callers. A call may keep the loop busy for `FREE_S`; after
that, each millisecond counts as two requests. A token that only makes such calls has a fortieth of the loop."""
_MOST_AHEAD: Final = 50
"""The most that a call counts before its cost is known."""
_HALVES_S: Final = 30.0
_MOST_KNOWN: Final = 10_000

T = TypeVar("T")


@dataclass
class Rate:
    """A token bucket that may be overdrawn: the debt is the time that the next request has to wait."""

    per_second: float
    spent_until: float = 0.0
    """When the bucket will be full again."""

    def delay(self, now: float, requests: float = 1.0) -> float:
        """Count a request; how long it has to wait. A request that would wait too long is not counted."""
        full_at = max(self.spent_until, now) + requests / self.per_second
        wait_s = max(0.0, full_at - now - _BURST_S)
        if wait_s <= LONGEST_DELAY_S:
            self.spent_until = full_at
        return wait_s

    def add(self, requests: float, now: float) -> None:
        """Count more requests (fewer if negative), but never keep the token out for longer than `LONGEST_DELAY_S`."""
        full_at = max(self.spent_until, now) + requests / self.per_second
        self.spent_until = min(full_at, max(self.spent_until, now + _BURST_S + LONGEST_DELAY_S))


@dataclass
class Cost:
    """The recent cost of calls of one kind, in requests beyond the first: the maximum, which decays over time."""

    requests: float = 0.0
    since: float = 0.0

    def expected(self, now: float) -> float:
        found = min(_MOST_AHEAD, self.requests * 0.5 ** ((now - self.since) / _HALVES_S))
        return found if found >= 1.0 else 0.0

    def was(self, requests: float, now: float) -> None:
        if requests >= self.expected(now):
            self.requests, self.since = requests, now


@dataclass
class TokenLimits:
    """What each token has asked for recently. Tracks only valid tokens, so that guessing cannot make it grow."""

    configured: CallerLimits
    whose: str = "token"
    _rates: dict[str, Rate] = field(default_factory=dict)
    _under_way: Counter[str] = field(default_factory=Counter)

    def delay(self, token_id: str, now: float) -> float:
        """How many seconds a request waits before it is read; raises `TooManyRequests`."""
        if token_id not in self._rates:
            self._rates = {id_: rate for id_, rate in self._rates.items() if rate.spent_until > now}
            if len(self._rates) >= _MOST_KNOWN:
                del self._rates[next(iter(self._rates))]
            self._rates[token_id] = Rate(float(self.configured.requests_per_second))
        wait_s = self._rates[token_id].delay(now)
        self._check_wait(wait_s)
        return wait_s

    def _check_wait(self, wait_s: float) -> None:
        if wait_s > LONGEST_DELAY_S:
            raise TooManyRequests(
                f"Your {self.whose} asks for more than {self.configured.requests_per_second} things a second",
                because=[
                    f"the request would have to wait for {wait_s:.0f} s",
                    "a long answer, and one that takes long to work out, count like several",
                ],
                try_next="Ask less often; to follow what happens, use one event stream. "
                "The limit is limits.requests_per_second in the configuration.",
                retry_after_s=LONGEST_DELAY_S,
            )

    def answered(self, token_id: str, now: float, *, status: int = 200, size: int = 0) -> None:
        """Note an answer or a part of it: refusals and long answers count as several requests."""
        more = (_REFUSAL_COUNTS - 1 if 400 <= status < 500 else 0) + min(size // _BYTES_COUNT, _MOST_FOR_BYTES)
        if more and token_id in self._rates:
            self._rates[token_id].add(more, now)

    async def weighed(self, token_id: str, cost: Cost, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a call that counts as several requests if it blocks the event loop for long.

        The recent cost of such calls is counted in advance, so that few of them begin before the first one is counted.
        """
        rate = self._rates.get(token_id)
        if rate is None:
            return await call()
        if ahead := cost.expected(time.monotonic()):
            wait_s = rate.delay(time.monotonic(), ahead)
            await asyncio.sleep(wait_s if wait_s <= LONGEST_DELAY_S else REFUSED_AFTER_S)
            self._check_wait(wait_s)

        def took(seconds: float) -> None:
            requests, now = max(0.0, seconds - FREE_S) * _SECOND_COUNTS, time.monotonic()
            cost.was(requests, now)
            rate.add(requests - ahead, now)

        return await timed(call(), took)

    @contextmanager
    def under_way(self, token_id: str) -> Iterator[None]:
        """While a request of this token is answered."""
        if self._under_way[token_id] >= AT_ONCE:
            raise TooManyRequests(
                f"{AT_ONCE} requests of your {self.whose} are under way already",
                try_next="Wait for some of them to end.",
            )
        self._under_way[token_id] += 1
        try:
            yield
        finally:
            self._under_way[token_id] -= 1
            if not self._under_way[token_id]:
                del self._under_way[token_id]


@types.coroutine
def timed(call: Coroutine[Any, Any, T], took: Callable[[float], None]) -> Generator[Any, Any, T]:
    """Await a call, then report for how many seconds it kept the event loop busy."""
    spent, go_on, given = 0.0, call.send, None
    try:
        while True:
            began = time.thread_time()
            try:
                awaited = go_on(given)
            except StopIteration as done:
                answer: T = done.value
                return answer
            finally:
                spent += time.thread_time() - began
            try:
                go_on, given = call.send, (yield awaited)
            except BaseException as error:  # noqa: BLE001 - it belongs to the call: mostly a cancellation
                go_on, given = call.throw, error
    finally:
        took(spent)


def check_room_inside(engine: Engine, asker: Principal, lease: Lease) -> None:
    """Raise `TooManyRequests` if too many programs are inside one user's boosts: each is written to disk and shown."""
    most = engine.config.limits.boosts
    if asker.token_id is None:
        return
    if sum(len(one.programs) for one in engine.parts.ledger if one.requester == lease.requester) >= most:
        raise TooManyRequests(
            f"The boosts of {lease.requester} have {most} programs inside, which is the most that a user may have",
            try_next="Let some of them end, or raise limits.boosts in the configuration.",
        )
