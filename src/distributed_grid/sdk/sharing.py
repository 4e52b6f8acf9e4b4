"""Sharing from Python: requests that may wait, all of resource sharing behind one class, and the state on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack, cast

from distributed_grid.client import GridClient
from distributed_grid.config import ConfigLike
from distributed_grid.errors import NotFound
from distributed_grid.leases.view import boost_dict
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.policies import AllocationPriority, SharingPolicy
from distributed_grid.model.requests import request_body
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.sdk.backend import Backend, Connected, connect
from distributed_grid.sdk.boosts import ResourceBoostManager, ResourceType
from distributed_grid.store.boost_file import BoostFile
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.audit import Entry
    from distributed_grid.wire.boosts import Boost, RequestedBounds
    from distributed_grid.wire.nodes import ClusterSeen
    from distributed_grid.wire.queue import Allocation, AllocationRequest, Plan, QueuedRequest
    from distributed_grid.wire.sharing import ResourceStatus, SharedCluster, SharingStatus
    from distributed_grid.wire.windows import CancelledWindow, Window, WindowRequest

__all__ = [
    "AllocationPriority",
    "ResourceBoostPersistence",
    "ResourceSharingManager",
    "ResourceSharingOrchestrator",
    "ResourceType",
    "SharingPolicy",
]


_HISTORY = ("granted", "returned", "refused", "queued", "unqueued", "lost", "reclaim_asked", "rebalanced")


class ResourceSharingManager(Connected):
    """Requests shared capacity and releases it.

    Boosts and allocations are leases of one ledger: an allocation that was met is a boost with the same id, and can be
    renewed, released and inspected as one.
    """

    async def request_resource(
        self: Connected,
        node_id: str,
        resource_type: ResourceType | str,
        amount: float,
        priority: AllocationPriority | str = AllocationPriority.NORMAL,
        duration: float | str | None = None,
        *,
        duration_minutes: float | None = None,
        source: str | None = None,
        delivery: str | None = None,
        wait: float | str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """The allocation's id, at once: it holds the capacity already, or waits for its turn.

        `duration` and `wait` are seconds, or text such as "30m". `wait`: give up after so long; None: wait until it is
        met or released. An invalid request (an unknown node, a negative amount) raises its `GridError`.
        """
        minutes = None if duration_minutes is None else float(duration_minutes) * 60
        request = request_body(
            node_id,
            {str(resource_type): str(amount)},
            priority=str(priority),
            duration_seconds=duration if duration is not None else minutes,
            source_node=source,
            delivery=delivery,
        )
        body: AllocationRequest = {**request, "wait_seconds": wait}
        found = await self._ask(GridClient.request_allocation, body, idempotency_key=idempotency_key)
        return found["request_id"]

    async def release_resource(self: Connected, allocation_id: str) -> bool:
        """Release an allocation, or stop waiting for it. False if there is no such allocation (any more)."""
        try:
            await self._ask(GridClient.release_allocation, allocation_id)
        except NotFound:
            return False
        return True

    async def get_allocation(self, allocation_id: str) -> Allocation:
        """One allocation: `state` is `waiting`, with its place in the queue, or the state of its boost."""
        return await self._ask(GridClient.allocation, allocation_id)

    async def get_resource_status(self) -> ResourceStatus:
        """The policy in force, every node's limits, every team's share, all allocations, and the queue."""
        backend = await self._ready()
        boosts, queue = await backend.ask(GridClient.boost_status), await backend.ask(GridClient.queue)
        sharing: SharingStatus = await backend.ask(GridClient.sharing_status)
        return {**sharing, "allocations": boosts["boosts"], "queue": queue["requests"]}

    async def plan(
        self, node_id: str, resource_type: ResourceType | str, amount: float, **more: Unpack[RequestedBounds]
    ) -> Plan:
        """Predict what would happen to such a request now, as `grid plan` does. Nothing changes."""
        return await self._ask(GridClient.plan, request_body(node_id, {str(resource_type): str(amount)}, **more))

    async def create_window(
        self,
        name: str,
        node_id: str,
        resource_type: ResourceType | str,
        amount: float,
        *,
        at: str,
        duration: float | str,
        time_zone: str | None = None,
        **more: Unpack[RequestedBounds],
    ) -> Window:
        """Promise capacity in advance, whenever the window begins: `at="Mon-Fri 09:00", duration="3h"`."""
        terms: RequestedBounds = {**more, "duration_seconds": duration}
        request = request_body(node_id, {str(resource_type): str(amount)}, **terms)
        body = cast("WindowRequest", {**request, "name": name, "at": at, "time_zone": time_zone})
        return await self._ask(GridClient.create_window, body)

    async def windows(self) -> list[Window]:
        """All windows, each with its next times and what the queue's plan says about them."""
        return await self._ask(GridClient.windows)

    async def cancel_window(self, name: str, *, release: bool = False) -> CancelledWindow:
        """End a window's promise. Its current boost stays until it ends, unless `release` gives it back."""
        return await self._ask(GridClient.cancel_window, name, release=release)

    async def history(self, limit: int = 100) -> list[Entry]:
        """Requests, grants, refusals and returns from the audit log, the newest last."""
        entries = await self._ask(GridClient.audit_log, limit=10 * limit)
        return [entry for entry in entries if entry["event"] in _HISTORY][-limit:]

    get_history = history


