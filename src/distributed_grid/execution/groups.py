"""Placement groups on the lender, for the borrower's work alone; and which of grid's groups exist.

Ray's own list holds every group that was ever made, including removed ones: with 4,500 of them it takes 0.1 s to read.
But a node's resources show each group that stands on it, so reading the nodes tells which groups exist. The list is
read once at the start, and when certainty is needed.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import ray
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from distributed_grid.decide.leases.idle import Occupant
from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.execution import ray_rpc
from distributed_grid.execution.extensions import NUMBER, Extensions
from distributed_grid.execution.port import Extension, Group, Holder, NodeView, Raylets, RayMap
from distributed_grid.faults import Point, fault_point
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeId
from distributed_grid.model.resources import ResourceVector, total


def group_handle(group_id: str) -> PlacementGroup:
    """The handle that Ray's scheduling strategies take; valid in any process of the cluster."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id)))


def inside(group_id: str, bundle: int | None = 1) -> PlacementGroupSchedulingStrategy:
    """The scheduling strategy that puts a task or actor, and everything it starts, into a group: into the bundle with
    this number, from 1 on, or, if it is None, into any that has room."""
    return PlacementGroupSchedulingStrategy(
        placement_group=group_handle(group_id),
        placement_group_bundle_index=-1 if bundle is None else bundle - 1,
        placement_group_capture_child_tasks=True,
    )


def inside_limit(group_id: str, most_cpus: float) -> PlacementGroupSchedulingStrategy:
    """The same for the group of a limit without a reservation, wherever it has room. Ray refuses at once what is larger
    than each of the bundles that it knows of a group, so it gets to know what the lease may grow to."""
    group = PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id)), [{"CPU": most_cpus}])
    return PlacementGroupSchedulingStrategy(group, -1, True)


def asking_for(resources: ResourceVector) -> dict[str, object]:
    """Ray's options for a task or actor that needs these resources."""
    amounts = resources.to_ray()
    cpus, gpus, memory = (amounts.pop(name, 0.0) for name in ("CPU", "GPU", "memory"))
    return {"num_cpus": cpus, "num_gpus": gpus, "memory": memory or None, "resources": amounts}


GROUP_PREFIX: Final = "grid-boost-"
_LIMIT: Final = "-limit"
_LIMIT_S: Final = 5
_ON_A_NODE: Final = "bundle_group_"
_TIMEOUT_S: Final = 5.0
_State: Final = gcs_pb2.PlacementGroupTableData.PlacementGroupState


