"""The cluster as a launcher sees it: what is free on which node now, and whether grid leases it out."""

from dataclasses import dataclass, replace

import ray

from distributed_grid.client import GridClient
from distributed_grid.client.inventory import live_inventory
from distributed_grid.config import loaded_config
from distributed_grid.errors import GridError, NoCluster
from distributed_grid.execution.ray_cluster import RayCluster
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.roles.inventory import Inventory
from distributed_grid.monitoring.observer import Observer
from distributed_grid.store.home import GridHome


@dataclass(frozen=True, slots=True)
class Survey:
    inventory: Inventory
    ids: dict[NodeName, NodeId]
    """Of the nodes that are alive."""


class Surveyor:
    """Looks through Ray. Where a controller runs, nodes have the names that it gives them, and what they may lend."""

    def __init__(self, client: GridClient | None) -> None:
        self.client = client
        self.gateway = RayCluster(ray.get_runtime_context().gcs_address)
        self._observer = Observer(self.gateway, loaded_config(None))

    @classmethod
    def connected(cls) -> "Surveyor":
        connected()
        return cls(_controller_of(ray.get_runtime_context().gcs_address))

    @property
    def is_shared(self) -> bool:
        """Grid leases this cluster's capacity out, so whoever takes some does it by a lease."""
        return self.client is not None and bool(self.client.sharing_status()["enabled"])

    def lender(self) -> GridClient:
        """Whom leases are asked of."""
        if self.client is None:
            raise NoCluster("No controller of grid runs here, so nothing can be leased", try_next="grid start")
        return self.client

    def look(self) -> Survey:
        nodes = self._observer.look()
        seen = Inventory.of_nodes(nodes)
        ids = {node.name: node.node_id for node in nodes.alive}
        if self.client is None:
            return Survey(seen, ids)
        # Amounts are Ray's own, exact and new; names and limits are the controller's.
        told = self.client.nodes()
        known = live_inventory(told, self.client.sharing_status())
        names = {node["node_id"]: node["name"] for node in told["nodes"] if node["alive"]}
        named = {own: names.get(node_id, own) for own, node_id in ids.items()}
        found = [
            replace(seen[own], name=name, lends=known[name].lends, closed=known[name].closed)
            if name in known
            else seen[own]
            for own, name in named.items()
        ]
        return Survey(Inventory(found), {named[own]: node_id for own, node_id in ids.items()})

    def name_of(self, node_id: NodeId) -> NodeName:
        return next((name for name, one in self.look().ids.items() if one == node_id), node_id)


def connected() -> None:
    """Raises unless this process is connected to Ray."""
    if not ray.is_initialized():
        raise NoCluster("This process is not connected to Ray", try_next='Call ray.init(address="auto") first.')


def _controller_of(gcs_address: str) -> GridClient | None:
    """The controller of this very cluster, if one answers."""
    home = GridHome.find()
    if not home.controller.exists():
        return None
    client = GridClient(home, retry_s=1.0)
    try:
        if client.ray_address() == gcs_address and client.config():
            return client
    except GridError:
        pass
    client.close()
    return None
