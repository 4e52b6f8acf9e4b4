"""The cluster as it will be once leases have come home: for a what-if."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime

from distributed_grid.decide.claims import is_overheld
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.resources import ResourceVector


def coming_back(leases: Iterable[Lease], now: datetime | None = None) -> tuple[Lease, ...]:
    """What is on its way home already: leases that wind down, and what holders are asked to give up.

    With `now`: without those that were given back, and are kept by their work for longer than their grace period.
    """
    return tuple(
        lease if lease.is_winding_down or lease.notice is None else part_of(lease, lease.notice.units)
        for lease in leases
        if (lease.is_winding_down and (now is None or not is_overheld(lease, now)))
        or (lease.holds_capacity and lease.notice is not None)
    )


def part_of(lease: Lease, units: int) -> Lease:
    """The lease as if it were for `units` only; a reservation comes back whole."""
    if units >= lease.units or lease.delivery is not Delivery.TRANSFER:
        return lease
    return replace(lease, units=units, resources=ResourceVector({lease.kind: units}))


def once_home(nodes: NodeTable, leases: Iterable[Lease], back: Collection[Lease]) -> NodeTable:
    """The nodes once `back`, which are some of the `leases` or parts of them, have come home."""
    if not back:
        return nodes
    touched = {name for lease in back for name in (lease.source, lease.target)}
    home = Homecoming(leases, back)
    return NodeTable(home.of(node) if node.name in touched else node for node in nodes.values())


class Homecoming:
    """What comes home, summed up once for all who ask about one node or another, with this or that lease besides."""

    def __init__(self, leases: Iterable[Lease], back: Iterable[Lease]) -> None:
        self._all = _Moves(leases)
        self._back = _Moves(back)

    def of(self, node: Node, besides: Iterable[Lease] = ()) -> Node:
        """The node once all that is home, and these leases, too.

        A transfer that winds down may be partly home already. So its total goes to what the leases that stay want it
        to be, and no further than what comes back could take it.
        """
        more = _Moves(lease for lease in besides if node.name in (lease.source, lease.target))
        steps = {}
        for kind in {**self._back.kinds(node.name), **more.kinds(node.name)}:
            at = (node.name, kind)
            out, into = self._back.out[at] + more.out[at], self._back.into[at] + more.into[at]
            wanted = node.base[kind] - (self._all.out[at] - out) + (self._all.into[at] - into)
            steps[kind] = min(max(wanted - node.total[kind], -into), out)
        moved = ResourceVector(steps)
        freed = self._back.freed[node.name] + more.freed[node.name]
        return replace(node, total=node.total + moved, free=node.free + moved + freed)


class _Moves:
    """What transfers took from each node and brought to it, by kind, and what reservations hold there."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        self.out: defaultdict[tuple[NodeName, str], int] = defaultdict(int)
        self.into: defaultdict[tuple[NodeName, str], int] = defaultdict(int)
        self.freed: defaultdict[NodeName, ResourceVector] = defaultdict(ResourceVector)
        self._kinds: defaultdict[NodeName, dict[str, None]] = defaultdict(dict)
        for lease in leases:
            if not lease.holds_capacity:
                continue
            if lease.delivery is Delivery.RESERVE:
                self.freed[lease.source] += lease.resources
                continue
            self.out[lease.source, lease.kind] += lease.units
            self.into[lease.target, lease.kind] += lease.units
            self._kinds[lease.source][lease.kind] = self._kinds[lease.target][lease.kind] = None

    def kinds(self, name: NodeName) -> dict[str, None]:
        return self._kinds.get(name, {})