class Groups:
    """The mechanism of `Delivery.RESERVE`. Caches which groups exist: a group's id is never reused, and its name never
    changes."""

    def __init__(self, gcs_address: str, nodes: Raylets) -> None:
        self._gcs_address = gcs_address
        self._nodes = nodes
        self._extensions = Extensions(nodes)
        self._one_at_a_time = threading.Lock()
        self._read_the_list = True
        self._ours: dict[str, Group] = {}
        self._others: set[str] = set()
        # The nodes show a change with some delay; until then, these sets hold it.
        self._made: set[str] = set()
        self._removed: set[str] = set()

    def make(self, lease: Lease, node_ids: Sequence[NodeId], within_s: int) -> str | None:
        """The group is detached: it outlives the process that made it, and is found by its name."""
        try:
            group = placement_group(
                [part.resources.to_ray() for part in lease.shares or (lease,)],
                name=lease.group_name,
                lifetime="detached",
                bundle_label_selector=[{"ray.io/node-id": node_id} for node_id in node_ids],
            )
            fault_point(Point.GROUP_MADE)
            if not group.wait(within_s):  # Ray accepts whole seconds only
                remove_placement_group(group)
                return None
            if lease.is_cap and not self._limited(lease, str(group.id.hex()), node_ids[0]):
                remove_placement_group(group)
                return None
        except BaseException:
            self._read_the_list = True  # a group may exist that is not known here
            raise
        group_id = str(group.id.hex())
        self._made.add(group_id)
        return group_id

    def _limited(self, lease: Lease, group_id: str, node_id: NodeId) -> bool:
        """Keep work possible that the lease of a limit may grow to; see `Extensions.limit`."""
        assert lease.elastic is not None
        held = self._extensions.limit(node_id, group_id, ResourceVector({lease.kind: lease.elastic.most}))
        group = placement_group(
            [held],
            name=f"{lease.group_name}{_LIMIT}",
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node_id}],
        )
        if is_held := group.wait(_LIMIT_S):
            self._made.add(str(group.id.hex()))
        else:
            remove_placement_group(group)
        return bool(is_held)

    def remove(self, group_id: str) -> None:
        name = next((group.name for group in self._ours.values() if group.id == group_id), None)
        limits = [group.id for group in self._ours.values() if name and group.name == f"{name}{_LIMIT}"]
        for limit in limits:
            remove_placement_group(group_handle(limit))
            self._removed.add(limit)
        remove_placement_group(group_handle(group_id))
        self._removed.add(group_id)

    def is_idle(self, raylet: Raylet, group_id: str) -> bool:
        return ray_rpc.is_group_idle(raylet, group_id)

    def holders(self, raylet: Raylet, group_id: str) -> tuple[Holder, ...]:
        return ray_rpc.holders_in_group(raylet, group_id, self._gcs_address)

    def held(self, raylet: Raylet, group_id: str, seen: NodeView) -> RayMap | None:
        marks = f"_group_{group_id}"
        parts = [name for name in seen.total if name.endswith(marks)]
        held = {name.removesuffix(marks): seen.total[name] - seen.free.get(name, 0.0) for name in parts}
        return {name: amount for name, amount in held.items() if amount > 0} if parts else None

    def occupants(self, raylet: Raylet) -> Mapping[str, tuple[Occupant, ...]] | None:
        return ray_rpc.occupants_of_groups(raylet)

    def extend(self, raylet: Raylet, group_id: str, more: ResourceVector, *, insists: bool = False) -> ResourceVector:
        return self._extensions.set(raylet, group_id, more, insists=insists)

    def end_extension(self, raylet: Raylet, group_id: str) -> None:
        self._extensions.set(raylet, group_id, ResourceVector(), insists=True, ends=True)

    def extensions(self, seen: NodeView) -> Mapping[str, Extension]:
        return self._extensions.seen(seen)

    def holders_in_extension(self, raylet: Raylet, group_id: str) -> tuple[Holder, ...]:
        return ray_rpc.holders_in_bundle(raylet, group_id, NUMBER, self._gcs_address)

    def cancel_tasks(self, group_id: str) -> int:
        return ray_rpc.cancel_tasks_in_group(self._nodes.raylets(), group_id)

    def there(self, *, afresh: bool = False) -> tuple[Group, ...]:
        with self._one_at_a_time:
            whole, self._read_the_list = self._read_the_list or afresh, False
            try:
                self._ours = self._listed() if whole else self._looked_up(self._ours)
            except BaseException:
                self._read_the_list = True
                raise
            found = [group for group in self._ours.values() if group.id not in self._removed]
            names = {group.name for group in found}
            # A limit belongs to the group that it is for; without that, it is one of no boost.
            return tuple(group for group in found if group.name.removesuffix(_LIMIT) not in names - {group.name})

    def _listed(self) -> dict[str, Group]:
        return {group.id: group for group in listed(self._gcs_address)}

    def _looked_up(self, before: dict[str, Group]) -> dict[str, Group]:
        made = frozenset(self._made)
        shown = {group_id for node in self._nodes.totals().values() for group_id in _groups_on(node)}
        self._others &= shown
        self._removed &= shown
        certain = {id_: group for id_, group in before.items() if group.stands and id_ in shown}
        doubtful = (shown | before.keys() | made) - certain.keys() - self._others
        groups = (ask(self._gcs_address, group_id) for group_id in sorted(doubtful))
        found = certain | {group.id: group for group in groups if group is not None}
        self._others |= shown - found.keys()
        self._made -= made
        return found


def listed(gcs_address: str) -> tuple[Group, ...]:
    """All of grid's groups, from the list of all groups."""
    reply = _stub(gcs_address).GetAllPlacementGroup(gcs_service_pb2.GetAllPlacementGroupRequest(), timeout=_TIMEOUT_S)
    return tuple(filter(None, map(_group, reply.placement_group_table_data)))


def ask(gcs_address: str, group_id: str) -> Group | None:
    """The group with this id; None if it is gone or not grid's."""
    request = gcs_service_pb2.GetPlacementGroupRequest(placement_group_id=bytes.fromhex(group_id))
    return _group(_stub(gcs_address).GetPlacementGroup(request, timeout=_TIMEOUT_S).placement_group_table_data)


@lru_cache(maxsize=4)
def _stub(gcs_address: str) -> Any:
    return gcs_service_pb2_grpc.PlacementGroupInfoGcsServiceStub(init_grpc_channel(gcs_address))


def _groups_on(totals: RayMap) -> Iterable[str]:
    """The ids of the groups on a node: `bundle_group_ID` is a group, `bundle_group_0_ID` its first bundle there."""
    ids = (name.removeprefix(_ON_A_NODE) for name in totals if name.startswith(_ON_A_NODE))
    return (found for found in ids if "_" not in found)


def _group(data: Any) -> Group | None:
    if not data.name.startswith(GROUP_PREFIX) or data.state == _State.REMOVED:
        return None
    return Group(
        data.placement_group_id.hex(),
        data.name,
        Delivery.RESERVE,
        stands=data.state == _State.CREATED,
        bundles=tuple(bundle.node_id.hex() or None for bundle in data.bundles),
        resources=total([ResourceVector.from_ray(dict(one.unit_resources)) for one in data.bundles if one.node_id]),
    )
