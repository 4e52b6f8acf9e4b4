"""A look at every node, from inside a worker there."""

import time
from collections.abc import Mapping
from typing import Any, Final

import ray
from ray import cloudpickle

from distributed_grid.controller.checkup import on_node
from distributed_grid.decide.monitoring.naming import Naming, Raylet
from distributed_grid.execution import processes
from distributed_grid.model.checkup_facts import REPORT_PERIOD, VISIBLE_DEVICES, NodeFacts
from distributed_grid.model.nodes import NodeId, NodeName

_ANSWER_S: Final = 5.0
_SAMPLES: Final = 3
_SLOW_TRIP_S: Final = 0.5
_ENV: Final = (
    "KUBERNETES_SERVICE_HOST",
    "RAY_CLUSTER_NAME",
    "RAY_USAGE_STATS_KUBERAY_IN_USE",
    REPORT_PERIOD,
    VISIBLE_DEVICES,
)

cloudpickle.register_pickle_by_value(on_node)


def look_at_nodes(naming: Naming, within_s: float) -> tuple[NodeFacts, ...]:
    """Every node's facts, the head first; those that do not answer in time have none."""
    answers = processes.facts_of([raylet.node_id for raylet in naming.raylets.values()], within_s)
    found = [_node(name, raylet, answers.get(raylet.node_id)) for name, raylet in naming.raylets.items()]
    return tuple(sorted(found, key=lambda node: (not node.is_head, node.name)))


def _node(name: NodeName, raylet: Raylet, facts: Mapping[str, Any] | None) -> NodeFacts:
    if facts is None:
        return NodeFacts(name, raylet.is_head, answered=False)
    return NodeFacts(
        name,
        raylet.is_head,
        answered=True,
        python=facts["python"],
        ray=facts["ray"],
        home=facts["home"],
        home_writable=facts["home_writable"],
        gpus=int(raylet.base.get("GPU", 0)),
        **_look_closer(raylet.node_id),
    )


def _look_closer(node_id: NodeId) -> dict[str, Any]:
    """Its clock and surroundings; asked again while that takes long, since only a quick answer tells the time."""
    answers: list[dict[str, Any]] = []
    while len(answers) < _SAMPLES:
        began, ticks = time.time(), time.monotonic()
        try:
            told = ray.get(processes.on(node_id, on_node.surroundings, _ENV), timeout=_ANSWER_S)
        except ray.exceptions.RayError:
            break
        trip = time.monotonic() - ticks
        offset = told.pop("time") - (began + trip / 2)
        answers.append(told | {"clock_offset_s": offset, "round_trip_s": trip})
        if trip < _SLOW_TRIP_S:
            break
    return min(answers, key=lambda answer: float(answer["round_trip_s"]), default={})
