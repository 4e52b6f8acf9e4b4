"""The whole cluster in one answer: nodes, what waits, what would help, and the boosts."""

from typing import Any

from distributed_grid.model.nodes import NodeTable
from distributed_grid.orchestration.boost_view import status_dict
from distributed_grid.orchestration.engine import Engine
from distributed_grid.orchestration.node_view import demand_dicts, node_dicts
from distributed_grid.orchestration.sharing_view import waiting_dict
from distributed_grid.orchestration.suggesting import suggestion_dict


async def cluster_dict(engine: Engine) -> dict[str, Any]:
    """As `grid cluster status --json`, but for where the controller is."""
    nodes = await engine.parts.look()
    return {
        "cluster": engine.config.name,
        **nodes_dict(engine, nodes),
        **waiting_dict(engine.parts, engine.service.queue),
        "boosts": status_dict(engine.service.boosts(), engine.parts.notes),
        "problems": list(engine.problems()),
    }


def nodes_dict(engine: Engine, nodes: NodeTable) -> dict[str, Any]:
    """The nodes, what waits for room in all of them, and what would help."""
    collector = engine.watching.collector if engine.watching else None
    now = engine.parts.now()
    return {
        "nodes": node_dicts(nodes, engine.parts.ledger.snapshot(), collector, now),
        "demand": demand_dicts(collector.demand, now) if collector else [],
        "suggestions": suggestion_dicts(engine),
    }


def suggestion_dicts(engine: Engine) -> list[dict[str, Any]]:
    """As of the last look at what would help."""
    rebalancing = engine.rebalancing
    return [] if rebalancing is None else [suggestion_dict(one) for one in rebalancing.suggestions.current]
