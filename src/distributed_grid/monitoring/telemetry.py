"""Telemetry: what measuring needs from a cluster, and pending demand as Ray's control service reports it.

Ray reports on which node single tasks and actors are queued, and their label selectors. It does not report:

- tasks that are pinned to a node by its id and wait for it: Ray's autoscaler could not help them, and this is what it
  reads;
- the labels of a `NodeLabelSchedulingStrategy`. But where Ray calls a request infeasible although a node is large
  enough, such a strategy keeps the request off that node: it may run only on nodes that are too small for it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

import ray._raylet
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import autoscaler_pb2, common_pb2, gcs_service_pb2, gcs_service_pb2_grpc

from distributed_grid import threads
from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.decide.monitoring.snapshots import Answers
from distributed_grid.model.demand import Bundle, LabelConstraint, Pending, Pin, Selector, Shape
from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import ResourceVector, describes_a_node
from distributed_grid.model.snapshots import Reading

_TIMEOUT_S: Final = 5.0
_IN: Final = common_pb2.LabelSelectorOperator.LABEL_OPERATOR_IN
# CPU_group_ID stands for any bundle, CPU_group_0_ID for the first one.
_IN_GROUP: Final = re.compile(r"(?P<name>.+)_group_(\d+_)?(?P<group>[0-9a-f]{16,})")


class DemandReader:
    """Reads the queues of one cluster. Blocking: one call for tasks and actors, one for placement groups."""

    def __init__(self, gcs_address: str) -> None:
        self._gcs: Any = ray._raylet.GcsClient(address=gcs_address)
        self._nodes: Any = gcs_service_pb2_grpc.NodeResourceInfoGcsServiceStub(init_grpc_channel(gcs_address))

    def pending(self, names: Mapping[NodeId, NodeName]) -> tuple[Pending, ...]:
        """Everything that waits for room. `names` are the nodes of the cluster."""
        usage = self._nodes.GetAllResourceUsage(gcs_service_pb2.GetAllResourceUsageRequest(), timeout=_TIMEOUT_S)
        state = autoscaler_pb2.GetClusterResourceStateReply.FromString(self._gcs.get_cluster_resource_state())
        batch = usage.resource_usage_data.batch
        return (
            *pending_requests(batch, names),
            *pending_groups(state.cluster_resource_state.pending_gang_resource_requests, _totals(batch, names)),
        )


_Totals = Mapping[NodeName, Mapping[str, float]]
"""The capacity of each node, in Ray's own names and amounts."""


def _totals(batch: Iterable[Any], names: Mapping[NodeId, NodeName]) -> _Totals:
    return {names[found]: node.resources_total for node in batch if (found := node.node_id.hex()) in names}


def pending_requests(batch: Iterable[Any], names: Mapping[NodeId, NodeName]) -> tuple[Pending, ...]:
    """Single tasks and actors, grouped by shape, across the nodes they are queued on."""
    nodes = list(batch)
    totals = _totals(nodes, names)
    counts: dict[Shape, dict[NodeName, int]] = {}
    for node in nodes:
        name = names.get(node.node_id.hex(), node.node_id.hex()[:8])
        for demand in node.resource_load_by_shape.resource_demands:
            shape = _shape(demand.shape, demand.label_selectors, totals)
            if shape is None:
                continue
            waiting = demand.num_ready_requests_queued + demand.backlog_size
            never = demand.num_infeasible_requests_queued
            pinned = _pinned_unreported(shape, demand.shape, totals) if never else shape
            for one, count in ((shape, waiting), (pinned, never)):
                if count:
                    queued = counts.setdefault(one, {})
                    queued[name] = queued.get(name, 0) + count
    return tuple(Pending(shape, sum(queued.values()), queued) for shape, queued in counts.items())


def pending_groups(gangs: Iterable[Any], totals: _Totals) -> tuple[Pending, ...]:
    counts: dict[Shape, int] = {}
    for gang in gangs:
        # "ID:STRATEGY|STATE"
        strategy = gang.details.rpartition(":")[2].partition("|")[0] or "PACK"
        bundles = [_bundle(request.resources_bundle, request.label_selectors, totals) for request in gang.requests]
        shape = Shape(tuple(bundles), strategy=strategy)
        counts[shape] = counts.get(shape, 0) + 1
    return tuple(Pending(shape, count) for shape, count in counts.items())


