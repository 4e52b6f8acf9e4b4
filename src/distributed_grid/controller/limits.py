"""Limits on each caller's use of the controller, so that no caller keeps the others waiting.

Every caller has a bucket of requests, which refills at `limits.requests_per_second`. A request takes one from it, and
one more for each further `REQUEST_S` of the controller's CPU time, in the event loop or in a thread. A request of a
caller whose bucket is almost full begins at once. All others take turns, and leave the event loop free in between: the
requests of a caller that has just used more, and those that a caller sends together, of which the second begins after
the first has been counted. A caller whose bucket is empty has no turn until it refills.

The installation's own token has no limits: its owner could end grid as well.

An address that sends too many missing or wrong tokens is blocked for a while.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final

from distributed_grid import threads
from distributed_grid.config import CallerLimits
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import TooManyRequests
from distributed_grid.model.leases import Lease
from distributed_grid.model.listening import is_loopback
from distributed_grid.model.principals import Principal

LONGEST_DELAY_S: Final = 5.0
"""A request waits at most this long before it begins; then it is refused."""
AT_ONCE: Final = 256
"""Requests of one caller under way at once."""
REQUEST_S: Final = 0.0005
"""The CPU time that one request may use; what it uses beyond counts as further requests."""
BURST_S: Final = 4.0
"""A full bucket has as much as refills in this time."""
LIGHT_S: Final = 0.4
"""A bucket is almost full if no more is missing than refills in this time."""
_MOST_REST: Final = 10
"""After a request that took a turn, the next one waits as many times its CPU time as callers take turns, but at most
this many times. So one busy program leaves half of the event loop free, and ten leave nine tenths."""
_TAKES_TURNS_S: Final = 4.0
"""A caller counts among those that take turns for this long after its last turn."""
_LOOK_AGAIN_S: Final = 0.02
_MOST_KNOWN: Final = 10_000
MOST_FAILURES: Final = 20
WINDOW_S: Final = 60.0
"""Failures of an address count together for this long after the first of them."""
BLOCKED_S: Final = 60.0
_MOST_ADDRESSES: Final = 4096


@dataclass
class Rate:
    """A bucket that may be overdrawn: the debt is the time that the next request has to wait."""

    per_second: float
    full_at: float = 0.0

    def delay(self, now: float) -> float:
        """How long a request has to wait before it may begin."""
        return max(0.0, self.full_at - now - BURST_S)

    def is_light(self, now: float) -> bool:
        """Whether its caller has used little recently."""
        return self.full_at - now <= LIGHT_S

    def take(self, requests: float, now: float) -> None:
        """Count requests, but never keep the caller out for longer than `LONGEST_DELAY_S`."""
        full_at = max(self.full_at, now) + requests / self.per_second
        self.full_at = min(full_at, now + BURST_S + LONGEST_DELAY_S)


@dataclass
class _Caller:
    name: str
    rate: Rate
    under_way: int = 0
    is_beginning: bool = False
    """A request of this caller began in this turn of the event loop, and has not been counted yet."""
    waiting: "deque[tuple[float, asyncio.Future[bool]]]" = field(default_factory=deque)
    """For each request that waits, by when it is refused, and whether it may begin; the first one comes first."""

    def may_begin(self, now: float) -> bool:
        return not self.is_beginning and self.under_way < AT_ONCE and not self.rate.delay(now)

    def has_begun(self) -> None:
        self.is_beginning = False


class TokenLimits:
    """The requests of all callers. Knows only valid tokens, or addresses, so that guessing cannot make it grow."""

    def __init__(
        self, configured: CallerLimits, whose: str = "token", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.configured = configured
        self._whose = whose
        self._clock = clock
        self._callers: dict[str, _Caller] = {}
        self._queue: OrderedDict[str, _Caller] = OrderedDict()
        """The callers with waiting requests; the one whose turn is next comes first."""
        self._turned: dict[str, float] = {}
        """When each caller had its last turn."""
        self._used_s = 0.0
        """CPU time of requests that had to wait, since the last rest."""
        self._giving: asyncio.Task[None] | None = None

    async def run(
        self, name: str, call: Callable[[], Awaitable[None]], refuse: Callable[[TooManyRequests], Awaitable[None]]
    ) -> None:
        """Make a caller's call when its turn comes, and count what it costs; or refuse it."""
        one, spent_s, has_waited = self._caller(name), 0.0, False

        def used(seconds: float) -> None:
            nonlocal spent_s
            before, spent_s = spent_s, spent_s + seconds
            one.rate.take((max(spent_s, REQUEST_S) - max(before, REQUEST_S)) / REQUEST_S, self._clock())
            self._used_s += seconds if has_waited else 0.0

        async def in_turn() -> None:
            nonlocal has_waited
            now = self._clock()
            if one.waiting or not (one.rate.is_light(now) and one.may_begin(now)):
                has_waited = True
                if not await self._turn(one):
                    await refuse(self._refusal(one))
                    return
            one.is_beginning = True
            asyncio.get_running_loop().call_soon(one.has_begun)  # by then its first step is counted
            one.rate.take(1.0, self._clock())
            one.under_way += 1
            try:
                await call()
            finally:
                one.under_way -= 1

        threads.used.set(used)
        await threads.timed(in_turn(), used)

    def _caller(self, name: str) -> _Caller:
        if name not in self._callers:
            now = self._clock()
            self._callers = {
                each.name: each
                for each in self._callers.values()
                if each.under_way or each.waiting or each.rate.full_at > now
            }
            if len(self._callers) >= _MOST_KNOWN:
                del self._callers[next(iter(self._callers))]
            self._callers[name] = _Caller(name, Rate(float(self.configured.requests_per_second)))
        return self._callers[name]

    async def _turn(self, one: _Caller) -> bool:
        """Wait for a request's turn; False if it did not come in time."""
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        one.waiting.append((self._clock() + LONGEST_DELAY_S, turn))
        self._queue[one.name] = one
        if self._giving is None or self._giving.done():
            self._giving = asyncio.create_task(self._give_turns())
        return await turn

    async def _give_turns(self) -> None:
        """Let requests begin, or be refused, one at a time: many answers at once would make other callers wait."""
        while self._queue:
            now = self._clock()
            due = (one for one in self._queue.values() if one.may_begin(now) or one.waiting[0][0] <= now)
            if (one := next(due, None)) is None:
                await asyncio.sleep(_LOOK_AGAIN_S)
                continue
            self._turned[one.name] = now
            _, turn = one.waiting.popleft()
            self._queue.move_to_end(one.name)
            if not one.waiting:
                del self._queue[one.name]
            if not turn.done():  # otherwise it was cancelled
                turn.set_result(one.may_begin(now))
                await asyncio.sleep(0)  # the request runs now
            await asyncio.sleep(self._rest_s())

    def _rest_s(self) -> float:
        since = self._clock() - _TAKES_TURNS_S
        self._turned = {name: at for name, at in self._turned.items() if at > since}
        rest_s, self._used_s = self._used_s * min(_MOST_REST, len(self._turned.keys() | self._queue.keys())), 0.0
        return rest_s

    def _refusal(self, one: _Caller) -> TooManyRequests:
        if one.under_way >= AT_ONCE:
            return TooManyRequests(
                f"{AT_ONCE} requests of your {self._whose} are already in progress",
                try_next="Wait for some of them to end.",
            )
        return TooManyRequests(
            f"Your {self._whose} sends more than {self.configured.requests_per_second} requests per second",
            because=[
                f"the request waited for {LONGEST_DELAY_S:.0f} s",
                "a request that needs much of the controller's CPU time counts as several",
            ],
            try_next="Send fewer requests; to follow events, use one event stream. "
            "The limit is limits.requests_per_second in the configuration.",
            retry_after_s=LONGEST_DELAY_S,
        )


