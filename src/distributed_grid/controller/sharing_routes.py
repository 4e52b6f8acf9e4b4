"""Sharing by policy, over HTTP: requests that wait, plans, reasons, and the policy."""

from typing import Annotated, cast

from fastapi import APIRouter, Body, Header

from distributed_grid.controller.access import Asker, needs
from distributed_grid.decide.leases.ownership import owned_request
from distributed_grid.engine.engine import Engine
from distributed_grid.engine.views import allocation_dict, policy_dict, queue_dict, sharing_dict
from distributed_grid.leases.reclaim import cordon, uncordon
from distributed_grid.leases.rules import set_policy
from distributed_grid.model.leases import Lease
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.model.requests import Waiting
from distributed_grid.queue.answers import plan_answer, why_answer
from distributed_grid.queue.ownership import check_change, own_boost, seen_by
from distributed_grid.wire.boosts import RequestedBoost
from distributed_grid.wire.queue import Allocation, AllocationRequest, Plan, PlanRequest, QueueStatus, Why
from distributed_grid.wire.sharing import Cooldown, CooldownRequest, PolicyChange, PolicyStatus, SharingStatus


def add_sharing_routes(api: APIRouter, engine: Engine) -> None:
    p, service = engine.parts, engine.service

    @api.get("/resource-sharing")
    @needs(Scope.VIEW)
    async def sharing_status() -> SharingStatus:
        """The policy in force, every node's limits, and every team's part."""
        return sharing_dict(p, service.queue, await p.look())

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
        return _shown(engine, await engine.enqueue(body, caller=asker, idempotency_key=key))

    @api.get("/requests")
    @needs(Scope.VIEW)
    async def queue_status() -> QueueStatus:
        """The requests that wait: position, reason and expected start."""
        return queue_dict(p.sharing.waiting, service.queue.verdicts(), p.now())

    @api.get("/requests/{request_id}")
    @needs(Scope.VIEW)
    async def one_request(request_id: str) -> Allocation:
        return _shown(engine, service.find(request_id))

    @api.post("/requests/{request_id}/release")
    @needs(Scope.LEND)
    async def release(request_id: str, asker: Asker) -> Allocation:
        """Withdraw the request, or give back the boost that it became."""
        return await withdraw(engine, request_id, caller=asker)

    @api.post("/plan")
    @needs(Scope.VIEW)
    async def plan(body: PlanRequest, asker: Asker) -> Plan:
        """Predict what would happen to such a request now. Changes nothing."""
        ask = engine.ask_of(cast("RequestedBoost", body), caller=asker)  # a plan has the other terms' defaults
        return await plan_answer(p, service.queue, ask)

    @api.get("/why/{request_or_boost}")
    @needs(Scope.VIEW)
    async def why(request_or_boost: str) -> Why:
        """Why a request is waiting, or why a boost has its lender: a reason for every node."""
        return await why_answer(p, service, request_or_boost)

    @api.post("/nodes/{name}/cooldown")
    @needs(Scope.ADMIN)
    async def cooldown(name: str, asker: Asker, body: Annotated[CooldownRequest | None, Body()] = None) -> Cooldown:
        """Cordon a node: it returns everything and shares nothing. With `on: false`, let it share again."""
        body = body or {}
        if not body.get("on", True):
            await uncordon(p, name, who=asker.name)
            return {"node": name, "cordoned": False, "returning": []}
        reclaimed = await cordon(p, name, grace_s=body.get("grace_seconds"), who=asker.name)
        return {"node": name, "cordoned": True, "returning": [lease.id for lease in reclaimed]}


async def withdraw(engine: Engine, request_id: str, *, caller: Principal) -> Allocation:
    """Cancel a waiting request; or, if it was granted, release the boost."""
    p, service = engine.parts, engine.service
    found = service.find(request_id, seen_by(p, caller))
    if isinstance(found, Waiting):
        check_change(p, caller, owned_request(found), f"withdraw request {found.id[:8]}")
        shown = _shown(engine, found)
        if found.is_for_a_task:
            await engine.scheduling.complete(found.ask.label, who=caller.name)
        else:
            await service.queue.leave(found.id, who=caller.name)
        return {**shown, "state": "cancelled"}
    lease = own_boost(p, caller, found.id, "release")
    return _shown(engine, await service.release(lease.id, who=caller.name))


def _shown(engine: Engine, found: Lease | Waiting) -> Allocation:
    """A request: in the queue, or as the boost that it became."""
    p = engine.parts
    verdicts = engine.service.queue.verdicts()
    verdict = next((verdict for verdict in verdicts if verdict.waiting.id == found.id), None)
    return allocation_dict(found, verdict, p.notes.get(found.id, ()), p.now())
