"""Measurements over HTTP: nodes, pending demand, and Prometheus' `/metrics`."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, cast

from fastapi import APIRouter, FastAPI, Query
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from distributed_grid import threads
from distributed_grid.controller.access import ERRORS, Asker, needs
from distributed_grid.controller.direct_route import DirectRoute
from distributed_grid.controller.metrics import Seen, exposition
from distributed_grid.controller.sharing_routes import waiting_dict
from distributed_grid.decide.capacity.feasibility import lendable, why_closed
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.monitoring.demand import wanted_from
from distributed_grid.decide.monitoring.pressure import Pressed, combined
from distributed_grid.decide.monitoring.trends import LONGEST, Trend
from distributed_grid.engine.engine import Engine
from distributed_grid.errors import BoostNotFound, Unavailable
from distributed_grid.leases.rules import rules_for
from distributed_grid.leases.state import EngineContext
from distributed_grid.leases.view import boost_dict, listed_boosts
from distributed_grid.model.codec import PLAIN
from distributed_grid.model.demand import Demand
from distributed_grid.model.nodes import Node, NodeName, NodeTable, node_named
from distributed_grid.model.plans import NO_RULES, Rules
from distributed_grid.model.principals import Scope
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector, amount_of
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.model.times import instant
from distributed_grid.model.validators import is_id, seconds
from distributed_grid.monitoring.collector import Collector
from distributed_grid.monitoring.forecasting import Forecast
from distributed_grid.monitoring.views import measured_dict
from distributed_grid.queue.ownership import check_past_boost
from distributed_grid.rebalance.rebalancer import suggestion_dict
from distributed_grid.wire.boosts import RunReport
from distributed_grid.wire.nodes import (
    DemandList,
    DemandStatus,
    ForecastAccuracy,
    History,
    ListedNode,
    LogicalNode,
    NodeForecast,
    NodeLending,
    NodeList,
    NodeOutlook,
    NodesSeen,
    NodeStatus,
    NodeTrend,
    OneNode,
    RecentHistory,
    SuggestionList,
    SuggestionStatus,
)
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
        recent = _recent_dicts(_collector(engine), (node["name"] for node in found), history, p.now())
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
        outlook = _outlook_dict(_collector(engine), name, horizon_s, p.now())
        return {**shown, **outlook, **waiting_dict(p, engine.service.queue, name), **listed_boosts(boosts)}

    @api.get("/demand")
    @needs(Scope.VIEW)
    async def demand() -> DemandList:
        """What waits in Ray's queues, since when and why."""
        return {"demand": _demand_dicts(_collector(engine).demand, p.now())}

    @api.get("/suggestions")
    @needs(Scope.VIEW)
    async def suggestions() -> SuggestionList:
        """What would help before a resource runs short: the reason, the confidence, and the command for it."""
        _collector(engine)
        return {"suggestions": _suggestion_dicts(engine)}

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
            windows=len(p.sharing.windows),
            decisions=p.sharing.scheduling.decisions,
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


def nodes_dict(engine: Engine, nodes: NodeTable) -> NodesSeen:
    """The nodes, the pending demand, and suggestions."""
    collector = engine.watching.collector if engine.watching else None
    now = engine.parts.now()
    return {
        "nodes": _node_dicts(engine.parts, nodes, collector, now),
        "demand": _demand_dicts(collector.demand, now) if collector else [],
        "suggestions": _suggestion_dicts(engine),
    }


def _suggestion_dicts(engine: Engine) -> list[SuggestionStatus]:
    """The suggestions of the last round."""
    rebalancing = engine.rebalancing
    return [] if rebalancing is None else [suggestion_dict(one) for one in rebalancing.suggestions.current]


def _node_dicts(p: EngineContext, nodes: NodeTable, collector: Collector | None, now: datetime) -> list[NodeStatus]:
    """Every node, including configured nodes that are not connected."""
    usage = p.ledger.usage
    rules = rules_for(p, Ask("", CPU, 1)) if p.config.resource_sharing.enabled else None
    snapshots = collector.snapshots() if collector is not None else {}
    pressed: Pressed = collector.pressed if collector is not None else frozenset()
    return [
        _status(node, usage, rules, snapshots.get(node.name) if node.alive else None, pressed, now)
        for node in nodes.values()
    ]


def _status(
    node: Node, usage: Usage, rules: Rules | None, snapshot: NodeSnapshot | None, pressed: Pressed, now: datetime
) -> NodeStatus:
    seen = "starting" if snapshot is None else snapshot.state
    return {
        **measured_dict(snapshot, now),
        **_logical(node, usage),
        **_lending(node, usage, rules),
        "state": seen if node.alive else "down",
        "pressed": [kind for kind in BUILT_IN if (node.name, kind) in pressed],
    }


