"""Nodes, the cluster and sharing as the API and `--json` show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

from distributed_grid.decide.capacity.feasibility import NodeFacts, closed, lendable
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.monitoring.demand import wanted_from
from distributed_grid.decide.monitoring.pressure import Pressed, combined
from distributed_grid.decide.monitoring.trends import LONGEST, Trend
from distributed_grid.decide.queue.admission import Verdict
from distributed_grid.decide.queue.claims import burden
from distributed_grid.engine.engine import Engine
from distributed_grid.leases.rules import numbers, rules_for
from distributed_grid.leases.state import EngineContext
from distributed_grid.leases.view import boost_dict, cut_to_fit, status_dict
from distributed_grid.model.codec import PLAIN
from distributed_grid.model.demand import Demand
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import NO_RULES, Rules
from distributed_grid.model.policies import SharingMode
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector, amount_of
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.model.teams import DEFAULT_TEAM, Team
from distributed_grid.model.times import instant
from distributed_grid.monitoring.collector import Collector
from distributed_grid.monitoring.forecasting import Forecast
from distributed_grid.monitoring.views import demand_dict, measured_dict
from distributed_grid.queue.queue import Queue
from distributed_grid.rebalance.rebalancer import suggestion_dict

if TYPE_CHECKING:
    from distributed_grid.wire.nodes import (
        ClusterSeen,
        DemandStatus,
        ForecastAccuracy,
        History,
        LogicalNode,
        NodeForecast,
        NodeLending,
        NodeOutlook,
        NodesSeen,
        NodeStatus,
        NodeTrend,
        RecentHistory,
        SuggestionStatus,
    )
    from distributed_grid.wire.queue import Allocation, QueuedRequest, QueueHead, QueueStatus
    from distributed_grid.wire.sharing import PolicyStatus, SharingNode, SharingStatus, TeamStatus


def node_dicts(p: EngineContext, nodes: NodeTable, collector: Collector | None, now: datetime) -> list[NodeStatus]:
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
    if rules is None:
        could, code = ResourceVector(), None if node.alive else RefusalCode.NODE_DOWN
    else:
        could, code = lendable(node, usage, rules), closed(node, rules)
    return {
        "lendable": could.to_amounts(),
        "closed": None if code is None else code.message(NodeFacts(node, usage, rules or NO_RULES)),
        "gpu_parts": [amount_of(GPU, units) for units in node.gpu_parts],
    }


def demand_dicts(demand: Iterable[Demand], now: datetime) -> list[DemandStatus]:
    return [demand_dict(one, now) for one in demand]


def outlook_dict(collector: Collector, name: NodeName, horizon_s: float, now: datetime) -> NodeOutlook:
    """One node's last hour, its trends, its forecast, and the demand for it."""
    return {
        "history": _history_dict(collector, name),
        "trends": {kind: _trend_dicts(collector.trends(name, kind)) for kind in BUILT_IN},
        "forecast": {kind: _forecast_dict(collector.forecast(name, kind, horizon_s)) for kind in BUILT_IN},
        "demand": demand_dicts(wanted_from(collector.demand, name), now),
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


def recent_dicts(
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


async def cluster_dict(engine: Engine) -> ClusterSeen:
    """As `grid cluster status --json`, without the controller's location."""
    nodes = await engine.parts.look()
    return {
        "cluster": engine.config.name,
        **nodes_dict(engine, nodes),
        **waiting_dict(engine.parts, engine.service.queue),
        "boosts": status_dict(engine.service.boosts(), engine.parts.notes),
        "problems": list(engine.problems()),
        "cordoned": sorted(engine.parts.sharing.cordoned),
    }


def nodes_dict(engine: Engine, nodes: NodeTable) -> NodesSeen:
    """The nodes, the pending demand, and suggestions."""
    collector = engine.watching.collector if engine.watching else None
    now = engine.parts.now()
    return {
        "nodes": node_dicts(engine.parts, nodes, collector, now),
        "demand": demand_dicts(collector.demand, now) if collector else [],
        "suggestions": suggestion_dicts(engine),
    }


def suggestion_dicts(engine: Engine) -> list[SuggestionStatus]:
    """The suggestions of the last round."""
    rebalancing = engine.rebalancing
    return [] if rebalancing is None else [suggestion_dict(one) for one in rebalancing.suggestions.current]


_FIRST_OF_QUEUE: Final = 8


def sharing_dict(p: EngineContext, queue: Queue, nodes: NodeTable) -> SharingStatus:
    """The content of `grid resource-sharing status`: the policy in force, every node's limits, every team's share, and
    the waiting requests.
    """
    sharing = p.config.resource_sharing
    return {
        **policy_dict(p),
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


def policy_dict(p: EngineContext) -> PolicyStatus:
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


def queued_dict(waiting: Waiting, verdict: Verdict | None, now: datetime) -> QueuedRequest:
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
        "expected_source": None if verdict is None else verdict.expected_source,
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
    return [queued_dict(waiting[each], known.get(each), now) for each in ids[:most]]


def waiting_dict(p: EngineContext, queue: Queue) -> QueueHead:
    """How many requests wait, and the first of them as in the queue's list: part of every status."""
    first = _queued(p.sharing.waiting, queue.verdicts(), p.now(), _FIRST_OF_QUEUE)
    return {"waiting": len(p.sharing.waiting), "queue": first}


def allocation_dict(
    found: Lease | Waiting, verdict: Verdict | None, notes: tuple[str, ...], now: datetime
) -> Allocation:
    """A request, whether it waits or has become a boost."""
    if isinstance(found, Waiting):
        queued = queued_dict(found, verdict, now)
        return {"request_id": found.id, "state": "waiting", "waiting": queued, "boost": None}
    return {"request_id": found.id, "state": found.state.shown, "waiting": None, "boost": boost_dict(found, notes)}
