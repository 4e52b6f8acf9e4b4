"""Boosts over HTTP: requested, shown, renewed, given back whole or in part; and checkpoints of the work in them."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import orjson
from fastapi import APIRouter, Body, Header, Query, Request, Response

from distributed_grid.controller.access import Asker, asker_of, needs
from distributed_grid.controller.direct_route import json_answer
from distributed_grid.controller.tokens import Tokens
from distributed_grid.decide.leases.ownership import owned_boost_dict
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import BoostNotFound
from distributed_grid.leases.release import part_id, units_to_give
from distributed_grid.leases.view import StatusText, boost_dict, status_dict
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import node_named
from distributed_grid.model.principals import Scope
from distributed_grid.model.validators import LONGEST_RETURN_WAIT_S, waiting_time
from distributed_grid.queue.ownership import check_asks_for, check_change, own_boost
from distributed_grid.queue.service import BoostService
from distributed_grid.wire.boosts import Boost, BoostRequest, BoostStatus, ReleaseRequest, RenewRequest

_WATCH_S = 0.25


@asynccontextmanager
async def while_wanted(request: Request, service: BoostService, key: str, tokens: Tokens) -> AsyncIterator[None]:
    """While a request waits for capacity, check that its client is still there and its token still valid."""
    principal = asker_of(request)

    async def watch() -> None:
        await asyncio.sleep(_WATCH_S)  # most requests are answered by then
        while tokens.is_valid(principal) and not await request.is_disconnected():  # noqa: ASYNC110 - polls both
            await asyncio.sleep(_WATCH_S)
        service.abandon(key)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


def add_boost_routes(api: APIRouter, engine: Engine, tokens: Tokens) -> None:
    service, p, status_text = engine.service, engine.parts, StatusText()

    def shown(lease: Lease) -> Boost:
        return boost_dict(lease, p.notes.get(lease.id, ()))

    @api.post("/boosts", status_code=201)
    @needs(Scope.LEND)
    async def request_boost(
        body: BoostRequest,
        request: Request,
        asker: Asker,
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
    ) -> Boost:
        """Lend part of a node's capacity to another for a limited time."""
        key = asker.own_key(idempotency_key or uuid.uuid4().hex)
        async with while_wanted(request, service, key or "", tokens):
            return shown(await engine.request(body, caller=asker, idempotency_key=key))

    @api.get("/boosts", response_model=BoostStatus)
    @needs(Scope.VIEW)
    async def boost_status(
        node: Annotated[str | None, Query(max_length=255)] = None,
        since: Annotated[str | None, Query(max_length=255)] = None,
    ) -> BoostStatus | Response:
        """Show the totals per resource type, then every boost. `node`: only those to or from this node. `since`: only
        what changed since this `version` of the list; without a known one, all boosts, and the present version."""
        problems = list(engine.problems())
        if node is not None:
            found = service.boosts(node)
            if not found:  # a node that left the configuration is still shown with its boosts
                node_named(await p.look(), node)
            status = status_dict(found, p.notes)
            return {
                "total_active": status["total_active"],
                "resources": status["resources"],
                "cut": status["cut"],
                "boosts": status["boosts"],
                "problems": problems,
            }
        text = status_text.render(service.boosts(), p.notes, since)
        return json_answer(text[:-1] + b',"problems":' + orjson.dumps(problems) + b"}")

    @api.get("/boosts/{boost_id}")
    @needs(Scope.VIEW)
    async def one_boost(boost_id: str, asker: Asker, to_use: Annotated[bool, Query()] = False) -> Boost:
        """One boost. `to_use`: only if the caller may run programs inside it."""
        find = p.ledger.find
        return shown(own_boost(p, asker, boost_id, "run inside it") if to_use else find(boost_id))

    @api.post("/boosts/{boost_id}/renew")
    @needs(Scope.LEND)
    async def renew_boost(
        boost_id: str,
        asker: Asker,
        body: Annotated[RenewRequest | None, Body()] = None,
    ) -> Boost:
        """Restart a boost's duration from now."""
        lease = own_boost(p, asker, boost_id, "renew")
        check_asks_for(p, asker, lease.priority, f"renew boost {lease.id[:8]}")
        return shown(await service.renew(lease.id, (body or {}).get("duration_seconds"), who=asker.name))

    @api.post("/boosts/{boost_id}/release")
    @needs(Scope.LEND)
    async def release_boost(
        boost_id: str,
        asker: Asker,
        x_grid_retry: Annotated[bool, Header()] = False,
        idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
        body: Annotated[ReleaseRequest | None, Body()] = None,
    ) -> Boost:
        """Give the capacity back: `released` when it is returned, `releasing` while the target still uses it.

        With `amount`, only so much of it: the answer is about that part, which has an id of its own.
        """
        body = body or {}
        amount, key = body.get("amount"), asker.own_key(idempotency_key)
        wait_s = waiting_time(body.get("wait_seconds", 1), LONGEST_RETURN_WAIT_S)
        if amount is not None and key and (part := await service.released_before(part_id(key))) is not None:
            return part  # the first try's answer was lost; this retry must not give back as much again
        try:
            lease = own_boost(p, asker, boost_id, "release")
            released = await service.release(
                lease.id,
                units=units_to_give(p, lease.id, amount),
                grace_s=body.get("grace_seconds"),
                wait_s=wait_s,
                who=asker.name,
                idempotency_key=key,
            )
        except BoostNotFound:
            if x_grid_retry and (ended := await service.released_before(boost_id)) is not None:
                check_change(p, asker, owned_boost_dict(ended), "release")
                return ended
            raise
        return shown(released)

    @api.post("/boosts/{boost_id}/checkpoint")
    @needs(Scope.LEND)
    async def checkpointed(boost_id: str, asker: Asker) -> Boost:
        """Report a checkpoint: the work in the boost is saved, so a preemption loses little."""
        lease = own_boost(p, asker, boost_id, "report a checkpoint")
        return shown(await service.checkpointed(lease.id, who=asker.name))
