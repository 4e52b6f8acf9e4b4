"""The cluster as a launcher sees it: what is free on which node now, and whether grid leases it."""

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import ray

from distributed_grid.client import GridClient, user_name
from distributed_grid.config import loaded_config
from distributed_grid.decide.capacity.feasibility import as_inventory
from distributed_grid.errors import GridError, NoCluster
from distributed_grid.execution.ray_cluster import RayCluster
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.roles.plan import Inventory, InventoryNode, live_inventory
from distributed_grid.monitoring.observer import Observer
from distributed_grid.store.home import GridHome

_LEFT_ALONE_S: Final = 10.0
"""How long a controller that did not answer is left alone: each try would delay the supervisor of a run."""


@dataclass(frozen=True, slots=True)
class Survey:
    inventory: Inventory
    ids: dict[NodeName, NodeId]
    """The ids of live nodes."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Facts about nodes that the controller knows and Ray does not."""

    names: dict[NodeId, NodeName]
    """The names of live nodes."""
    limits: Inventory


class Surveyor:
    """Looks through Ray. If a controller runs, node names and lending limits are the controller's.

    While the controller is away, its last names stay in use: a run is supervised without it.
    """

    def __init__(self, client: GridClient | None) -> None:
        self.client = client
        self.gateway = RayCluster(ray.get_runtime_context().gcs_address)
        self._observer = Observer(self.gateway, loaded_config(None))
        self._last: _Known | None = None
        self._ask_at = 0.0

    @classmethod
    def connected(cls) -> "Surveyor":
        connected()
        return cls(controller_here())

    @property
    def is_shared(self) -> bool:
        """Whether grid leases this cluster's capacity. If so, capacity is taken only by a lease."""
        return self.client is not None and bool(self.client.sharing_status()["enabled"])

    @cached_property
    def user_and_team(self) -> tuple[str, str]:
        """The owner of what runs here: the user of the token, or of this process if grid does not say."""
        if self.client is not None:
            with suppress(GridError):
                known = self.client.me()
                return known["name"] or user_name(), known["team"]
        return user_name(), ""

    @cached_property
    def env_allow(self) -> tuple[str, ...]:
        """The variables that the configuration of the running grid lets all actors have: names and patterns."""
        try:
            config = {} if self.client is None else self.client.config()["config"]
        except GridError:
            config = {}
        roles = config.get("roles")
        return tuple(roles.get("env_allow", ())) if isinstance(roles, dict) else ()

    def lender(self) -> GridClient:
        """The client that leases are requested from."""
        if self.client is None:
            raise NoCluster("No controller is running here, so nothing can be leased", try_next="grid start")
        return self.client

    def look(self) -> Survey:
        nodes = self._observer.look()
        seen = as_inventory(nodes)
        ids = {node.name: node.node_id for node in nodes.alive}
        if self.client is None:
            return Survey(seen, ids)
        # Amounts are Ray's own, exact and current. Names, limits and what is in use outside Ray are the controller's.
        known = self._known_to(self.client)
        named = {own: known.names.get(node_id, own) for own, node_id in ids.items()}
        found = [_known_as(seen[own], known.limits.get(name)) for own, name in named.items()]
        return Survey(Inventory(found), {named[own]: node_id for own, node_id in ids.items()})

    def _known_to(self, client: GridClient) -> _Known:
        if self._last is not None and time.monotonic() < self._ask_at:
            return self._last
        try:
            nodes = client.nodes()
        except GridError:
            if self._last is None:
                raise
            self._ask_at = time.monotonic() + _LEFT_ALONE_S
            return self._last
        known = live_inventory(nodes)
        names = {node["node_id"]: node["name"] for node in nodes["nodes"] if node["alive"]}
        # A node that is absent now is left out: it may be back while the controller is away and cannot say so.
        self._last = _Known(names, Inventory(known[name] for name in names.values()))
        return _Known(names, known)

    def name_of(self, node_id: NodeId) -> NodeName:
        return next((name for name, one in self.look().ids.items() if one == node_id), node_id)


def _known_as(seen: InventoryNode, known: InventoryNode | None) -> InventoryNode:
    if known is None:
        return seen
    return replace(seen, name=known.name, lends=known.lends, closed=known.closed).without(known.withheld)


def connected() -> None:
    """Raises unless this process is connected to Ray."""
    if not ray.is_initialized():
        raise NoCluster("This process is not connected to Ray", try_next='Call ray.init(address="auto") first.')


def controller_here() -> GridClient | None:
    """The controller of the cluster that this process is connected to, if one answers. The caller closes it."""
    return _controller_of(ray.get_runtime_context().gcs_address)


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
