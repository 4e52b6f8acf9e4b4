"""Ray's own view of its nodes, read by a separate driver, independent of grid's ledger."""

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
import ray._raylet
from ray.core.generated import autoscaler_pb2
from ray.util.placement_group import placement_group_table

from distributed_grid.controller.join import connect
from distributed_grid.decide.monitoring.naming import NAME_LABEL, Raylet, name_raylets
from distributed_grid.execution.groups import group_handle, listed
from distributed_grid.execution.ray_gateway import RayGateway
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector

Amounts = dict[NodeName, ResourceVector]


@contextmanager
def driver_of(ray_address: str) -> "Iterator[RayView]":
    """Connect to that cluster as a driver, without output, until the block ends."""
    here = threading.current_thread() is threading.main_thread()
    on_terminate = signal.getsignal(signal.SIGTERM)
    connect(ray_address)
    if here:  # Ray installs its own handlers, which would exit with another code
        signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield RayView()
    finally:
        ray.shutdown()


class RayView:
    """The nodes by name, as Ray shows them at this moment."""

    def __init__(self) -> None:
        self.gateway = RayGateway.connected()
        self._gcs: Any = ray._raylet.GcsClient(address=self.gateway.gcs_address)

    def nodes(self) -> dict[NodeName, Raylet]:
        return dict(sorted(name_raylets(self.gateway.raylets(), ()).raylets.items()))

    def name_of(self, node_id: str) -> NodeName:
        return next((name for name, node in self.nodes().items() if node.node_id == node_id), node_id[:8])

    def bases(self) -> Amounts:
        """The resources that the nodes started with."""
        return {name: ResourceVector.from_ray(node.base) for name, node in self.nodes().items()}

    def totals(self) -> Amounts:
        return {name: ResourceVector.from_ray(total) for name, total in self.raw_totals().items()}

    def raw_totals(self) -> dict[NodeName, Mapping[str, float]]:
        """Totals including the resources that Ray and grid add for their own use; zeros are left out."""
        seen = self.gateway.totals()
        return {
            name: {kind: amount for kind, amount in seen.get(node.node_id, {}).items() if amount}
            for name, node in self.nodes().items()
        }

    def free(self) -> Amounts:
        view = self.gateway.view()
        return {
            name: ResourceVector.from_ray(view[node.node_id].free) if node.node_id in view else ResourceVector()
            for name, node in self.nodes().items()
        }

    def waits_for(self, cpus: float, node: NodeName) -> int:
        """How many pending requests for that many CPUs on that node Ray lists; its autoscaler reads the same list."""
        reply = autoscaler_pb2.GetClusterResourceStateReply()
        reply.ParseFromString(self._gcs.get_cluster_resource_state())
        pending = reply.cluster_resource_state.pending_resource_requests
        return sum(
            found.count
            for found in pending
            if found.request.resources_bundle.get("CPU") == cpus and _names(found.request) == {node}
        )

    def nodes_of_group(self, group_id: str) -> list[NodeName]:
        """Where the bundles of a placement group are."""
        found = placement_group_table(group_handle(group_id))
        return [self.name_of(node_id) for node_id in found["bundles_to_node_id"].values()]

    def grid_groups(self) -> list[str]:
        return sorted(group.name for group in listed(self.gateway.gcs_address))


def _names(request: Any) -> set[NodeName]:
    """The node names that a request is pinned to by label."""
    return {
        name
        for selector in request.label_selectors
        for constraint in selector.label_constraints
        if constraint.label_key == NAME_LABEL
        for name in constraint.label_values
    }
