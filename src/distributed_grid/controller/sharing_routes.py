"""Sharing by policy, over HTTP: requests that wait, plans, reasons, and the policy."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Final, cast

from fastapi import APIRouter, Body, Header

from distributed_grid.controller.access import Asker, needs
from distributed_grid.decide.leases.ownership import owned_request
from distributed_grid.decide.queue.admission import Verdict
from distributed_grid.decide.queue.claims import burden
from distributed_grid.engine.engine import Engine
from distributed_grid.leases.reclaim import cordon, uncordon
from distributed_grid.leases.rules import numbers, set_policy
from distributed_grid.leases.state import EngineContext
from distributed_grid.leases.view import boost_dict, cut_to_fit
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable, in_words
from distributed_grid.model.policies import SharingMode
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.model.requests import Waiting
from distributed_grid.model.resources import BUILT_IN, amount_of
from distributed_grid.model.teams import DEFAULT_TEAM, Team
from distributed_grid.model.times import instant
from distributed_grid.queue.answers import plan_answer, why_answer
from distributed_grid.queue.ownership import check_change, own_boost, seen_by
from distributed_grid.queue.queue import Queue
from distributed_grid.wire.boosts import RequestedBoost
from distributed_grid.wire.queue import (
    Allocation,
    AllocationRequest,
    Plan,
    PlanRequest,
    QueuedRequest,
    QueueHead,
    QueueStatus,
    Why,
)
from distributed_grid.wire.sharing import (
    Cooldown,
    CooldownRequest,
    PolicyChange,
    PolicyStatus,
    SharingNode,
    SharingStatus,
    TeamStatus,
)


def add_sharing_routes(api: APIRouter, engine: Engine) -> None:
    p, service = engine.parts, engine.service

    @api.get("/resource-sharing")
    @needs(Scope.VIEW)
    async def sharing_status() -> SharingStatus:
        """The policy in force, every node's limits, and every team's part."""
        return _sharing_dict(p, service.queue, await p.look())

    @api.put("/resource-sharing/policy")
    @needs(Scope.ADMIN)
    async def change_policy(asker: Asker, body: PolicyChange) -> PolicyStatus:
        """Set another policy or mode, which persists across restarts; `configured` goes back to the configuration's."""
        await set_policy(p, policy=body.get("policy"), mode=body.get("mode"), who=asker.name)
        return _policy_dict(p)

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


_FIRST_OF_QUEUE: Final = 8


def _sharing_dict(p: EngineContext, queue: Queue, nodes: NodeTable) -> SharingStatus:
    """The content of `grid resource-sharing status`: the policy in force, every node's limits, every team's share, and
    the waiting requests.
    """
    sharing = p.config.resource_sharing
    return {
        **_policy_dict(p),
        "enabled": sharing.enabled,
        "delivery": sharing.delivery or "transfer (reserve for GPUs)",
        "nodes": [_node_dict(p, node) for node in nodes.values()],
        "teams": [_team_dict(p, team) for team in _teams(p)],
        **waiting_dict(p, queue),
        "cordoned": sorted(p.sharing.cordoned),
    }


def acts_by_itself(p: EngineContext) -> bool:
    """The policy's word; only one of the modes lets grid act without a request at all."""
    return numbers(p).acts_by_itself and p.sharing.mode is SharingMode.DYNAMIC_BALANCING


def _policy_dict(p: EngineContext) -> PolicyStatus:
    return {
        "policy": str(p.sharing.policy),
        "mode": str(p.sharing.mode),
        "configured_policy": str(p.sharing.configured_policy),
        "configured_mode": str(p.sharing.configured_mode),
        "numbers": asdict(numbers(p)) | {"acts_by_itself": acts_by_itself(p)},
    }


