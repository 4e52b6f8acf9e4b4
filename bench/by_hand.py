"""Boosts, compared with the same by hand with Ray: as a controller's client and in library mode."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from bench.effort import Effort
from bench.figures import Limits, Line, Outcome
from bench.ours import Boosting
from bench.rounds import Shows, Way, take_turns
from bench.stage import Stage, home_of_its_own
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager


@dataclass(frozen=True, slots=True)
class Comparison:
    delivery: str
    baseline: str
    limits: Limits
    by_hand: Callable[[Stage], Way]
    shows: Callable[[Stage], Shows]
    """Checks the view while 1 CPU is lent and after; created before anything is lent."""

    def run(self, stage: Stage, effort: Effort) -> Outcome:
        return asyncio.run(self._compare(stage, effort, self.delivery))

    def run_as_library(self, stage: Stage, effort: Effort) -> Outcome:
        with home_of_its_own():
            return asyncio.run(self._compare(stage, effort, f"{self.delivery}, library mode"))

    async def _compare(self, stage: Stage, effort: Effort, name: str) -> Outcome:
        by_hand, shows = self.by_hand(stage), self.shows(stage)
        async with ResourceBoostManager(stage.config) as manager:
            ways: dict[str, Way] = {"ours": Boosting(manager, self.delivery), "raw": by_hand}
            found = await take_turns(ways, shows, effort.rounds)
            alone = (await take_turns({"raw": by_hand}, shows, effort.rounds // 2))["raw"]
        ours, raw = found["ours"], found["raw"]
        return Outcome(
            name,
            self.baseline,
            (
                Line("request + release of 1 CPU", ours.both, raw.both, self.limits),
                Line("request", ours.request, raw.request),
                Line("release", ours.release, raw.release),
                Line("check: the baseline alone, against it in turns with ours", alone.both, raw.both),
            ),
        )
