"""The auditor and the audit log over HTTP."""

from typing import Annotated, Final

import orjson
from fastapi import APIRouter, Body, Query, Response

from distributed_grid import threads
from distributed_grid.controller.access import Asker, needs
from distributed_grid.controller.direct_route import DirectRoute, json_answer
from distributed_grid.engine.auditor import Report
from distributed_grid.engine.engine import Engine
from distributed_grid.model.principals import Scope
from distributed_grid.model.times import moment
from distributed_grid.store.audit_log import Wanted
from distributed_grid.wire.audit import AuditEntries, AuditReport, RepairRequest

Text = Annotated[str | None, Query(max_length=200)]

AUDIT_LASTS_S: Final = 3.0
"""An audit asks every node, and some of them more than once."""
LOG_LASTS_S: Final = 1.0
"""Reading the log computes much, and only one thread of the controller computes at a time."""


def audit_routes(engine: Engine, responses: dict[int | str, dict[str, object]]) -> APIRouter:
    """The routes; they have their prefix already."""
    api = APIRouter(prefix="/api/v1/audit", route_class=DirectRoute, responses=responses)
    reads: threads.Shared[tuple[Wanted, int], bytes] = threads.Shared(LOG_LASTS_S, of=threads.LOG_READS)
    audits: threads.Shared[None, Report] = threads.Shared(AUDIT_LASTS_S, of=threads.ALL_AUDITS)

    @api.get("")
    @needs(Scope.VIEW)
    async def audit(asker: Asker) -> AuditReport:
        """Compare boosts, file, nodes, groups and work. Changes nothing.

        Users share an audit, and get the same answer for three seconds; the installation's own token gets a new one.
        """
        if asker.token_id is None:
            return (await engine.auditor.audit()).to_dict()
        return (await audits.run(None, engine.auditor.audit)).to_dict()

    @api.post("/repair")
    @needs(Scope.ADMIN)
    async def repair(
        asker: Asker,
        body: Annotated[RepairRequest | None, Body()] = None,
    ) -> AuditReport:
        """Make the safe repairs, and report what is left and why."""
        may_kill = (body or {}).get("kill", False)
        try:
            return (await engine.auditor.repair(may_kill=may_kill, who=asker.name)).to_dict()
        finally:
            audits.forget()

    @api.get("/log", response_model=AuditEntries)
    @needs(Scope.VIEW)
    async def log(
        asker: Asker,
        who: Text = None,
        node: Text = None,
        boost: Text = None,
        event: Text = None,
        since: Text = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> Response:
        """The last matching entries of the audit log, oldest first.

        Users share an answer, and get the same answer for a second; the installation's own token gets a new one.
        """
        start = None if since is None else moment(since, now=engine.parts.now())
        wanted = Wanted(who, node, boost, event, start)

        def read() -> bytes:
            found = engine.parts.journal.recorded(wanted, limit)
            return orjson.dumps({"entries": found, "cut": found.is_cut})

        if asker.token_id is None:
            return json_answer(await threads.READING.run(read))
        return json_answer(await reads.run((wanted, limit), lambda: threads.READING.run(read)))

    return api
