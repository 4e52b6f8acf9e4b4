"""Giving boosts back, whole or in part, and reporting checkpoints."""

from typing import Annotated

from fastapi import APIRouter, Body, Header

from distributed_grid.controller.access import Asker, needs
from distributed_grid.decide.leases.ownership import owned_boost_dict
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import BoostNotFound
from distributed_grid.leases.release import part_id, units_to_give
from distributed_grid.leases.view import boost_dict
from distributed_grid.model.leases import Lease
from distributed_grid.model.principals import Scope
from distributed_grid.queue.ownership import check_change, own_boost
from distributed_grid.wire.boosts import Boost, ReleaseRequest


def add_giving_back_routes(api: APIRouter, engine: Engine) -> None:
    service, p = engine.service, engine.parts

    def shown(lease: Lease) -> Boost:
        return boost_dict(lease, p.notes.get(lease.id, ()))

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
        if amount is not None and key and (part := await service.released_before(part_id(key))) is not None:
            return part  # the first try's answer was lost; this retry must not give back as much again
        try:
            lease = own_boost(p, asker, boost_id, "release")
            released = await service.release(
                lease.id,
                units=units_to_give(p, lease.id, amount),
                grace_s=body.get("grace_seconds"),
                wait_s=body.get("wait_seconds", 1.0),
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
