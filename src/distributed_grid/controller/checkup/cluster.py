"""Facts about a Ray cluster: every node as a worker there sees it, trials of lending, and autoscalers.

Imported late: it needs a Ray that is there and not too old.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import ray
import ray._raylet
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from distributed_grid.decide.monitoring.naming import Naming, Raylet
from distributed_grid.execution import processes
from distributed_grid.execution.packing import on_node
from distributed_grid.execution.port import NodeView, Raylets, WorkerFacts
from distributed_grid.model.checkup_facts import (
    REPORT_PERIOD,
    VISIBLE_DEVICES,
    AutoscalerFacts,
    GroupFacts,
    NodeFacts,
    ResizeFacts,
    in_one_line,
)
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


def look_at_nodes(naming: Naming, within_s: float) -> tuple[NodeFacts, ...]:
    """Every node's facts, the head first; those that do not answer in time have none."""
    answers = processes.facts_of([raylet.node_id for raylet in naming.raylets.values()], within_s)
    found = [_node(name, raylet, answers.get(raylet.node_id)) for name, raylet in naming.raylets.items()]
    return tuple(sorted(found, key=lambda node: (not node.is_head, node.name)))


def _node(name: NodeName, raylet: Raylet, facts: WorkerFacts | None) -> NodeFacts:
    if facts is None:
        return NodeFacts(name, raylet.is_head, answered=False)
    found = NodeFacts(
        name,
        raylet.is_head,
        answered=True,
        python=facts["python"],
        ray=facts["ray"],
        home=facts["home"],
        home_writable=facts["home_writable"],
        gpus=int(raylet.base.get("GPU", 0)),
    )
    return _with_surroundings(found, raylet.node_id)


def _with_surroundings(node: NodeFacts, node_id: NodeId) -> NodeFacts:
    """With its clock and surroundings; asked again while that takes long, since only a quick answer tells the time."""
    answers: list[NodeFacts] = []
    while len(answers) < _SAMPLES:
        began, ticks = time.time(), time.monotonic()
        try:
            answer: on_node.Surroundings = ray.get(processes.on(node_id, on_node.surroundings, _ENV), timeout=_ANSWER_S)
        except ray.exceptions.RayError:
            break
        trip = time.monotonic() - ticks
        answers.append(
            replace(
                node,
                clock_offset_s=answer["time"] - (began + trip / 2),
                round_trip_s=trip,
                env=answer["env"],
                token_auth=answer["token_auth"],
                gpu_devices=answer["gpu_devices"],
                machine=answer["machine"],
            )
        )
        if trip < _SLOW_TRIP_S:
            break
    return min(answers, key=lambda answer: answer.round_trip_s, default=node)


TRIAL: Final = "grid:doctor"
"""The resource that is grown and taken away again. No task asks for it, so none can hold it."""

_VIEW_S: Final = 3.0
_GROUP_S: Final = 5.0


def try_resize(raylets: Raylets, node_id: NodeId, *, clock: Callable[[], float] = time.monotonic) -> ResizeFacts:
    """Grow and take away a harmless resource a few times; whatever happens, it is taken away in the end."""
    found = ResizeFacts()
    try:
        for _ in range(_SAMPLES):
            began = clock()
            found = replace(found, grown_to=raylets.resize(node_id, {TRIAL: 1.0}).get(TRIAL, 0.0))
            seen = _until_view_shows(raylets, node_id, 1.0, clock)
            lag = clock() - began
            found = replace(found, back_to=raylets.resize(node_id, {TRIAL: 0.0}).get(TRIAL, 0.0))
            if not seen or not _until_view_shows(raylets, node_id, 0.0, clock):
                return replace(found, unseen=True)
            found = replace(found, lags_s=(*found.lags_s, lag))
    except Exception as error:  # noqa: BLE001 - a private call of Ray; reported as it is
        return replace(found, error=in_one_line(error))
    finally:
        with suppress(Exception):
            raylets.resize(node_id, {TRIAL: 0.0})
    return found


def _until_view_shows(raylets: Raylets, node_id: NodeId, amount: float, clock: Callable[[], float]) -> bool:
    deadline = clock() + _VIEW_S
    while raylets.totals().get(node_id, {}).get(TRIAL, 0.0) != amount:
        if clock() > deadline:
            return False
        time.sleep(0.001)
    return True


def try_group(raylets: Mapping[NodeName, Raylet], view: Mapping[NodeId, NodeView]) -> GroupFacts:
    """Pin a tiny group to the first node that has room for it, workers before the head."""
    names = {raylet.node_id: name for name, raylet in raylets.items()}
    for name, raylet in sorted(raylets.items(), key=lambda named: (named[1].is_head, named[0])):
        bundle = _tiny_bundle(view[raylet.node_id].free if raylet.node_id in view else {})
        if not bundle:
            continue
        ((kind, amount),) = bundle.items()
        found = GroupFacts(node=name, bundle=f"{amount:g} {kind}")
        where = _where_it_lands(bundle, raylet.node_id)
        if where is None:
            return replace(found, error=f"it was not ready within {_GROUP_S:.0f} s")
        return replace(found, landed_on=names.get(where, where))
    return GroupFacts()


def _tiny_bundle(free: Mapping[str, float]) -> dict[str, float]:
    if free.get("CPU", 0.0) >= 0.01:
        return {"CPU": 0.01}
    if free.get("memory", 0.0) >= 1:
        return {"memory": 1}
    return {}


def _where_it_lands(bundle: dict[str, float], wanted: NodeId) -> NodeId | None:
    """The node that gets a group meant for `wanted`. It is removed again, and ends with this process anyway."""
    group = placement_group(
        [bundle],
        name=f"grid-doctor-{os.getpid()}",
        bundle_label_selector=[{"ray.io/node-id": wanted}],
    )
    try:
        if not group.wait(_GROUP_S):
            return None
        return str(placement_group_table(group)["bundles_to_node_id"][0])
    finally:
        remove_placement_group(group)


def look_at_autoscaler(gcs_address: str) -> AutoscalerFacts:
    """Facts about autoscalers of both generations, from the cluster's control service."""
    raylet: Any = ray._raylet
    gcs = raylet.GcsClient(address=gcs_address)
    report = gcs.internal_kv_get(DEBUG_AUTOSCALING_STATUS.encode(), timeout=_ANSWER_S)
    summary = (json.loads(report) if report else {}).get("autoscaler_report") or {}
    pending = [entry[1] for entry in summary.get("pending_nodes") or ()]
    config = gcs.internal_kv_get(
        raylet.GCS_AUTOSCALER_CLUSTER_CONFIG_KEY.encode(),
        namespace=raylet.GCS_AUTOSCALER_STATE_NAMESPACE.encode(),
        timeout=_ANSWER_S,
    )
    status = GetClusterStatusReply.FromString(gcs.get_cluster_status(timeout_s=_ANSWER_S))
    nodes = status.cluster_resource_state.node_states
    return AutoscalerFacts(
        node_types=tuple({*(summary.get("active_nodes") or ()), *(summary.get("pending_launches") or ()), *pending}),
        instance_types=tuple({node.ray_node_type_name for node in nodes if node.ray_node_type_name}),
        reports_state=status.HasField("autoscaling_state"),
        has_config=bool(config),
    )
