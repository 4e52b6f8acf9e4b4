"""Repeated request and release, for several ways of lending in turns."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from bench.figures import Samples

_PAUSE_S: Final = 0.030
_VIEW_POLL_S: Final = 0.001
_VIEW_PATIENCE_S: Final = 10.0


Shows = Callable[[bool], bool]
"""Whether the cluster's view shows the capacity lent (True), or returned (False)."""


class Way(Protocol):
    """One way to lend capacity and to take it back."""

    async def request(self) -> None: ...
    async def release(self) -> None: ...


@dataclass
class Halves:
    """Milliseconds of the two halves of every round."""

    requests: list[float] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)

    @property
    def request(self) -> Samples:
        return Samples.of(self.requests)

    @property
    def release(self) -> Samples:
        return Samples.of(self.releases)

    @property
    def both(self) -> Samples:
        return self.request.plus(self.release)


async def take_turns(ways: Mapping[str, Way], shows: Shows, rounds: int) -> dict[str, Halves]:
    """Every way once per round, in random order, so that a slow moment of the machine affects all alike.

    Before every half: wait until the view shows the previous half, then pause for a random part of 30 ms.
    - The wait, because otherwise a half measures something else. To return capacity, the borrower shrinks, and the
      lender grows once the view shows the shrink. If the view has not yet shown the previous growth, it "shows the
      shrink" at once, and a loop without a wait looks faster than it ever is in practice.
    - The pause, because raylets report at a fixed interval. A request right after a report always waits one whole
      period; a request at a random time waits half of one on average, as users' requests do.
    """
    found = {name: Halves() for name in ways}
    order = list(ways)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            way = ways[name]
            await _settled(shows, lent=False)
            began = time.perf_counter()
            await way.request()
            found[name].requests.append(_ms_since(began))
            await _settled(shows, lent=True)
            began = time.perf_counter()
            await way.release()
            found[name].releases.append(_ms_since(began))
    await _settled(shows, lent=False)  # the next measurement begins with an accurate view
    return found


async def _settled(shows: Shows, *, lent: bool) -> None:
    deadline = time.monotonic() + _VIEW_PATIENCE_S
    while not shows(lent):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster's view does not show the capacity {'lent' if lent else 'returned'}")
        await asyncio.sleep(_VIEW_POLL_S)
    # Not time.sleep: in library mode grid's own loop has work to finish here, as it would between two requests.
    await asyncio.sleep(random.uniform(0, _PAUSE_S))


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000
