"""Reserving and releasing a CPU on another node, compared with Ray's placement groups."""

import uuid
from dataclasses import dataclass, field
from typing import Final

from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from bench.by_hand import Comparison
from bench.figures import Limits
from bench.rounds import Shows
from bench.stage import SOURCE, Stage

_BASELINE: Final = "a detached placement group on that node: made, waited for, removed"
_LIMITS: Final = Limits(times_baseline=2.0)
_READY_S: Final = 10.0


@dataclass
class ByHand:
    """The same placement group as a reserved boost's, without a ledger."""

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
    """Checks the view while a CPU is reserved and after; create it before anything is reserved."""
    free = stage.free_cpus(SOURCE)
    return lambda lent: stage.free_cpus(SOURCE) == free - (1.0 if lent else 0.0)


comparison: Final = Comparison("reserve", _BASELINE, _LIMITS, ByHand, reserve_shows)
