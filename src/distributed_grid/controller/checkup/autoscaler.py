"""Facts about autoscalers of both generations, from the cluster's control service. Imported late: it needs Ray."""

import json
from typing import Any, Final

import ray._raylet
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

from distributed_grid.model.checkup_facts import AutoscalerFacts

_ANSWER_S: Final = 5.0


def look_at_autoscaler(gcs_address: str) -> AutoscalerFacts:
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
