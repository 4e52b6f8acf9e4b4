"""Placement groups on the lender, for the borrower's work alone; and which of grid's groups exist.

Ray's own list holds every group that was ever made, including removed ones: with 4,500 of them it takes 0.1 s to read.
But a node's resources show each group that stands on it, so reading the nodes tells which groups exist. The list is
read once at the start, and when certainty is needed.
"""

import re
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
from distributed_grid.execution.port import Extension, Group, Holder, NodeView, Raylets, RayletSilent, RayMap
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


def inside_elastic(group_id: str, most_cpus: float) -> PlacementGroupSchedulingStrategy:
    """The same for the group of an elastic lease, wherever it has room. Ray refuses at once what is larger than each of
    the bundles that it knows of a group, so it gets to know what the lease may grow to."""
    group = PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id)), [{"CPU": most_cpus}])
    return PlacementGroupSchedulingStrategy(group, -1, True)


def asking_for(resources: ResourceVector) -> dict[str, object]:
    """Ray's options for a task or actor that needs these resources."""
    amounts = resources.to_ray()
    cpus, gpus, memory = (amounts.pop(name, 0.0) for name in ("CPU", "GPU", "memory"))
    return {"num_cpus": cpus, "num_gpus": gpus, "memory": memory or None, "resources": amounts}


GROUP_PREFIX: Final = "grid-boost-"
_ON_A_NODE: Final = "bundle_group_"
_PLACE: Final = "bundle"
"""Ray's own mark of a place in a group: everything that runs in the group holds a thousandth."""
_PLACES: Final = 1000.0
_EXTENSION: Final = 9999
"""The number of the bundle that extends a group. Ray does not know it as one of the group's bundles: it exists only as
resources of a node, which are named like those of a bundle. No request has so many members."""
_SUM: Final = -1
"""All bundles of a group on one node together: work that names no bundle asks for these resources."""
_EXTENDED: Final = re.compile(rf"(?P<name>.+)_group_{_EXTENSION}_(?P<group>[0-9a-f]{{16,}})")
_OF_A_BUNDLE: Final = re.compile(r"(?P<name>.+)_group_((?P<number>\d{1,5})_)?(?P<group>[0-9a-f]{16,})")
_TIMEOUT_S: Final = 5.0
_State: Final = gcs_pb2.PlacementGroupTableData.PlacementGroupState


class Groups:
    """The mechanism of `Delivery.RESERVE`. Caches which groups exist: a group's id is never reused, and its name never
    changes."""

    def __init__(self, gcs_address: str, nodes: Raylets) -> None:
        self._gcs_address = gcs_address
        self._nodes = nodes
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
        except BaseException:
            self._read_the_list = True  # a group may exist that is not known here
            raise
        group_id = str(group.id.hex())
        self._made.add(group_id)
        return group_id

    def remove(self, group_id: str) -> None:
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

    def extend(self, raylet: Raylet, group_id: str, more: ResourceVector) -> ResourceVector:
        said = ray_rpc.reported_by(raylet)
        if said is None:
            raise RayletSilent(raylet.node_id)
        wanted, on_node = more.to_ray(), _of_group(said.total, group_id)
        names = (on_node.keys() | wanted.keys()) - {_PLACE}
        reached = {name: on_node.get(name, {}).get(_EXTENSION, 0.0) for name in names}
        shrinks = {name: wanted.get(name, 0.0) for name in names if wanted.get(name, 0.0) < reached[name]}
        if shrinks:
            # Work holds a bundle's part and the group's sum of it. The bundle's part gives way first, as far as it is
            # idle; the sum follows what was reached.
            shown = self._nodes.resize(
                raylet.node_id, {_name(name, group_id, _EXTENSION): to for name, to in shrinks.items()}
            )
            reached |= {name: shown.get(_name(name, group_id, _EXTENSION), 0.0) for name in shrinks}
        reached |= {name: wanted[name] for name in wanted if wanted[name] > reached[name]}
        totals: dict[str, float] = {}
        for name in (*names, _PLACE):
            size = reached[name] if name != _PLACE else float(any(reached.values())) * _PLACES
            parts = on_node.get(name, {})
            of_bundles = sum(amount for number, amount in parts.items() if number not in (_EXTENSION, _SUM))
            if parts.get(_EXTENSION, 0.0) != size or parts.get(_SUM, 0.0) != of_bundles + size:
                totals[_name(name, group_id, _EXTENSION)] = size
                totals[_name(name, group_id, _SUM)] = of_bundles + size
        if totals:
            self._nodes.resize(raylet.node_id, totals)
        return ResourceVector.from_ray(reached)

    def extensions(self, seen: NodeView) -> Mapping[str, Extension]:
        found: dict[str, tuple[dict[str, float], dict[str, float]]] = {}
        for name, size in seen.total.items():
            match = _EXTENDED.fullmatch(name)
            if match is not None and match["name"] != _PLACE:
                has, in_use = found.setdefault(match["group"], ({}, {}))
                has[match["name"]] = size
                in_use[match["name"]] = size - seen.free.get(name, 0.0)
        return {
            group: Extension(ResourceVector.from_ray(has), ResourceVector.from_ray(in_use))
            for group, (has, in_use) in found.items()
        }

    def holders_in_extension(self, raylet: Raylet, group_id: str) -> tuple[Holder, ...]:
        return ray_rpc.holders_in_bundle(raylet, group_id, _EXTENSION, self._gcs_address)

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
            return tuple(group for group in self._ours.values() if group.id not in self._removed)

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


def _name(name: str, group_id: str, number: int) -> str:
    """A node's resource for one bundle of a group, or for all of them there."""
    return f"{name}_group_{group_id}" if number == _SUM else f"{name}_group_{number}_{group_id}"


def _of_group(totals: RayMap, group_id: str) -> dict[str, dict[int, float]]:
    """What a group has on a node: by resource, then by bundle."""
    found: dict[str, dict[int, float]] = {}
    for name, size in totals.items():
        match = _OF_A_BUNDLE.fullmatch(name) if group_id in name else None
        if match is not None and match["group"] == group_id:
            found.setdefault(match["name"], {})[int(match["number"] or _SUM)] = size
    return found


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
