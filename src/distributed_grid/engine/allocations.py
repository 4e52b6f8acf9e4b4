"""Requests that may wait, as the API and the Python classes make them: answers are the API's JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from distributed_grid.decide.leases.ownership import owned_request
from distributed_grid.engine.engine import Engine
from distributed_grid.engine.views import allocation_dict, queue_dict, sharing_dict
from distributed_grid.model.leases import Lease
from distributed_grid.model.principals import Principal
from distributed_grid.model.requests import Waiting
from distributed_grid.queue.answers import plan_answer, why_answer
from distributed_grid.queue.ownership import check_change, own_boost, seen_by

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import RequestedBoost
    from distributed_grid.wire.queue import Allocation, AllocationRequest, Plan, PlanRequest, QueueStatus, Why
    from distributed_grid.wire.sharing import SharingStatus


class Allocations:
    """One engine's requests: in the queue, or as the leases that they became."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def request(
        self, body: AllocationRequest, *, caller: Principal, idempotency_key: str | None = None
    ) -> Allocation:
        return self._shown(await self._engine.enqueue(body, caller=caller, idempotency_key=idempotency_key))

    def find(self, request_id: str) -> Allocation:
        return self._shown(self._engine.service.find(request_id))

    async def release(self, request_id: str, *, caller: Principal) -> Allocation:
        """Cancel a waiting request; or, if it was granted, release the boost."""
        p, service = self._engine.parts, self._engine.service
        found = service.find(request_id, seen_by(p, caller))
        if isinstance(found, Waiting):
            check_change(p, caller, owned_request(found), f"withdraw request {found.id[:8]}")
            shown = self._shown(found)
            if found.is_for_a_task:
                await self._engine.scheduling.complete(found.ask.label, who=caller.name)
            else:
                await service.queue.leave(found.id, who=caller.name)
            return {**shown, "state": "cancelled"}
        lease = own_boost(p, caller, found.id, "release")
        return self._shown(await service.release(lease.id, who=caller.name))

    def queue(self) -> QueueStatus:
        p = self._engine.parts
        return queue_dict(p.sharing.waiting, self._engine.service.queue.verdicts(), p.now())

    async def status(self) -> SharingStatus:
        p = self._engine.parts
        return sharing_dict(p, self._engine.service.queue, await p.look())

    async def plan(self, body: PlanRequest, *, caller: Principal) -> Plan:
        """Predict what would happen to such a request now. Nothing changes."""
        ask = self._engine.ask_of(cast("RequestedBoost", body), caller=caller)  # a plan has the other terms' defaults
        return await plan_answer(self._engine.parts, self._engine.service.queue, ask)

    async def why(self, request_or_boost: str) -> Why:
        return await why_answer(self._engine.parts, self._engine.service, request_or_boost)

    def _shown(self, found: Lease | Waiting) -> Allocation:
        p = self._engine.parts
        verdicts = self._engine.service.queue.verdicts()
        verdict = next((verdict for verdict in verdicts if verdict.waiting.id == found.id), None)
        return allocation_dict(found, verdict, p.notes.get(found.id, ()), p.now())