def _node_dict(p: EngineContext, node: Node) -> SharingNode:
    usage = p.ledger.usage
    return {
        "name": node.name,
        "alive": node.alive,
        "can_share": node.limits.can_share,
        "cordoned": node.name in p.sharing.cordoned,
        "limits": {
            kind: None if (limit := node.limits.limit(kind)) is None else amount_of(kind, limit) for kind in BUILT_IN
        },
        "lent": usage.lent_by(node.name).to_amounts(),
        "borrowed": usage.borrowed_by(node.name).to_amounts(),
        "free": node.free.at_least_zero().to_amounts(),
    }


def _teams(p: EngineContext) -> list[Team]:
    """The configured teams, and teams that left the configuration while they held leases."""
    others = {lease.team for lease in p.ledger} - set(p.teams)
    return [*p.teams.values(), *(Team(name) for name in sorted(others or ({DEFAULT_TEAM} - set(p.teams))))]


def _team_dict(p: EngineContext, team: Team) -> TeamStatus:
    return {
        "name": team.name,
        "guaranteed": team.guaranteed.to_amounts(),
        "borrowing_limit": {kind: amount_of(kind, units) for kind, units in team.borrowing_limit.items()},
        "lending_limit": {kind: amount_of(kind, units) for kind, units in team.lending_limit.items()},
        "weight": team.weight,
        "held": p.ledger.usage.held_by(team.name).to_amounts(),
        "recent_use": round(burden(team, p.sharing.accounts, p.now()) * team.weight, 4),
    }


def _queued_dict(waiting: Waiting, verdict: Verdict | None, now: datetime) -> QueuedRequest:
    ask = waiting.ask
    start = None if verdict is None else verdict.expected_start
    return {
        "request_id": waiting.id,
        "position": None if verdict is None else verdict.position,
        "target_node": ask.target,
        "resource_type": ask.kind,
        "amount": amount_of(ask.kind, ask.units),
        "priority": str(ask.priority),
        "duration_seconds": ask.duration_s,
        "team": ask.team,
        "requester": ask.requester,
        "since": instant(waiting.since),
        "waited_seconds": round(max(0.0, (now - waiting.since).total_seconds()), 3),
        "until": None if waiting.until is None else instant(waiting.until),
        "reason": f"{ask.target} is not connected, or not seen yet" if verdict is None else verdict.reason,
        "expected_start": None if start is None else instant(start),
        "expected_source": None if verdict is None else in_words(verdict.expected_sources) or None,
    }


def queue_dict(waiting: Mapping[str, Waiting], verdicts: tuple[Verdict, ...], now: datetime) -> QueueStatus:
    """All waiting requests, the next one first; or as many as fit into an answer."""
    shown, cut = cut_to_fit(_queued(waiting, verdicts, now), lambda one: one["requester"])
    return {"cut": cut, "requests": shown}


def _queued(
    waiting: Mapping[str, Waiting], verdicts: tuple[Verdict, ...], now: datetime, most: int | None = None
) -> list[QueuedRequest]:
    known = {verdict.waiting.id: verdict for verdict in verdicts if verdict.waiting.id in waiting}
    ids = [*known, *(request_id for request_id in waiting if request_id not in known)]
    return [_queued_dict(waiting[each], known.get(each), now) for each in ids[:most]]


def waiting_dict(p: EngineContext, queue: Queue, target: NodeName | None = None) -> QueueHead:
    """How many requests wait, of all or for one target, and the first of them as in the queue's list."""
    waiting = {key: each for key, each in p.sharing.waiting.items() if target in (None, each.ask.target)}
    return {"waiting": len(waiting), "queue": _queued(waiting, queue.verdicts(), p.now(), _FIRST_OF_QUEUE)}


def allocation_dict(
    found: Lease | Waiting, verdict: Verdict | None, notes: tuple[str, ...], now: datetime
) -> Allocation:
    """A request, whether it waits or has become a boost."""
    if isinstance(found, Waiting):
        queued = _queued_dict(found, verdict, now)
        return {"request_id": found.id, "state": "waiting", "waiting": queued, "boost": None}
    return {"request_id": found.id, "state": found.state.shown, "waiting": None, "boost": boost_dict(found, notes)}
