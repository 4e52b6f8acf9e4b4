"""What the machines under the nodes have, where there are no probes that tell it."""

import threading
from collections.abc import Iterable, Mapping

from distributed_grid.execution.port import Cluster
from distributed_grid.model.nodes import Hardware, NodeId


class AskedOnce:
    """Each node is asked once, in the background: that takes a worker there, and seconds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[NodeId, Hardware] = {}
        self._asked: set[NodeId] = set()

    def __call__(self, node_ids: Iterable[NodeId]) -> Mapping[NodeId, Hardware]:
        """What is known by now."""
        new = [node_id for node_id in node_ids if node_id not in self._asked]
        if new:
            self._asked.update(new)
            threading.Thread(target=self._ask, args=(new,), daemon=True).start()
        return self._known

    def _ask(self, node_ids: list[NodeId]) -> None:
        for node_id, facts in self._cluster.facts_of(node_ids, 60.0).items():
            self._known[node_id] = Hardware(facts["cpus"], facts["memory"])