def _logical(node: Node, usage: Usage) -> LogicalNode:
    """As Ray shows it now: newer than the last measurement."""
    return {
        "name": node.name,
        "node_id": node.node_id,
        "alive": node.alive,
        "is_head": node.is_head,
        "labels": dict(node.labels),
        "base": node.base.to_amounts(),
        "total": node.total.to_amounts(),
        "used": (node.total - node.free).at_least_zero().to_amounts(),
        "free": node.free.at_least_zero().to_amounts(),
        "lent": usage.lent_by(node.name).to_amounts(),
        "borrowed": usage.borrowed_by(node.name).to_amounts(),
        "withheld": node.in_use.withheld.to_amounts(),
        "warnings": list(node.in_use.warnings),
    }


def _lending(node: Node, usage: Usage, rules: Rules | None) -> NodeLending:
    """The facts for planners of roles, as the next request would be decided. `rules`: None if sharing is disabled."""
    could = ResourceVector() if rules is None else lendable(node, usage, rules)
    return {
        "lendable": could.to_amounts(),
        "closed": why_closed(node, usage, rules or NO_RULES) or None,
        "gpu_parts": [amount_of(GPU, units) for units in node.gpu_parts],
    }


def _demand_dicts(demand: Iterable[Demand], now: datetime) -> list[DemandStatus]:
    return [demand_dict(one, now) for one in demand]


def _outlook_dict(collector: Collector, name: NodeName, horizon_s: float, now: datetime) -> NodeOutlook:
    """One node's last hour, its trends, its forecast, and the demand for it."""
    return {
        "history": _history_dict(collector, name),
        "trends": {kind: _trend_dicts(collector.trends(name, kind)) for kind in BUILT_IN},
        "forecast": {kind: _forecast_dict(collector.forecast(name, kind, horizon_s)) for kind in BUILT_IN},
        "demand": _demand_dicts(wanted_from(collector.demand, name), now),
    }


def _history_dict(collector: Collector, name: NodeName) -> History:
    history = collector.history
    found = {series: history.of(name, series) for series in history.series}
    times = next(iter(found.values())).times
    return {
        "interval_seconds": history.interval_s,
        "times": [instant(datetime.fromtimestamp(float(at), UTC)) for at in times],
        # NaN is not JSON, and a gap is not a number.
        "series": {
            series: [None if value != value else round(float(value), 4) for value in one.values]
            for series, one in found.items()
        },
    }


def _recent_dicts(
    collector: Collector, names: Iterable[NodeName], points: int, now: datetime
) -> dict[NodeName, RecentHistory]:
    """The last hour of many nodes in few points, for drawing them all; gaps for an unknown node."""

    means = {
        kind: collector.history.in_buckets(kind, points, until=now.timestamp(), window_s=LONGEST) for kind in BUILT_IN
    }
    gaps: list[float | None] = [None] * points

    def recent(name: NodeName) -> dict[str, list[float | None]]:
        found = {kind: means[kind].get(name, gaps) for kind in BUILT_IN}
        overall = [
            None if cpu is None or memory is None else combined(cpu, memory, gpu).overall
            for cpu, memory, gpu in zip(found[CPU], found[MEMORY], found[GPU], strict=True)
        ]
        return {
            kind: [None if value is None else round(value, 4) for value in series]
            for kind, series in {"overall": overall, **found}.items()
        }

    return {name: {"window_seconds": LONGEST, "until": instant(now), "series": recent(name)} for name in names}


def _trend_dicts(trends: dict[str, Trend]) -> dict[str, NodeTrend]:
    return {
        window: {
            "per_minute": None if one.per_minute is None else round(one.per_minute, 6),
            "samples": one.samples,
            "covered": round(one.covered, 3),
        }
        for window, one in trends.items()
    }


def _forecast_dict(forecast: Forecast | None) -> NodeForecast | None:
    if forecast is None:
        return None
    accuracy = forecast.accuracy
    return {
        "horizon_seconds": forecast.horizon_s,
        "value": round(forecast.value, 4),
        "low": round(forecast.low, 4),
        "high": round(forecast.high, 4),
        "confidence": forecast.confidence,
        "enough_history": forecast.enough_history,
        "accuracy": None if accuracy is None else cast("ForecastAccuracy", PLAIN.encode(accuracy)),
    }


def demand_dict(demand: Demand, now: datetime) -> DemandStatus:
    shape = demand.pending.shape
    return {
        "shape": shape.describe(),
        "resources": [bundle.needs.to_amounts() for bundle in shape.bundles],
        "labels": [constraint.describe() for b in shape.bundles for s in b.selectors for constraint in s],
        "strategy": shape.strategy,
        "placement_group": shape.in_group,
        "count": demand.pending.count,
        "queued_on": dict(demand.pending.queued_on),
        "reason": str(demand.reason),
        "detail": demand.detail,
        "could_run_on": list(demand.could_run_on),
        "wanted_on": list(demand.wanted_on),
        "since": instant(demand.since),
        "waited_seconds": round(demand.waited(now).total_seconds(), 3),
    }
