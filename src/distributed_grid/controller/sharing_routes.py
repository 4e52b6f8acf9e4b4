"""Sharing by policy, over HTTP: requests that wait, plans, reasons, and the policy."""

from typing import Annotated

from fastapi import APIRouter, Body, Header

from distributed_grid.controller.access import Asker, needs
from distributed_grid.engine.allocations import Allocations
from distributed_grid.engine.engine import Engine
from distributed_grid.engine.views import policy_dict
from distributed_grid.leases.reclaim import cordon, uncordon
from distributed_grid.leases.rules import set_policy
from distributed_grid.model.principals import Scope
from distributed_grid.wire.queue import Allocation, AllocationRequest, Plan, PlanRequest, QueueStatus, Why
from distributed_grid.wire.sharing import Cooldown, CooldownRequest, PolicyChange, PolicyStatus, SharingStatus


def add_sharing_routes(api: APIRouter, engine: Engine) -> None:
    p, allocations = engine.parts, Allocations(engine)

    @api.get("/resource-sharing")
    @needs(Scope.VIEW)
    async def sharing_status() -> SharingStatus:
        """The policy in force, every node's limits, and every team's part."""
        return await allocations.status()

    @api.put("/resource-sharing/policy")
    @needs(Scope.ADMIN)
    async def change_policy(asker: Asker, body: PolicyChange) -> PolicyStatus:
        """Set another policy or mode, which persists across restarts; `configured` goes back to the configuration's."""
        await set_policy(p, policy=body.get("policy"), mode=body.get("mode"), who=asker.name)
        return policy_dict(p)

    @api.post("/requests", status_code=202)
    @needs(Scope.LEND)
    async def request(
        body: AllocationRequest,
        asker: Asker,
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    ) -> Allocation:
        """Request capacity and let the request wait in the queue; answers with the boost if it can be granted now."""
        key = asker.own_key(idempotency_key)
        return await allocations.request(body, caller=asker, idempotency_key=key)

    @api.get("/requests")
    @needs(Scope.VIEW)
    async def queue_status() -> QueueStatus:
        """The requests that wait: position, reason and expected start."""
        return allocations.queue()

    @api.get("/requests/{request_id}")
    @needs(Scope.VIEW)
    async def one_request(request_id: str) -> Allocation:
        return allocations.find(request_id)

    @api.post("/requests/{request_id}/release")
    @needs(Scope.LEND)
    async def release(request_id: str, asker: Asker) -> Allocation:
        """Withdraw the request, or give back the boost that it became."""
        return await allocations.release(request_id, caller=asker)

    @api.post("/plan")
    @needs(Scope.VIEW)
    async def plan(body: PlanRequest, asker: Asker) -> Plan:
        """Predict what would happen to such a request now. Changes nothing."""
        return await allocations.plan(body, caller=asker)

    @api.get("/why/{request_or_boost}")
    @needs(Scope.VIEW)
    async def why(request_or_boost: str) -> Why:
        """Why a request is waiting, or why a boost has its lender: a reason for every node."""
        return await allocations.why(request_or_boost)

    @api.post("/nodes/{name}/cooldown")
    @needs(Scope.ADMIN)
    async def cooldown(name: str, asker: Asker, body: Annotated[CooldownRequest | None, Body()] = None) -> Cooldown:
        """Cordon a node: it returns everything and shares nothing. With `on: false`, let it share again."""
        body = body or {}
        if not body.get("on", True):
            await uncordon(p, name, who=asker.name)
            return {"node": name, "cordoned": False, "returning": []}
        asked = await cordon(p, name, grace_s=body.get("grace_seconds"), who=asker.name)
        return {"node": name, "cordoned": True, "returning": [lease.id for lease in asked]}