class ResourceSharingOrchestrator(Connected):
    """Requests, boosts, snapshots and status of one cluster: `async with ResourceSharingOrchestrator(config) as grid:`.

    Where no controller runs, this process does all that a controller does: it measures the nodes and shares by the
    policy of the configuration, until `stop`. `ssh_manager` is not needed; `boost_manager` may be one that is already
    in use.
    """

    def __init__(
        self,
        cluster_config: ConfigLike = None,
        ssh_manager: object = None,
        *,
        boost_manager: ResourceBoostManager | None = None,
    ) -> None:
        super().__init__(cluster_config)
        self.ssh_manager = ssh_manager
        self.boost_manager = boost_manager

    async def initialize(self) -> None:
        """Find the controller, or become it. Start measuring."""
        async with self._connecting:
            if self._backend is None:
                self._backend = await connect(self._config, measuring=True)
                self.sharing_manager = ResourceSharingManager(backend=self._backend)
                self.boost_manager = self.boost_manager or ResourceBoostManager(backend=self._backend)

    async def get_cluster_status(self) -> SharedCluster:
        """Every node, pending demand, boosts, and how the cluster shares: as `grid cluster status --json`, and more."""
        backend = await self._ready()
        sharing, queue = await backend.ask(GridClient.sharing_status), await self._queue()
        seen: ClusterSeen = await backend.ask(GridClient.cluster_status)
        return {**seen, "resource_sharing": sharing, "queue": queue}

    # The manager's two calls, over this connection.
    request_resources = ResourceSharingManager.request_resource
    release_resources = ResourceSharingManager.release_resource

    def get_node_resource_snapshots(self) -> dict[NodeName, NodeSnapshot]:
        """The latest snapshot of every node, measured and logical. Call it after `initialize`."""
        if self._backend is None:
            raise RuntimeError("await initialize() first")
        return self._backend.snapshots()

    async def _queue(self) -> list[QueuedRequest]:
        backend: Backend = await self._ready()
        return (await backend.ask(GridClient.queue))["requests"]


class ResourceBoostPersistence:
    """Reads `resource_boosts.json`. The controller is its only writer, so this never writes it."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = Path(path) if path else GridHome.find().boosts

    def load_boosts(self) -> list[Boost]:
        """Every boost on disk, as `grid boost status --json` shows it."""
        return [boost_dict(lease) for lease in BoostFile(self.path).load().leases]
