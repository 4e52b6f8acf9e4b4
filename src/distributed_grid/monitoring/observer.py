"""Observes the cluster: the nodes by name, with their base, total, free amounts, limits and hardware."""

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from distributed_grid.config import GridConfig
from distributed_grid.decide.monitoring.naming import ConfiguredName, Naming, name_raylets
from distributed_grid.execution.port import Cluster
from distributed_grid.model.nodes import NOT_IN_USE, Hardware, MeasuredUse, Node, NodeId, NodeTable
from distributed_grid.model.resources import GPU, ResourceVector, scale


class HardwareReader:
    """Asks each node once, in the background: asking takes a worker there, and seconds."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[NodeId, Hardware] = {}
        self._asked: set[NodeId] = set()

    def __call__(self, node_ids: Iterable[NodeId]) -> Mapping[NodeId, Hardware]:
        """The answers so far."""
        new = [node_id for node_id in node_ids if node_id not in self._asked]
        if new:
            self._asked.update(new)
            threading.Thread(target=self._ask, args=(new,), daemon=True).start()
        return self._known

    def _ask(self, node_ids: list[NodeId]) -> None:
        for node_id, facts in self._cluster.facts_of(node_ids, 60.0).items():
            self._known[node_id] = Hardware(facts["cpus"], facts["memory"])


_GPUS_OF_A_BUNDLE: Final = re.compile(r"GPU_group_\d+_[0-9a-f]+")
"""A resource that stands for all bundles of a group has no number."""


class Observer:
    """Builds a `NodeTable` from what Ray shows and what the collector has measured."""

    def __init__(self, cluster: Cluster, config: GridConfig) -> None:
        self._cluster = cluster
        self._config = config
        self._configured = [ConfiguredName(node.name, node.host) for node in config.nodes]
        self.naming = Naming({}, ())
        self.silent: Callable[[], Mapping[NodeId, str]] = dict
        """Nodes whose probes have stopped answering, and why. The collector provides this."""
        self.hardware: Callable[[Iterable[NodeId]], Mapping[NodeId, Hardware]] = lambda _: {}
        """The known hardware of these nodes."""
        self.in_use: Callable[[], Mapping[NodeId, MeasuredUse]] = dict
        """Measured use on nodes beyond what Ray counts."""

    def look(self) -> NodeTable:
        """The nodes as the cluster shows them now."""
        self.naming = name_raylets(self._cluster.raylets(), self._configured)
        view = self._cluster.view()
        silent = self.silent()
        hardware = self.hardware(view)
        in_use = self.in_use()
        nodes = []
        for name, raylet in self.naming.raylets.items():
            if raylet.node_id not in view:
                continue  # the node has registered but not reported yet
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
                    hardware=hardware.get(raylet.node_id),
                    ip=raylet.ip,
                    host=raylet.host,
                    labels=raylet.labels,
                    silent=silent.get(raylet.node_id),
                    gpu_parts=_gpu_parts(seen.total),
                    in_use=in_use.get(raylet.node_id, NOT_IN_USE),
                )
            )
        nodes += [_absent(name, self._config) for name in self.naming.missing]
        return NodeTable(nodes)


def _gpu_parts(totals: Mapping[str, float]) -> tuple[int, ...]:
    """The GPU amounts below one that bundles of placement groups hold."""
    one = scale(GPU)
    held = (round(value * one) for name, value in totals.items() if _GPUS_OF_A_BUNDLE.fullmatch(name))
    return tuple(sorted(units for units in held if 0 < units < one))


def _absent(name: str, config: GridConfig) -> Node:
    nothing = ResourceVector()
    return Node(name, "", nothing, nothing, nothing, alive=False, limits=config.limits_for(name))
