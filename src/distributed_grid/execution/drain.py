"""Getting borrowed capacity back from a busy node.

A raylet hands a freed CPU to the next queued task in the same step, so a shrink never sees it idle: a node with
a queue does not drain by itself. But a raylet also shares fairly between kinds of tasks: once a task that needs
the whole node waits in its queue, kinds that already run are passed over. A gate is such a task. It never runs;
while it waits, CPUs that fall idle stay idle until the shrink has taken them.
"""

from typing import Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distributed_grid.model.nodes import NodeId

# Each gate is one more kind of task among which the raylet shares: with several, a kind of which nothing runs
# yet can still start one task, and every other waits.
_GATES: Final = 4


class DrainGates:
    """The gates that stand in nodes' queues. Put one up while a node drains, take it down at once after."""

    def __init__(self) -> None:
        self._up: dict[NodeId, tuple[float, list[ray.ObjectRef[None]]]] = {}

    def hold(self, node_id: NodeId, cpus: float) -> None:
        """Keep freed CPUs idle on a node that now has `cpus` in total."""
        standing = self._up.get(node_id)
        if cpus < 0.01:
            self.lift(node_id)
            return
        if standing and standing[0] == cpus and not ray.wait(standing[1], timeout=0)[0]:
            return
        self.lift(node_id)
        strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
        self._up[node_id] = (
            cpus,
            # Slightly different sizes make different kinds of tasks.
            [
                _gate.options(num_cpus=cpus - step * 0.001, scheduling_strategy=strategy).remote()
                for step in range(_GATES)
            ],
        )

    def lift(self, node_id: NodeId) -> None:
        _, gates = self._up.pop(node_id, (0.0, []))
        for gate in gates:
            ray.cancel(gate, force=True)

    def lift_all(self) -> None:
        for node_id in list(self._up):
            self.lift(node_id)

    @property
    def standing(self) -> frozenset[NodeId]:
        return frozenset(self._up)


@ray.remote(max_retries=0, name="grid-drain-gate")  # type: ignore[untyped-decorator]
def _gate() -> None:
    """Does nothing, and is cancelled before it could."""
