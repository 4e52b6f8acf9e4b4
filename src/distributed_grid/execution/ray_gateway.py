"""The one place that reads and resizes raylets.

Resizing is a private interface of Ray (since 2.55), so it is checked at start-up: with a Ray that lacks it, grid still
serves reservations, and says so.
"""

import math
import os
import time
from typing import Any, Final

import ray
import ray._private.state as ray_state
import ray._raylet

from distributed_grid.decide.monitoring.naming import NAME_LABEL, Raylet
from distributed_grid.execution.port import NodeView, RayletGone, RayletSilent, RayMap
from distributed_grid.execution.ray_start import check_ray_version
from distributed_grid.model.nodes import NodeId

_STEP: Final = 1e-4
_TOTALS_S: Final = 0.5
_ANSWER_S: Final = 3.0
_DEADLINE_EXCEEDED, _UNAVAILABLE = 4, 14


class RayGateway:
    """Reads and resizes the raylets of the cluster that this process is connected to."""

    def __init__(self, gcs_address: str, gcs: Any = None) -> None:
        """`gcs`: Ray's client of the control service, if there is one already."""
        check_ray_version(ray.__version__)
        self.gcs_address = gcs_address
        self._gcs: Any = gcs or ray._raylet.GcsClient(address=gcs_address)
        self._view: tuple[float, dict[NodeId, NodeView]] = (0.0, {})
        self._totals_at = 0.0

    @classmethod
    def connected(cls) -> "RayGateway":
        return cls(ray.get_runtime_context().gcs_address)

    @property
    def can_resize(self) -> bool:
        return hasattr(self._gcs, "resize_raylet_resource_instances")

    def why_no_transfers(self) -> str | None:
        """Why totals must not be changed in this cluster; None if they may. Call this on the head."""
        if not self.can_resize:
            return f"Ray {ray.__version__} has no call to resize a running node"
        if os.environ.get("KUBERNETES_SERVICE_HOST") and os.environ.get("RAY_CLUSTER_NAME"):
            return "KubeRay manages this cluster, and its in-place resizing uses the same call"
        return None

    def raylets(self) -> tuple[Raylet, ...]:
        """All live raylets. Their `Resources` stay what they started with: that is the base."""
        return tuple(
            Raylet(
                node_id=node["NodeID"],
                labels=node.get("Labels") or {},
                host=node.get("NodeManagerHostname", ""),
                ip=node["NodeManagerAddress"],
                base=node["Resources"],
                is_head="node:__internal_head__" in node["Resources"],
                manager_port=node["NodeManagerPort"],
            )
            for node in ray.nodes()
            if node["Alive"]
        )

    def totals(self) -> dict[NodeId, RayMap]:
        return dict(ray_state.total_resources_per_node())

    def view(self, max_age_s: float = 0.0) -> dict[NodeId, NodeView]:
        """Every node's total and free resources, read now if the known view is older than `max_age_s`."""
        read_at, known = self._view
        if known and time.monotonic() - read_at < max_age_s:
            return known
        now = time.monotonic()
        free = ray_state.available_resources_per_node()
        # Grid itself makes the changes to totals, and nodes' replies are newer than any view: totals may be older.
        totals = {node: seen.total for node, seen in known.items()}
        if max_age_s == 0.0 or now - self._totals_at > _TOTALS_S or totals.keys() != free.keys():
            self._totals_at = now
            totals = self.totals()
        found = {node: NodeView(total, free.get(node, {})) for node, total in totals.items()}
        self._view = (now, found)
        return found

    def resize(self, node_id: NodeId, resources: RayMap) -> RayMap:
        """Set a live raylet's totals; return all its totals as they are now.

        Ray clamps a shrink to what is in use, so callers act on the returned totals, never on what they asked for.
        """
        for name, value in resources.items():
            # Ray itself silently accepts nonsense: -1 CPU would take all the node's CPUs away.
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"refusing to resize {name} to {value}")
        reply = self._ask_to_resize(node_id, resources)
        if nudges := _nudges(resources, reply):
            reply = self._ask_to_resize(node_id, nudges)
        return reply

    def _ask_to_resize(self, node_id: NodeId, resources: RayMap) -> RayMap:
        try:
            reply: RayMap = self._gcs.resize_raylet_resource_instances(node_id, dict(resources), timeout_s=_ANSWER_S)
        except ValueError as error:
            if "not alive" in str(error):
                raise RayletGone(node_id) from error
            raise
        except ray.exceptions.RpcError as error:
            if error.rpc_code in (_DEADLINE_EXCEEDED, _UNAVAILABLE):
                raise RayletSilent(node_id) from error
            raise
        except ray.exceptions.RaySystemError as error:  # "GRPC client is shut down": the raylet died during the call
            raise RayletSilent(node_id) from error
        return reply


def _nudges(requested: RayMap, reached: RayMap) -> dict[str, float]:
    """The amounts to request again, because Ray missed them by its smallest step.

    Ray applies the *difference*, cut off after four digits: from 4 to 3.99 it goes to 3.9901, since 3.99 - 4 is a
    little less than 0.01. Asking for a slightly larger difference reaches the target.
    """
    missed = {name: requested[name] - reached.get(name, 0.0) for name in requested}
    return {
        name: max(0.0, requested[name] + math.copysign(0.4 * _STEP, off))
        for name, off in missed.items()
        if 0.5 * _STEP < abs(off) < 1.5 * _STEP
    }


def selector_of(name: str) -> dict[str, str]:
    """Labels by which Ray's scheduler finds a node: its configured name, or its id if it has no name label.

    A task that does not fit yet waits if it is placed by name; by id it would fail at once.
    """
    unlabelled = [node for node in ray.nodes() if node["Alive"] and NAME_LABEL not in (node.get("Labels") or {})]
    for node in unlabelled:
        if name in (node.get("NodeManagerHostname"), node["NodeManagerAddress"]):
            return {"ray.io/node-id": node["NodeID"]}
    return {NAME_LABEL: name}
