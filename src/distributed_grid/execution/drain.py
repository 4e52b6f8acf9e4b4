"""Getting borrowed capacity back from a busy node.

A raylet hands a freed CPU to the next queued task in the same step, so a shrink never sees that CPU idle: a node with
a queue does not drain by itself. But a raylet also shares fairly between kinds of tasks: while a kind that has nothing
running waits in its queue, the raylet passes over the kinds that already run. A gate is such a waiting kind: a few
tasks that the node could hold but that never fit. While they wait, CPUs that fall idle stay idle until the shrink
takes them. Nothing is killed.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distributed_grid.execution.port import RayletGone, Raylets
from distributed_grid.model.nodes import NodeId

# Each waiting task is one more kind among which the raylet shares. With several of them, only a kind that has nothing
# running may still start one task.
_WAITING: Final = 4

# Keeps the waiting tasks from ever fitting: the node has one unit of it, and a placement group holds that unit.
LATCH: Final = "grid:gate"
_LATCH_S: Final = 2.0


@dataclass
class _Gate:
    cpus: float
    latch: PlacementGroup
    waiting: list[Any] = field(default_factory=list)


class DrainGates:
    """The gates in nodes' queues. Put one up while a node drains, and take it down as soon as the drain ends.

    The placement groups are not detached: if this process dies, its gates fall.
    """

    def __init__(self, raylets: Raylets) -> None:
        self._raylets = raylets
        self._up: dict[NodeId, _Gate] = {}

    def hold(self, node_id: NodeId, cpus: float) -> None:
        """Keep freed CPUs idle on a node that now has `cpus` in total."""
        if cpus < 0.01:
            self.lift(node_id)
            return
        gate = self._up.get(node_id) or self._close(node_id, cpus)
        if gate is None or (gate.waiting and gate.cpus == cpus and not ray.wait(gate.waiting, timeout=0)[0]):
            return
        # The node's total has changed: a task that waits for more CPUs than the node has no longer counts.
        _cancel(gate)
        gate.cpus = cpus
        strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
        gate.waiting = [
            # Slightly different sizes make different kinds of tasks.
            _wait_in_line.options(
                num_cpus=cpus - step * 0.001, resources={LATCH: 1}, scheduling_strategy=strategy
            ).remote()
            for step in range(_WAITING)
        ]

    def _close(self, node_id: NodeId, cpus: float) -> _Gate | None:
        """Create the latch; None if that fails, and the next call tries again."""
        try:
            self._raylets.resize(node_id, {LATCH: 1.0})
        except RayletGone:
            return None
        deadline = time.monotonic() + _LATCH_S
        # If the view did not show the new resource yet, Ray would postpone the group by a whole second.
        while LATCH not in self._raylets.totals().get(node_id, {}) and time.monotonic() < deadline:
            time.sleep(0.002)
        latch = placement_group([{LATCH: 1}], bundle_label_selector=[{"ray.io/node-id": node_id}])
        if not latch.wait(_LATCH_S):
            remove_placement_group(latch)
            self._unlatch(node_id)
            return None
        self._up[node_id] = _Gate(cpus, latch)
        return self._up[node_id]

    def lift(self, node_id: NodeId) -> None:
        gate = self._up.pop(node_id, None)
        if gate is not None:
            _cancel(gate)
            remove_placement_group(gate.latch)
            self._unlatch(node_id)

    def clear(self, node_ids: Iterable[NodeId]) -> None:
        """Remove the latches that gates of a dead process left on these nodes."""
        for node_id in node_ids:
            if node_id not in self._up:
                self._unlatch(node_id)

    def _unlatch(self, node_id: NodeId) -> None:
        try:
            self._raylets.resize(node_id, {LATCH: 0.0})
        except RayletGone:
            return


def _cancel(gate: _Gate) -> None:
    for task in gate.waiting:
        ray.cancel(task, force=True)
    gate.waiting = []


@ray.remote(max_retries=0, name="grid-drain-gate")  # type: ignore[untyped-decorator]
def _wait_in_line() -> None:
    """Does nothing; it never gets to run."""
