"""The whole cluster in one answer: nodes, what waits, and the boosts."""

from typing import Any

from distributed_grid.model.nodes import NodeTable
from distributed_grid.orchestration.boost_view import status_dict
from distributed_grid.orchestration.engine import Engine
from distributed_grid.orchestration.node_view import demand_dicts, node_dicts


async def cluster_dict(engine: Engine) -> dict[str, Any]:
    """As `grid cluster status --json`, but for where the controller is."""
    nodes = await engine.parts.look()
    return {
        "cluster": engine.config.name,
        **nodes_dict(engine, nodes),
        "boosts": status_dict(engine.service.boosts(), engine.parts.notes),
        "problems": list(engine.problems()),
    }


def nodes_dict(engine: Engine, nodes: NodeTable) -> dict[str, Any]:
    """The nodes, and what waits for room in all of them."""
    collector = engine.watching.collector if engine.watching else None
    now = engine.parts.now()
    return {
        "nodes": node_dicts(nodes, engine.parts.ledger.snapshot(), collector, now),
        "demand": demand_dicts(collector.demand, now) if collector else [],
    }
