"""What programs that run inside a boost need: how they are getting on, and a Ray of their own."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query

from distributed_grid.controller import schemas
from distributed_grid.controller.access import needs
from distributed_grid.model.principals import Scope
from distributed_grid.model.work import work_dict
from distributed_grid.orchestration.engine import Engine
from distributed_grid.orchestration.runs import join_private_cluster, work_in


def add_run_routes(api: APIRouter, engine: Engine) -> None:
    p = engine.parts

    @api.get("/boosts/{boost_id}/work", response_model=schemas.WorkStatus)
    @needs(Scope.VIEW)
    async def work(boost_id: str, jobs: Annotated[str, Query(max_length=600)] = "") -> dict[str, Any]:
        """What these Ray jobs do in a reserved boost, and what of it is not in there."""
        return work_dict(
            await asyncio.to_thread(work_in, p, p.ledger.find(boost_id), tuple(filter(None, jobs.split(","))))
        )

    @api.post("/boosts/{boost_id}/raylet", response_model=schemas.Noted)
    @needs(Scope.RUN)
    async def raylet(boost_id: str, body: schemas.RayletRequest) -> dict[str, bool]:
        """Start a raylet inside a reserved boost that joins another Ray: a private cluster on what was lent."""
        await asyncio.to_thread(join_private_cluster, p, p.ledger.find(boost_id), body.head_address)
        return {"noted": True}

    @api.delete("/boosts/{boost_id}/raylet", response_model=schemas.Noted)
    @needs(Scope.RUN)
    async def no_raylet(boost_id: str) -> dict[str, bool]:
        """End the raylet of a private cluster inside a boost; what was lent is free for other work in it."""
        await asyncio.to_thread(p.cluster.leave_private_cluster, p.ledger.find(boost_id))
        return {"noted": True}
