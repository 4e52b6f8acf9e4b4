"""Placement groups on the lender, for the borrower's work alone."""

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from distributed_grid.faults import Point, fault_point
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.resources import ResourceVector


def group_handle(group_id: str) -> PlacementGroup:
    """The handle that Ray's scheduling strategies take, from any process of the cluster."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id)))


def inside(group_id: str) -> PlacementGroupSchedulingStrategy:
    """The scheduling strategy that puts a task or actor, and all that it starts, into a group's one bundle."""
    return PlacementGroupSchedulingStrategy(
        placement_group=group_handle(group_id), placement_group_bundle_index=0, placement_group_capture_child_tasks=True
    )


def asking_for(resources: ResourceVector) -> dict[str, Any]:
    """The options of a task or actor that needs so much, in Ray's words."""
    asked = resources.to_ray()
    cpus, gpus, memory = (asked.pop(name, 0.0) for name in ("CPU", "GPU", "memory"))
    return {"num_cpus": cpus, "num_gpus": gpus, "memory": memory or None, "resources": asked}


def reserve(lease: Lease, node_id: NodeId, within_s: int) -> str | None:
    """Reserve the lease's resources on its source; the group's id, or None if they are not free in time.

    Detached: the group outlives whoever made it, and is found again by its name.
    """
    group = placement_group(
        [lease.resources.to_ray()],
        name=lease.group_name,
        lifetime="detached",
        bundle_label_selector=[{"ray.io/node-id": node_id}],
    )
    fault_point(Point.GROUP_MADE)
    if group.wait(within_s):  # Ray takes whole seconds only
        return str(group.id.hex())
    remove_placement_group(group)
    return None


def remove(group_id: str) -> None:
    remove_placement_group(group_handle(group_id))
