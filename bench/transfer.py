"""Moving a CPU from one node to another and back, compared with the Ray calls that do it."""

import time
from dataclasses import dataclass, field
from typing import Any, Final

import ray._raylet

from bench.by_hand import Comparison
from bench.figures import Limits
from bench.rounds import Shows
from bench.stage import SOURCE, TARGET, Stage

_BASELINE: Final = "resizing both raylets by hand, with a wait for the view in between"
_LIMITS: Final = Limits(times_baseline=2.0, below=50.0)
_POLL_S: Final = 0.0005
# Ray counts in steps of 0.0001, and its view may lack the last one.
_LAST_DIGIT: Final = 1.5e-4


@dataclass
class ByHand:
    """The minimum that is safe: shrink, wait until the whole cluster sees it, and only then grow.

    Without the wait it would be faster and wrong: for a moment the cluster would show more CPUs than exist.
    """

    stage: Stage
    _gcs: Any = field(init=False)
    _source: float = field(init=False)
    _target: float = field(init=False)

    def __post_init__(self) -> None:
        self._gcs = ray._raylet.GcsClient(address=self.stage.ray_address)
        self._source, self._target = self.stage.cpus(SOURCE), self.stage.cpus(TARGET)

    async def request(self) -> None:
        self._move(SOURCE, self._source - 1, TARGET, self._target + 1)

    async def release(self) -> None:
        self._move(TARGET, self._target, SOURCE, self._source)

    def _move(self, giver: str, less: float, taker: str, more: float) -> None:
        self._resize(giver, less)
        while self.stage.cpus(giver) > less:
            time.sleep(_POLL_S)
        self._resize(taker, more)

    def _resize(self, node: str, cpus: float) -> None:
        self._gcs.resize_raylet_resource_instances(self.stage.node_ids[node], {"CPU": cpus})


def transfer_shows(stage: Stage, amount: float) -> Shows:
    """Checks the view after a transfer and after its release; create it before anything is lent."""
    source, target = stage.cpus(SOURCE), stage.cpus(TARGET)

    def shows(lent: bool) -> bool:
        moved = amount if lent else 0.0
        off = (stage.cpus(SOURCE) - source + moved, stage.cpus(TARGET) - target - moved)
        return max(map(abs, off)) < _LAST_DIGIT

    return shows


comparison: Final = Comparison("transfer", _BASELINE, _LIMITS, ByHand, lambda stage: transfer_shows(stage, 1.0))
