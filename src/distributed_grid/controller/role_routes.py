"""Runs of roles, over HTTP: their state, and changes to them."""

from contextlib import suppress
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query

from distributed_grid import threads
from distributed_grid.controller.access import Asker, needs
from distributed_grid.decide.leases.ownership import may_change, owned_lease, owned_run
from distributed_grid.decide.roles.runs import is_held_for
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import BoostNotFound, Unavailable
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.queue.ownership import check_change
from distributed_grid.roles.known_runs import KnownRuns
from distributed_grid.wire.roles import RoleRun, RoleRunDown, RoleRunList, ScaleRole


def add_role_routes(api: APIRouter, records: RoleRecords | None, engine: Engine) -> None:
    journal = engine.parts.journal

    def runs() -> KnownRuns:
        if records is None:
            raise Unavailable("This controller cannot read the records of runs of roles")
        return KnownRuns(records)

    async def own_run(name: str, asker: Principal, doing: str) -> None:
        """Raise unless the caller may change the run, according to its record."""
        record = await threads.READING.run(runs().one, name)
        check_change(engine.parts, asker, owned_run(record), f"{doing} {name}")

    async def give_back(run: str, boost_id: str, asker: Principal) -> None:
        """Give back a lease that a lost run held. The ledger decides, not what the record says about leases."""
        with suppress(BoostNotFound):
            lease = engine.parts.ledger.find(boost_id)
            owners = engine.config.owners_of(*lease.sources)
            if is_held_for(run, lease) and may_change(asker, owned_lease(lease), owners):
                await engine.service.release(lease.id, grace_s=0.0, wait_s=0.0, who=asker.name)

    @api.get("/roles")
    @needs(Scope.VIEW)
    async def all_runs() -> RoleRunList:
        """All runs of roles in the cluster, in short."""
        return {"runs": await threads.READING.run(runs().all)}

    @api.get("/roles/{name}")
    @needs(Scope.VIEW)
    async def one_run(name: str) -> RoleRun:
        """One run: its roles, and every member with its node, its state and its queue."""
        return await threads.READING.run(runs().one, name)

    @api.post("/roles/{name}/scale")
    @needs(Scope.RUN)
    async def scale(name: str, body: ScaleRole, asker: Asker) -> RoleRun:
        """Ask for another count of a role. The run's owner does it; `pending_command` is null once it has read this."""
        await own_run(name, asker, "scale")
        answer = await threads.SLOW.run(runs().scale, name, body["role"], body["count"])
        journal.note("role_scale_asked", f"{name}: {body['count']} of {body['role']}", who=asker.name, run=name)
        return answer

    @api.delete("/roles/{name}")
    @needs(Scope.RUN)
    async def down(name: str, asker: Asker, only_over: Annotated[bool, Query()] = False) -> RoleRunDown:
        """Ask a run to end, or remove the record of one that is over. `only_over`: leave a running one alone."""
        await own_run(name, asker, "end")
        done, left = await threads.SLOW.run(partial(runs().down, name, only_over=only_over))
        for boost_id in left:  # of a lost run; they would expire, but only later
            await give_back(name, boost_id, asker)
        journal.note("role_run_down_asked", f"{name}, which was {done['state']}", who=asker.name, run=name)
        return done