def _shape(resources: Mapping[str, float], selectors: Iterable[Any], totals: _Totals) -> Shape | None:
    """None for a request that needs no resources: it waits for a process to run in, not for room."""
    inside = {match["group"] for name in resources if (match := _IN_GROUP.fullmatch(name))}
    if inside:
        plain = dict(_outside_names(resources))
        return Shape((_bundle(plain, (), totals),), in_group=min(inside))
    bundle = _bundle(resources, selectors, totals)
    return Shape((bundle,)) if bundle.needs or bundle.pin else None


def _pinned_unreported(shape: Shape, resources: Mapping[str, float], totals: _Totals) -> Shape:
    """The shape of a request that Ray calls infeasible: pinned, if a node is large enough that it may not use."""
    (bundle,) = shape.bundles
    if shape.in_group is not None or bundle.is_pinned:
        return shape
    small = tuple(sorted(name for name, total in totals.items() if not _covers(total, resources)))
    if len(small) == len(totals):
        return shape
    return replace(shape, bundles=(replace(bundle, pin=Pin("its scheduling strategy", small)),))


def _bundle(resources: Mapping[str, float], selectors: Iterable[object], totals: _Totals) -> Bundle:
    """A resource that describes a node (`accelerator_type:H200`) is not an amount: it says which nodes are suitable."""
    wanted = {name: amount for name, amount in resources.items() if describes_a_node(name)}
    pin = None
    if wanted:
        nodes = tuple(sorted(name for name, total in totals.items() if _covers(total, wanted)))
        pin = Pin(" and ".join(sorted(wanted)), nodes)
    return Bundle(ResourceVector.from_ray(resources), tuple(_selectors(selectors)), pin)


def _covers(total: Mapping[str, float], needs: Mapping[str, float]) -> bool:
    return all(total.get(name, 0.0) >= amount for name, amount in needs.items())


def _outside_names(resources: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    """The group's names for resources, converted to their usual names. `bundle` only says that it is in a group."""
    for name, amount in resources.items():
        match = _IN_GROUP.fullmatch(name)
        if match is None:
            yield name, amount
        elif match["name"] != "bundle":
            yield match["name"], amount


def _selectors(found: Iterable[Any]) -> list[Selector]:
    """The selectors that ask for something. An empty selector allows every node."""
    selectors = [
        tuple(
            sorted(
                LabelConstraint(c.label_key, tuple(sorted(c.label_values)), is_in=c.operator == _IN)
                for c in selector.label_constraints
            )
        )
        for selector in found
    ]
    return [] if () in selectors else selectors


class Telemetry(Protocol):
    """Used by one round at a time."""

    async def read(self, raylets: dict[NodeName, Raylet], within_s: float) -> Answers: ...
    async def pending(self, names: dict[NodeId, NodeName]) -> tuple[Pending, ...]: ...
    async def leave(self) -> None:
        """Remove from the cluster everything that measuring put there."""


class RayTelemetry:
    """Probes on the nodes and the queues of the control service. Blocking calls run in threads."""

    def __init__(self, gcs_address: str) -> None:
        from distributed_grid.monitoring.probes import Probes

        self._probes = Probes()
        self.on = self._probes.on
        self._queues = DemandReader(gcs_address)

    async def read(self, raylets: dict[NodeName, Raylet], within_s: float) -> Answers:
        return await threads.NODE_TASKS.run(self._read, raylets, within_s)

    def _read(self, raylets: dict[NodeName, Raylet], within_s: float) -> Answers:
        self._probes.keep(raylets.values(), within_s)
        found = self._probes.read_all(within_s)
        return {id_: answer if isinstance(answer, Reading) else answer.because for id_, answer in found.items()}

    async def pending(self, names: dict[NodeId, NodeName]) -> tuple[Pending, ...]:
        return await threads.NODE_TASKS.run(self._queues.pending, names)

    async def leave(self) -> None:
        await threads.NODE_TASKS.run(self._probes.stop)
