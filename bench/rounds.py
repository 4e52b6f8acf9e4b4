"""Request, release, request, release: several ways of lending in turns, in one rhythm."""

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
"""Whether the cluster's view shows the thing lent (True), or shows it back home (False)."""


class Way(Protocol):
    """One way to lend something and to take it back."""

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
    """Every way once per round, in random order, so that a slow moment of the machine hits all alike.

    Before every half: wait until the view shows the half before it, then a random part of 30 ms.
    - The wait, because otherwise a half measures something else. To take back what was lent, a node shrinks and
      its lender grows once the view shows the shrink; if the view had never shown the growth of a moment ago, it
      "shows the shrink" at once, and a loop without a pause looks fast that in practice never is.
    - The pause, because raylets report in a fixed rhythm. Who always begins right after a report always waits
      one whole period; a random beginning waits for half of one on average, as people's requests do.
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
    await _settled(shows, lent=False)  # whoever measures next begins with a true view
    return found


async def _settled(shows: Shows, *, lent: bool) -> None:
    deadline = time.monotonic() + _VIEW_PATIENCE_S
    while not shows(lent):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the cluster's view does not show the capacity {'lent' if lent else 'back home'}")
        await asyncio.sleep(_VIEW_POLL_S)
    # Not time.sleep: in library mode grid's own loop has work to finish here, as it would between two requests.
    await asyncio.sleep(random.uniform(0, _PAUSE_S))


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1000
