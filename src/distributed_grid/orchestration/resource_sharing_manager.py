"""Sharing from Python: requests that wait for their turn, what they hold, and by which policy."""

from typing import Any

from distributed_grid.errors import NotFound
from distributed_grid.model.policies import SharingPolicy
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.orchestration.connected import Connected
from distributed_grid.orchestration.resource_types import ResourceType

__all__ = ["AllocationPriority", "ResourceSharingManager", "ResourceType", "SharingPolicy"]

_HISTORY = ("granted", "returned", "refused", "queued", "unqueued", "lost", "reclaim_asked", "rebalanced")


class ResourceSharingManager(Connected):
    """Asks for shared capacity and gives it back.

    Boosts and allocations are leases of one ledger: an allocation that was met is a boost with the same id, and can
    be renewed, released and looked at as one.
    """

    async def request_resource(
        self,
        node_id: str,
        resource_type: ResourceType | str,
        amount: float,
        priority: AllocationPriority | str = AllocationPriority.NORMAL,
        duration: float | None = None,
        *,
        duration_minutes: float | None = None,
        source: str | None = None,
        delivery: str | None = None,
        wait: float | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """The allocation's id, at once: it holds the capacity already, or waits for its turn.

        `duration` is in seconds. `wait`: give up after so many seconds; None: wait until it is met or released. A
        request that makes no sense (an unknown node, a negative amount) raises its `GridError`.
        """
        minutes = None if duration_minutes is None else float(duration_minutes) * 60
        body = {
            "target_node": node_id,
            "resource_type": str(resource_type),
            "amount": str(amount),
            "priority": str(priority),
            "duration_seconds": duration if duration is not None else minutes,
            "source_node": source,
            "delivery": delivery,
            "grace_seconds": None,
            "on_grace_end": None,
            "wait_seconds": wait,
        }
        found = await (await self._ready()).enqueue(body, idempotency_key)
        return str(found["request_id"])

    async def release_resource(self, allocation_id: str) -> bool:
        """Give an allocation back, or wait for it no longer. False if there is no such one (any more)."""
        try:
            await (await self._ready()).release_allocation(allocation_id)
        except NotFound:
            return False
        return True

    async def get_allocation(self, allocation_id: str) -> dict[str, Any]:
        """One allocation: `state` is `waiting`, with its place in the queue, or the state of its boost."""
        return await (await self._ready()).allocation(allocation_id)

    async def get_resource_status(self) -> dict[str, Any]:
        """The policy in force, every node's limits, every team's part, all allocations, and who waits."""
        backend = await self._ready()
        boosts, queue = await backend.status(), await backend.queue()
        return await backend.sharing() | {"allocations": boosts["boosts"], "queue": queue["requests"]}

    async def plan(self, node_id: str, resource_type: ResourceType | str, amount: float, **more: Any) -> dict[str, Any]:
        """What would happen to such a request now, as `grid plan` says it; nothing is changed."""
        asked = {"target_node": node_id, "resource_type": str(resource_type), "amount": str(amount)}
        defaults = {"priority": "normal", "duration_seconds": None, "source_node": None, "delivery": None}
        return await (await self._ready()).plan(asked | defaults | more)

    async def history(self, limit: int = 100) -> list[dict[str, Any]]:
        """What was asked for, granted, refused and returned, the newest last, from the audit log."""
        entries = await (await self._ready()).audit_log(10 * limit)
        return [entry for entry in entries if entry["event"] in _HISTORY][-limit:]

    get_history = history