def check_room_inside(engine: Engine, asker: Principal, lease: Lease) -> None:
    """Raise `TooManyRequests` if too many programs are inside one user's boosts: each is written to disk and shown."""
    most = engine.config.limits.boosts
    if asker.token_id is None:
        return
    if sum(len(one.programs) for one in engine.parts.ledger if one.requester == lease.requester) >= most:
        raise TooManyRequests(
            f"The boosts of {lease.requester} already have {most} programs inside, the maximum for a user",
            try_next="Let some of them end, or raise limits.boosts in the configuration.",
        )


@dataclass(slots=True)
class _Failures:
    until: float
    failures: int = 0
    tokens: set[bytes] = field(default_factory=set)


class FailedAttempts:
    """Failed attempts to get in, per client address: an address that fails too often is blocked for a while.

    A token cannot be guessed, so this is about noise, load, and an audit log that shows the attempts. Hence two rules:

    - An address with too many failures gets no more answers to failures.
    - An address that tried too many *different* tokens gets no answers at all, right token or not: it is guessing. A
      job that goes on with a revoked token tries only one, and must not lock out the other programs on its machine. On
      loopback a valid token is never locked out, because the owner must always get through.

    It tracks at most `addresses` addresses with at most `limit` short digests each: clients cannot fill the memory.
    """

    def __init__(
        self,
        *,
        limit: int = MOST_FAILURES,
        addresses: int = _MOST_ADDRESSES,
        on_block: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limit = limit
        self._addresses = addresses
        self._on_block = on_block
        self._records: dict[str, _Failures] = {}

    def __len__(self) -> int:
        return len(self._records)

    def failed(self, address: str, given: bytes, *, now: float) -> float:
        """Count one failure; the seconds for which to block the sender; zero until that is due."""
        key = network_of(address)
        record = self._living(key, now) or self._new(key, now)
        record.failures += 1
        if given and len(record.tokens) < self._limit:
            record.tokens.add(hashlib.sha256(given).digest()[:8])
        if record.failures < self._limit:
            return 0.0
        if record.failures == self._limit:
            record.until = now + BLOCKED_S
            self._on_block(address)
        return record.until - now

    def guesses(self, address: str, *, now: float) -> float:
        """How long a caller with a valid token has to wait because its address has guessed; mostly zero."""
        if not self._records or (record := self._living(network_of(address), now)) is None:
            return 0.0
        return record.until - now if len(record.tokens) >= self._limit and not is_loopback(address) else 0.0

    def _living(self, key: str, now: float) -> _Failures | None:
        record = self._records.get(key)
        if record is not None and now >= record.until:
            del self._records[key]
            return None
        return record

    def _new(self, key: str, now: float) -> _Failures:
        if len(self._records) >= self._addresses:
            self._records = {k: record for k, record in self._records.items() if record.until > now}
        if len(self._records) >= self._addresses:
            del self._records[next(iter(self._records))]  # the oldest
        self._records[key] = record = _Failures(now + WINDOW_S)
        return record


def network_of(address: str) -> str:
    """The addresses that count as one client: one IPv4 address, or the /64 of an IPv6 one, which one machine usually
    has."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or int(found) >> 64)
