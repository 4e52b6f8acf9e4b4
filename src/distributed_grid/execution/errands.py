"""Small things done on a given node, in a worker that takes none of its capacity."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from distributed_grid.execution.by_value import on_node
from distributed_grid.model.nodes import NodeId

T = TypeVar("T")


def on(node_id: NodeId, function: Callable[..., T], *args: Any) -> "ray.ObjectRef[T]":
    """Run a function of `on_node` on one node; the reference to its result."""
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(function)
    reference: ray.ObjectRef[T] = task.remote(*args)
    return reference


def facts_of(node_ids: Iterable[NodeId], timeout_s: float) -> dict[NodeId, dict[str, Any]]:
    """The facts of every node that answers in time."""
    asked = {on(node_id, on_node.facts): node_id for node_id in node_ids}
    done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s) if asked else ([], [])
    found = {}
    for reference in done:
        try:
            found[asked[reference]] = ray.get(reference)
        except ray.exceptions.RayError:
            continue  # the node died meanwhile; it has no facts
    return found


def kill_workers(node_id: NodeId, pids: list[int], timeout_s: float = 10.0) -> list[int]:
    """End Ray workers on a node; return those that were there to end."""
    try:
        killed: list[int] = ray.get(on(node_id, on_node.kill_workers, pids), timeout=timeout_s)
    except ray.exceptions.RayError:
        return []
    return killed
