"""The cluster as it will be once leases have come home: for a what-if."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.resources import ResourceVector

_Amounts = dict[tuple[NodeName, str], int]


def coming_back(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """What is on its way home already: leases that wind down, and what holders are asked to give up."""
    return tuple(
        lease if lease.is_winding_down or lease.notice is None else part_of(lease, lease.notice.units)
        for lease in leases
        if lease.is_winding_down or (lease.holds_capacity and lease.notice is not None)
    )


def part_of(lease: Lease, units: int) -> Lease:
    """The lease as if it were for `units` only; a reservation comes back whole."""
    if units >= lease.units or lease.delivery is not Delivery.TRANSFER:
        return lease
    return replace(lease, units=units, resources=ResourceVector({lease.kind: units}))


def once_home(nodes: NodeTable, leases: Iterable[Lease], back: Collection[Lease]) -> NodeTable:
    """The nodes once `back`, which are some of the `leases` or parts of them, have come home.

    A transfer that winds down may be partly home already. So a node's total goes to what the leases that stay want it
    to be, and no further than what comes back could take it.
    """
    if not back:
        return nodes
    out, into = _moved(leases)
    out_back, into_back = _moved(back)
    freed: dict[NodeName, ResourceVector] = defaultdict(ResourceVector)
    for lease in back:
        if lease.delivery is Delivery.RESERVE:
            freed[lease.source] += lease.resources
    touched = {*freed, *(name for name, _ in (*out_back, *into_back))}

    def settled(node: Node) -> Node:
        steps: dict[str, int] = {}
        for kind in {kind for name, kind in (*out_back, *into_back) if name == node.name}:
            at = (node.name, kind)
            wanted = node.base[kind] - out[at] + out_back[at] + into[at] - into_back[at]
            steps[kind] = min(max(wanted - node.total[kind], -into_back[at]), out_back[at])
        moved = ResourceVector(steps)
        return replace(node, total=node.total + moved, free=node.free + moved + freed[node.name])

    return NodeTable(settled(node) if node.name in touched else node for node in nodes.values())


def _moved(leases: Iterable[Lease]) -> tuple[_Amounts, _Amounts]:
    """What transfers took from each node, and what they brought to each, by kind."""
    out: _Amounts = defaultdict(int)
    into: _Amounts = defaultdict(int)
    for lease in leases:
        if lease.delivery is Delivery.TRANSFER and lease.holds_capacity:
            out[lease.source, lease.kind] += lease.units
            into[lease.target, lease.kind] += lease.units
    return out, into
