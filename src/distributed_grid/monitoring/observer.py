"""Looking at the cluster: the nodes by name, with their base, total, free amounts and limits."""

import threading
from collections.abc import Callable, Iterable, Mapping

from distributed_grid.config import GridConfig
from distributed_grid.decide.naming import ConfiguredName, Naming, name_raylets
from distributed_grid.execution.port import Cluster
from distributed_grid.model.nodes import Hardware, Node, NodeId, NodeTable
from distributed_grid.model.resources import ResourceVector


class Observer:
    """Makes a `NodeTable` of what Ray shows. Slow facts (the hardware) are fetched once per node, in the background."""

    def __init__(self, cluster: Cluster, config: GridConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._configured = [ConfiguredName(node.name, node.host) for node in config.nodes]
        self._hardware: dict[NodeId, Hardware] = {}
        self._asked: set[NodeId] = set()
        self.naming = Naming({}, ())
        self.silent: Callable[[], Mapping[NodeId, str]] = dict
        """Nodes whose probes have stopped answering, and why; told by whoever asks them."""

    def look(self) -> NodeTable:
        """The nodes as the cluster shows them now."""
        self.naming = name_raylets(self._cluster.raylets(), self._configured)
        view = self._cluster.view()
        silent = self.silent()
        nodes = []
        for name, raylet in self.naming.raylets.items():
            if raylet.node_id not in view:
                continue  # it has registered but not reported yet
            seen = view[raylet.node_id]
            nodes.append(
                Node(
                    name=name,
                    node_id=raylet.node_id,
                    base=ResourceVector.from_ray(raylet.base),
                    total=ResourceVector.from_ray(seen.total),
                    free=ResourceVector.from_ray(seen.free),
                    is_head=raylet.is_head,
                    limits=self._config.limits_for(name),
                    hardware=self._hardware.get(raylet.node_id),
                    ip=raylet.ip,
                    host=raylet.host,
                    labels=raylet.labels,
                    silent=silent.get(raylet.node_id),
                )
            )
        nodes += [_absent(name, self._config) for name in self.naming.missing]
        self._learn_hardware(node.node_id for node in nodes if node.alive)
        return NodeTable(nodes)

    def _learn_hardware(self, node_ids: Iterable[NodeId]) -> None:
        new = [node_id for node_id in node_ids if node_id not in self._asked]
        if new:
            self._asked.update(new)
            threading.Thread(target=self._fetch_facts, args=(new,), daemon=True).start()

    def _fetch_facts(self, node_ids: list[NodeId]) -> None:
        for node_id, facts in self._cluster.facts_of(node_ids, 60.0).items():
            self._hardware[node_id] = Hardware(facts["cpus"], facts["memory"], facts["host"])


def _absent(name: str, config: GridConfig) -> Node:
    nothing = ResourceVector()
    return Node(name, "", nothing, nothing, nothing, alive=False, limits=config.limits_for(name))
