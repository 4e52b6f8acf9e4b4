"""Routes for programs inside a boost: their progress, and a Ray of their own."""

from collections.abc import Callable
from ipaddress import ip_address
from typing import Annotated, cast

import psutil
from fastapi import APIRouter, Query, Request

from distributed_grid import threads
from distributed_grid.controller.access import Asker, needs, sender_of
from distributed_grid.controller.limits import check_room_inside
from distributed_grid.decide.leases.ownership import owned_boost_dict
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import BoostNotFound, said_by
from distributed_grid.leases.programs import (
    leave,
    private_head_for,
    program_answer,
    report_program,
    report_use,
    work_in,
)
from distributed_grid.model.codec import PLAIN
from distributed_grid.model.principals import Scope
from distributed_grid.model.work import work_dict
from distributed_grid.queue.ownership import check_change, own_boost
from distributed_grid.wire.boosts import ProgramAnswer, ProgramRequest, RayDriver, RayletRequest, WorkStatus
from distributed_grid.wire.controller import Whereabouts
from distributed_grid.wire.values import Noted


def add_run_routes(api: APIRouter, engine: Engine, where: Callable[[], Whereabouts]) -> None:
    p = engine.parts

    @api.get("/boosts/{boost_id}/work")
    @needs(Scope.VIEW)
    async def work(
        boost_id: str,
        jobs: Annotated[str, Query(max_length=600)] = "",
        since: Annotated[float | None, Query(ge=0, le=2**53)] = None,
    ) -> WorkStatus:
        """What these Ray jobs do in a reserved boost, what they run outside it, and the drivers that began since."""
        named = tuple(filter(None, jobs.split(",")))
        done = work_dict(await threads.READING.run(work_in, p, p.ledger.find(boost_id), named))
        drivers = () if since is None else await threads.READING.run(p.cluster.drivers, since)
        return {**done, "drivers": [cast("RayDriver", PLAIN.encode(driver)) for driver in drivers]}

    @api.put("/boosts/{boost_id}/programs/{program_id}")
    @needs(Scope.LEND)
    async def program(boost_id: str, program_id: str, body: ProgramRequest, asker: Asker) -> ProgramAnswer:
        """A program reports, every second, that it is inside a boost; the answer says by when it must leave."""
        try:
            lease = own_boost(p, asker, boost_id, "run a program")
            if not body.get("is_inside", True):
                lease = await leave(p, lease, program_id, who=asker.name)
            else:
                if all(program.id != program_id for program in lease.programs):
                    check_room_inside(engine, asker, lease)
                lease = await report_program(p, lease, program_id, body.get("label", ""), who=asker.name)
            if (cpu_s := body.get("cpu_seconds")) is not None:
                report_use(p, lease, program_id, cpu_s)
            return program_answer(p, lease)
        except BoostNotFound:
            ended = await engine.service.released_before(boost_id)
            if ended is None:
                raise
            check_change(p, asker, owned_boost_dict(ended), "run a program")
            return {"boost": ended, "ends_in_seconds": 0.0}

    @api.delete("/boosts/{boost_id}/programs/{program_id}")
    @needs(Scope.LEND)
    async def no_program(boost_id: str, program_id: str, asker: Asker) -> Noted:
        """A program inside a boost has ended."""
        await leave(p, own_boost(p, asker, boost_id, "end a program"), program_id, who=asker.name)
        return {"noted": True}

    @api.post("/boosts/{boost_id}/raylet")
    @needs(Scope.RUN)
    async def raylet(boost_id: str, body: RayletRequest, request: Request, asker: Asker) -> Noted:
        """Start a raylet inside a reserved boost that joins another Ray: a private cluster on the lent capacity."""
        lease = own_boost(p, asker, boost_id, "start a private raylet")
        message = f"a raylet of {body['head_address'][:80]} inside {lease.describe()}"
        p.journal.note("raylet_asked", message, lease=lease, node=lease.source, who=asker.name)
        try:
            head = private_head_for(p, lease, body["head_address"], _addresses_of(request), where()["ray_address"])
            await threads.SLOW.run(p.cluster.join_private_cluster, lease, head)
        except Exception as error:
            why = f"{message}: {said_by(error)}"
            p.journal.note("raylet_failed", why, lease=lease, node=lease.source, who=asker.name)
            raise
        p.journal.note("raylet_started", message, lease=lease, node=lease.source, who=asker.name)
        return {"noted": True}

    @api.delete("/boosts/{boost_id}/raylet")
    @needs(Scope.RUN)
    async def no_raylet(boost_id: str, asker: Asker) -> Noted:
        """End the raylet of a private cluster inside a boost; the boost continues."""
        lease = own_boost(p, asker, boost_id, "end a private raylet")
        message = f"the private raylet inside {lease.describe()} ends"
        p.journal.note("raylet_stopped", message, lease=lease, node=lease.source, who=asker.name)
        await threads.SLOW.run(p.cluster.leave_private_cluster, lease)
        return {"noted": True}


def _addresses_of(request: Request) -> frozenset[str]:
    """The caller's addresses: the one it calls from; if it is on this machine, all of this machine's."""
    sender = sender_of(request.scope)
    if sender not in ("127.0.0.1", "::1"):
        return frozenset({sender} - {""})
    found = [one.address.partition("%")[0] for each in psutil.net_if_addrs().values() for one in each]
    return frozenset(one for one in found if _is_ip(one)) | {sender}


def _is_ip(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
