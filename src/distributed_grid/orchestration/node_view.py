"""Nodes as the API and `--json` show them: what Ray counts, what was measured, and where it is heading."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from distributed_grid.decide.demand import wanted_from
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.pressure import combined
from distributed_grid.decide.trends import LONGEST, Trend
from distributed_grid.model.demand import Demand
from distributed_grid.model.instants import instant
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY
from distributed_grid.monitoring.collector import Collector
from distributed_grid.monitoring.forecasting import Forecast
from distributed_grid.monitoring.views import demand_dict, snapshot_dict

_UNMEASURED = (
    "stale_because",
    "shares_its_host",
    "taken_at",
    "seen_since",
    "measured_at",
    "age_seconds",
    "pressure",
    "measured",
)


def node_dicts(
    nodes: NodeTable, leases: tuple[Lease, ...], collector: Collector | None, now: datetime
) -> list[dict[str, Any]]:
    """Every node, also one that is configured and not there."""
    loans = Loans.of(leases)
    snapshots = collector.snapshots() if collector is not None else {}
    return [
        dict.fromkeys(_UNMEASURED)
        | (snapshot_dict(snapshots[node.name], now) if node.alive and node.name in snapshots else {})
        | _logical(node, loans)
        | {"state": _state(node, snapshots[node.name].state if node.name in snapshots else "starting")}
        for node in nodes.values()
    ]


def _state(node: Node, measured: str) -> str:
    return measured if node.alive else "down"


def _logical(node: Node, loans: Loans) -> dict[str, Any]:
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
        "lent": loans.lent_by(node.name).to_amounts(),
        "borrowed": loans.borrowed_by(node.name).to_amounts(),
        "withheld": node.in_use.withheld.to_amounts(),
        "warnings": list(node.in_use.warnings),
    }


def demand_dicts(demand: Iterable[Demand], now: datetime) -> list[dict[str, Any]]:
    return [demand_dict(one, now) for one in demand]


def outlook_dict(collector: Collector, name: NodeName, horizon_s: float, now: datetime) -> dict[str, Any]:
    """One node's last hour, its trends, what is expected of it, and what waits for it."""
    return {
        "history": _history_dict(collector, name),
        "trends": {kind: _trend_dicts(collector.trends(name, kind)) for kind in BUILT_IN},
        "forecast": {kind: _forecast_dict(collector.forecast(name, kind, horizon_s)) for kind in BUILT_IN},
        "pressed": [kind for kind in BUILT_IN if collector.is_pressed(name, kind)],
        "demand": demand_dicts(wanted_from(collector.demand, name), now),
    }


def _history_dict(collector: Collector, name: NodeName) -> dict[str, Any]:
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
) -> dict[NodeName, dict[str, Any]]:
    """The last hour of many nodes in few points, for who draws them all; of a node that is not known, gaps."""

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


def _trend_dicts(trends: dict[str, Trend]) -> dict[str, Any]:
    return {
        window: {
            "per_minute": None if one.per_minute is None else round(one.per_minute, 6),
            "samples": one.samples,
            "covered": round(one.covered, 3),
        }
        for window, one in trends.items()
    }


def _forecast_dict(forecast: Forecast | None) -> dict[str, Any] | None:
    if forecast is None:
        return None
    return {
        "horizon_seconds": forecast.horizon_s,
        "value": round(forecast.value, 4),
        "low": round(forecast.low, 4),
        "high": round(forecast.high, 4),
        "confidence": forecast.confidence,
        "accuracy": None if forecast.accuracy is None else asdict(forecast.accuracy),
    }
