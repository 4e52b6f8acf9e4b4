"""How much one token may ask for. The installation's own token has no limits: its owner could end grid as well."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.config import CallerLimits
from distributed_grid.errors import TooManyRequests

LONGEST_DELAY_S: Final = 5.0
"""Who asks a little too fast is answered later; who would have to wait for longer than this is refused."""
REFUSED_AFTER_S: Final = 1.0
"""A refusal comes no sooner, so that asking in a loop costs the controller little."""
AT_ONCE: Final = 256
_BURST_S: Final = 4.0
_REFUSAL_COUNTS: Final = 5
"""A request that is refused counts like so many: who sends only such requests has a fifth of the rate."""
_BYTES_COUNT: Final = 20_000
"""So many bytes of an answer count like one more request."""


@dataclass
class Rate:
    """A token bucket that may be overdrawn: the debt is the time that the next request has to wait."""

    per_second: float
    spent_until: float = 0.0
    """When the bucket will be full again."""

    def delay(self, now: float) -> float:
        """Count one request; how long it has to wait. One that would wait for too long is not counted."""
        full_at = max(self.spent_until, now) + 1 / self.per_second
        wait_s = max(0.0, full_at - now - _BURST_S)
        if wait_s <= LONGEST_DELAY_S:
            self.spent_until = full_at
        return wait_s

    def add(self, requests: int, now: float) -> None:
        """Count more, but never so much that the token is out for longer than `LONGEST_DELAY_S`."""
        full_at = max(self.spent_until, now) + requests / self.per_second
        self.spent_until = min(full_at, max(self.spent_until, now + _BURST_S + LONGEST_DELAY_S))


@dataclass
class TokenLimits:
    """What each token has asked for lately. Knows only valid tokens, so that it cannot grow by guessing."""

    configured: CallerLimits
    _rates: dict[str, Rate] = field(default_factory=dict)
    _under_way: Counter[str] = field(default_factory=Counter)

    def delay(self, token_id: str, now: float) -> float:
        """How many seconds a request waits before it is read; raises `TooManyRequests`."""
        if token_id not in self._rates:
            self._rates = {id_: rate for id_, rate in self._rates.items() if rate.spent_until > now}
            self._rates[token_id] = Rate(float(self.configured.requests_per_second))
        wait_s = self._rates[token_id].delay(now)
        if wait_s > LONGEST_DELAY_S:
            raise TooManyRequests(
                f"Your token asks for more than {self.configured.requests_per_second} things a second",
                because=[f"the request would have to wait for {wait_s:.0f} s"],
                try_next="Ask less often; to follow what happens, use one event stream. "
                "The limit is limits.requests_per_second in the configuration.",
                retry_after_s=LONGEST_DELAY_S,
            )
        return wait_s

    def answered(self, token_id: str, now: float, *, status: int = 200, size: int = 0) -> None:
        """Take note of an answer, or of a part of it: refusals and long answers count like several requests."""
        more = (_REFUSAL_COUNTS - 1 if 400 <= status < 500 else 0) + size // _BYTES_COUNT
        if more and token_id in self._rates:
            self._rates[token_id].add(more, now)

    @contextmanager
    def under_way(self, token_id: str) -> Iterator[None]:
        """While a request of this token is answered."""
        if self._under_way[token_id] >= AT_ONCE:
            raise TooManyRequests(
                f"{AT_ONCE} requests of your token are under way already", try_next="Wait for some of them to end."
            )
        self._under_way[token_id] += 1
        try:
            yield
        finally:
            self._under_way[token_id] -= 1
            if not self._under_way[token_id]:
                del self._under_way[token_id]
