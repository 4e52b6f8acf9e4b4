"""The whole of resource sharing behind one class: a composition of the others, over one connection."""

from typing import Any

from distributed_grid.config import ConfigLike
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.orchestration.backend import Backend, connect
from distributed_grid.orchestration.connected import Connected
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager
from distributed_grid.orchestration.resource_sharing_manager import ResourceSharingManager
from distributed_grid.orchestration.resource_types import ResourceType

__all__ = ["ResourceSharingOrchestrator"]


class ResourceSharingOrchestrator(Connected):
    """Requests, boosts, snapshots and status of one cluster: `async with ResourceSharingOrchestrator(config) as grid:`.

    Where no controller runs, this process does all that one does: it measures the nodes and shares by the policy of
    the configuration, until `stop`. `ssh_manager` is not needed; `boost_manager` may be one that is in use already.
    """

    def __init__(
        self,
        cluster_config: ConfigLike = None,
        ssh_manager: Any = None,
        *,
        boost_manager: ResourceBoostManager | None = None,
    ) -> None:
        super().__init__(cluster_config)
        self.ssh_manager = ssh_manager
        self.boost_manager = boost_manager

    async def initialize(self) -> None:
        """Find the controller, or become it; begin to measure."""
        async with self._connecting:
            if self._backend is None:
                self._backend = await connect(self._config, measuring=True)
                self.sharing_manager = ResourceSharingManager(backend=self._backend)
                self.boost_manager = self.boost_manager or ResourceBoostManager(backend=self._backend)

    async def get_cluster_status(self) -> dict[str, Any]:
        """Every node, what waits, the boosts, and how the cluster shares: as `grid cluster status --json`, and more."""
        backend = await self._ready()
        return await backend.cluster() | {"resource_sharing": await backend.sharing(), "queue": await self._queue()}

    async def request_resources(
        self,
        node_id: str,
        resource_type: ResourceType | str,
        amount: float,
        priority: AllocationPriority | str = AllocationPriority.NORMAL,
        duration: float | None = None,
        *,
        duration_minutes: float | None = None,
        **more: Any,
    ) -> str:
        """The allocation's id: it holds the capacity already, or waits for its turn. `duration` is in seconds."""
        await self._ready()
        return await self.sharing_manager.request_resource(
            node_id, resource_type, amount, priority, duration, duration_minutes=duration_minutes, **more
        )

    async def release_resources(self, allocation_id: str) -> bool:
        """Give an allocation back, or wait for it no longer. False if there is no such one (any more)."""
        await self._ready()
        return await self.sharing_manager.release_resource(allocation_id)

    def get_node_resource_snapshots(self) -> dict[NodeName, NodeSnapshot]:
        """The latest of every node, measured and logical; after `initialize`."""
        if self._backend is None:
            raise RuntimeError("await initialize() first")
        return self._backend.snapshots()

    async def _queue(self) -> list[dict[str, Any]]:
        backend: Backend = await self._ready()
        found: list[dict[str, Any]] = (await backend.queue())["requests"]
        return found
