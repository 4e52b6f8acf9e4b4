"""Whether a thousand standing boosts slow down the next one."""

import asyncio
import time
from dataclasses import dataclass
from typing import Final

from bench.commands import time_in_turns
from bench.effort import Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.ours import Boosting
from bench.rounds import Halves, take_turns
from bench.stage import GRID, Stage
from bench.standing import AMOUNT, standing
from bench.transfer import transfer_shows
from distributed_grid.client import GridClient
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager

_LIMITS: Final = Limits(times_baseline=3.0)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The costs beside a number of standing boosts."""

    lending: Halves
    status: Samples
    """Calls of a client that has called before; one boost has changed since."""
    first: Samples
    """First calls of clients."""
    command: Samples

    def and_also(self, other: "_Seen") -> "_Seen":
        lending = Halves(self.lending.requests + other.lending.requests, self.lending.releases + other.lending.releases)
        return _Seen(
            lending,
            Samples(self.status.values + other.status.values),
            Samples(self.first.values + other.first.values),
            Samples(self.command.values + other.command.values),
        )


def run(stage: Stage, effort: Effort) -> Outcome:
    """Few, many, few again, so that other load on the machine affects both sides."""
    before = _beside(stage, effort.few, effort)
    many = _beside(stage, effort.many, effort)
    few = before.and_also(_beside(stage, effort.few, effort))
    both, request = many.lending.both, many.lending.request
    return Outcome(
        f"scale, {effort.many:,} active boosts",
        f"the same with {effort.few} active boosts",
        (
            Line("request", request, few.lending.request, _LIMITS),
            Line("request + release", both, few.lending.both, _LIMITS),
            Line("client.boost_status(), one changed", many.status, few.status, _LIMITS),
            Line("client.boost_status(), the first one", many.first, few.first),
            Line("grid boost status", many.command, few.command, _LIMITS),
        ),
    )


def _beside(stage: Stage, count: int, effort: Effort) -> _Seen:
    with standing(stage, count):
        lending = asyncio.run(_lend(stage, effort.calls))
        status = status_again(stage, effort.calls)
        first = _first_status(stage, effort.calls)
        command = time_in_turns({"ours": [GRID, "boost", "status"]}, stage.environment, effort.commands)["ours"]
    return _Seen(lending, status, first, command)


async def _lend(stage: Stage, rounds: int) -> Halves:
    await asyncio.sleep(0.5)  # until the view shows the last of the standing boosts
    shows = transfer_shows(stage, AMOUNT)
    async with ResourceBoostManager(stage.config) as manager:
        return (await take_turns({"ours": Boosting(manager, "transfer", AMOUNT)}, shows, rounds))["ours"]


def status_again(stage: Stage, calls: int) -> Samples:
    """Between two calls, a boost is renewed: a list in which nothing changes would be too easy."""
    client = GridClient(stage.home)
    values = []
    try:
        boost_id = client.boost_status()["boosts"][0]["boost_id"]
        for _ in range(calls):
            client.renew_boost(boost_id)
            time.sleep(0.01)
            began = time.perf_counter()
            client.boost_status()
            values.append((time.perf_counter() - began) * 1000)
    finally:
        client.close()
    return Samples.of(values)


def _first_status(stage: Stage, calls: int) -> Samples:
    """Each time a client that knows no list yet, but has a connection."""
    values = []
    for _ in range(calls):
        client = GridClient(stage.home)
        try:
            client.me()
            time.sleep(0.01)
            began = time.perf_counter()
            client.boost_status()
            values.append((time.perf_counter() - began) * 1000)
        finally:
            client.close()
    return Samples.of(values)
