"""Reserving a CPU on another node and giving it up, against Ray's placement groups."""

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Final

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from bench.effort import Effort
from bench.figures import Limits, Line, Outcome
from bench.ours import Boosting
from bench.rounds import Shows, take_turns
from bench.stage import SOURCE, Stage, home_of_its_own
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager

_BASELINE: Final = "a detached placement group on that node: made, waited for, removed"
_LIMITS: Final = Limits(times_baseline=2.0)
_READY_S: Final = 10.0


@dataclass
class ByHand:
    """The same placement group as a reserved boost's, without anybody who remembers it."""

    stage: Stage
    _group: PlacementGroup | None = field(default=None, init=False)

    async def request(self) -> None:
        self._group = placement_group(
            [{"CPU": 1.0}],
            name=f"bench-{uuid.uuid4()}",
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": self.stage.node_ids[SOURCE]}],
        )
        if not self._group.wait(_READY_S):
            raise RuntimeError("the placement group was not ready in time")

    async def release(self) -> None:
        remove_placement_group(self._group)


def reserve_shows(stage: Stage) -> Shows:
    """What the view shows while a CPU is reserved and after; to be made while it is not."""
    free = stage.free_cpus(SOURCE)
    return lambda lent: stage.free_cpus(SOURCE) == free - (1.0 if lent else 0.0)


def run(stage: Stage, effort: Effort) -> Outcome:
    return asyncio.run(_compare(stage, effort, "reserve", _LIMITS))


def run_as_library(stage: Stage, effort: Effort) -> Outcome:
    with home_of_its_own():
        return asyncio.run(_compare(stage, effort, "reserve, library mode", Limits()))


async def _compare(stage: Stage, effort: Effort, name: str, limits: Limits) -> Outcome:
    by_hand, shows = ByHand(stage), reserve_shows(stage)
    async with ResourceBoostManager(stage.config) as manager:
        found = await take_turns({"ours": Boosting(manager, "reserve"), "raw": by_hand}, shows, effort.rounds)
        alone = (await take_turns({"raw": by_hand}, shows, effort.rounds // 2))["raw"]
    ours, raw = found["ours"], found["raw"]
    return Outcome(
        name,
        _BASELINE,
        (
            Line("request + release of 1 CPU", ours.both, raw.both, limits),
            Line("request", ours.request, raw.request),
            Line("release", ours.release, raw.release),
            Line("check: the baseline alone, against it in turns with ours", alone.both, raw.both),
        ),
    )
