"""Getting borrowed capacity back from a busy node.

A raylet hands a freed CPU to the next queued task in the same step, so a shrink never sees it idle: a node with
a queue does not drain by itself. But a raylet also shares fairly between kinds of tasks: while some kind waits in
its queue that has nothing running, kinds that run already are passed over. A gate is such a waiting kind: a few
tasks that the node could hold but that never fit. While they wait, CPUs that fall idle stay idle until the shrink
has taken them; nothing is killed.
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

# Each waiting task is one more kind among which the raylet shares: with several, only a kind of which nothing
# runs yet may still start one task.
_WAITING: Final = 4

# What keeps the waiting tasks from ever fitting: the node has one of it, and a placement group holds that one.
LATCH: Final = "grid:gate"
_LATCH_S: Final = 2.0


@dataclass
class _Gate:
    cpus: float
    latch: PlacementGroup
    waiting: list[Any] = field(default_factory=list)


class DrainGates:
    """The gates that stand in nodes' queues. Put one up while a node drains, take it down at once after.

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
        # The node's total has changed: what waits for more CPUs than it has no longer counts.
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
        """Put the latch on; None if that does not work out, and the next try may."""
        try:
            self._raylets.resize(node_id, {LATCH: 1.0})
        except RayletGone:
            return None
        deadline = time.monotonic() + _LATCH_S
        # Asked for before everybody can see the new resource, the group would be put off for a whole second.
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
        """Remove what gates of a process that died have left on these nodes."""
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
    """Does nothing, and never gets to."""
