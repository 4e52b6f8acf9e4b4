"""Measurements over HTTP: nodes, pending demand, and Prometheus' `/metrics`."""

from typing import Annotated, cast

from fastapi import APIRouter, FastAPI, Query
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from distributed_grid import threads
from distributed_grid.controller.access import ERRORS, Asker, needs
from distributed_grid.controller.direct_route import DirectRoute
from distributed_grid.controller.metrics import Seen, exposition
from distributed_grid.engine.engine import Engine
from distributed_grid.engine.views import (
    demand_dicts,
    nodes_dict,
    outlook_dict,
    recent_dicts,
    suggestion_dicts,
    waiting_dict,
)
from distributed_grid.errors import BoostNotFound, Unavailable
from distributed_grid.leases.view import boost_dict, listed_boosts
from distributed_grid.model.nodes import node_named
from distributed_grid.model.principals import Scope
from distributed_grid.model.validators import is_id, seconds
from distributed_grid.monitoring.collector import Collector
from distributed_grid.queue.ownership import check_past_boost
from distributed_grid.scheduler.view import RESULTS
from distributed_grid.wire.boosts import RunReport
from distributed_grid.wire.nodes import DemandList, ListedNode, NodeList, OneNode, SuggestionList
from distributed_grid.wire.values import Noted, Word

_LONGEST_HORIZON_S = 24 * 3600.0


def add_monitoring_routes(api: APIRouter, engine: Engine) -> None:
    p = engine.parts

    @api.get("/nodes")
    @needs(Scope.VIEW)
    async def nodes(history: Annotated[int | None, Query(ge=1, le=720)] = None) -> NodeList:
        """Every node: what Ray counts, and what was measured. With `history`, its last hour in this many points."""
        found = nodes_dict(engine, await p.look())["nodes"]
        if history is None:
            return {"nodes": cast("list[ListedNode]", found)}
        recent = recent_dicts(_collector(engine), (node["name"] for node in found), history, p.now())
        return {"nodes": [{**node, "history": recent[node["name"]]} for node in found]}

    @api.get("/nodes/{name}")
    @needs(Scope.VIEW)
    async def one_node(name: str, horizon_seconds: Annotated[Word, Query()] = "900") -> OneNode:
        """One node with its last hour, its trends, a forecast, what waits for it in Ray and in grid, and its boosts."""
        horizon_s = seconds("horizon", horizon_seconds, longest_s=_LONGEST_HORIZON_S)
        found = await p.look()
        node_named(found, name)
        shown = next(node for node in nodes_dict(engine, found)["nodes"] if node["name"] == name)
        boosts = [boost_dict(lease, p.notes.get(lease.id, ())) for lease in engine.service.boosts(name)]
        outlook = outlook_dict(_collector(engine), name, horizon_s, p.now())
        return {**shown, **outlook, **waiting_dict(p, engine.service.queue, name), **listed_boosts(boosts)}

    @api.get("/demand")
    @needs(Scope.VIEW)
    async def demand() -> DemandList:
        """What waits in Ray's queues, since when and why."""
        return {"demand": demand_dicts(_collector(engine).demand, p.now())}

    @api.get("/suggestions")
    @needs(Scope.VIEW)
    async def suggestions() -> SuggestionList:
        """What would help before a resource runs short: the reason, the confidence, and the command for it."""
        _collector(engine)
        return {"suggestions": suggestion_dicts(engine)}

    @api.post("/boosts/{boost_id}/runs")
    @needs(Scope.LEND)
    async def ran(boost_id: str, asker: Asker, body: RunReport) -> Noted:
        """Report how long a command in a boost took; the boost may have ended since."""
        if not is_id(boost_id):
            raise BoostNotFound(f"{boost_id[:64]!r} is no boost's id")
        await check_past_boost(p, engine.service, asker, boost_id, "report a run")
        took_s, exit_code = body["seconds"], body["exit_code"]
        engine.runs.add(took_s)
        message = f"a command in boost {boost_id[:8]} took {took_s:.1f} s and ended with {exit_code}"
        p.journal.note("ran", message, who=asker.name)
        return {"noted": True}


def add_metrics_route(app: FastAPI, engine: Engine) -> None:
    """At the path where Prometheus looks by default."""
    p = engine.parts

    @needs(Scope.VIEW)
    async def metrics() -> Response:
        """For Prometheus, in its text format; Prometheus needs a token, as other clients do."""
        collector = engine.watching.collector if engine.watching else None
        seen = Seen(
            now=p.now(),
            snapshots=collector.snapshots() if collector else {},
            demand=collector.demand if collector else (),
            leases=p.ledger.snapshot(),
            events=dict(p.journal.counts),
            collecting_s=collector.took_s if collector else None,
            runs=engine.runs,
            queue=tuple(p.sharing.waiting.values()),
            decisions={result: p.sharing.scheduling.results[result] for result in RESULTS},
            outcomes=tuple(p.sharing.scheduling.calibrator.outcomes),
        )
        return Response(await threads.READING.run(exposition, seen), media_type=CONTENT_TYPE_LATEST)

    text: dict[str, object] = {"content": {CONTENT_TYPE_LATEST.partition(";")[0]: {"schema": {"type": "string"}}}}
    app.router.add_api_route(
        "/metrics",
        metrics,
        methods=["GET"],
        response_class=Response,
        responses={**ERRORS, 200: text},
        route_class_override=DirectRoute,
    )


def _collector(engine: Engine) -> Collector:
    if engine.watching is None:
        raise Unavailable("Measurements are not available here", try_next="Start grid with a controller: grid start")
    return engine.watching.collector
