"""Usage: what leases hold of each node and for each team, summed once for all callers."""

from collections.abc import Collection, Iterable
from typing import Final

from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plans import Grant
from distributed_grid.model.resources import ResourceVector

_Sums = dict[str, dict[str, int]]

_BY_NODE: Final = ("_taken", "_lent", "_borrowed", "_moved_in", "_moved_out")


class Usage:
    """The sums over all leases that hold capacity, under any delivery. A lease counts until it is back.

    The growth of elastic leases counts on its nodes, and not for its team: it yields to every request, so it must keep
    none from what the team may have. `with_growth` counts it for the team as well.
    """

    __slots__ = ("_borrowed", "_grown", "_lent", "_moved_in", "_moved_out", "_of_all", "_of_team", "_taken")

    def __init__(self) -> None:
        self._taken: _Sums = {}
        self._lent: _Sums = {}
        self._borrowed: _Sums = {}
        self._moved_in: _Sums = {}
        self._moved_out: _Sums = {}
        self._of_team: _Sums = {}
        self._grown: _Sums = {}
        self._of_all: dict[str, int] = {}

    @classmethod
    def of(cls, leases: Iterable[Lease]) -> "Usage":
        usage = cls()
        for lease in leases:
            usage.count(lease)
        return usage

    def count(self, lease: Lease, times: int = 1) -> None:
        """Add a lease, or remove one with `times=-1`; for callers that keep the sums as leases come and go."""
        if lease.holds_capacity:
            for part in lease.shares or (lease,):
                self._count(part.source, lease.target, part.resources, times)
                self._count_team(lease.team, part.resources, times, is_growth=bool(lease.grows))
                if lease.delivery.moves_totals:
                    self._move(part.source, lease.target, lease.kind, times * part.units)

    def promise(self, grant: Grant, times: int = 1) -> None:
        """The same for a grant that is to become a lease."""
        ask = grant.ask
        self._count(grant.source, ask.target, grant.resources, times)
        self._count_team(ask.team, grant.resources, times, is_growth=bool(ask.grows))
        if grant.delivery.moves_totals:
            self._move(grant.source, ask.target, ask.kind, times * ask.units)

    def _move(self, source: NodeName, target: NodeName, kind: str, units: int) -> None:
        _add(self._moved_out, source, kind, units)
        _add(self._moved_in, target, kind, units)

    def _count_team(self, team: str, resources: ResourceVector, times: int, *, is_growth: bool) -> None:
        for kind, units in resources.items():
            _add(self._grown if is_growth else self._of_team, team, kind, times * units)
            if not is_growth:
                self._of_all[kind] = self._of_all.get(kind, 0) + times * units

    def _count(self, source: NodeName, target: NodeName, resources: ResourceVector, times: int) -> None:
        for kind, units in resources.items():
            _add(self._taken, source, kind, times * units)
            if source != target:
                _add(self._lent, source, kind, times * units)
                _add(self._borrowed, target, kind, times * units)

    def without(self, leases: Iterable[Lease]) -> "Usage":
        """The sums as if these leases were back; for a what-if."""
        found = Usage()
        for name in (*_BY_NODE, "_of_team", "_grown"):
            setattr(found, name, {key: dict(sums) for key, sums in getattr(self, name).items()})
        found._of_all = dict(self._of_all)
        for lease in leases:
            found.count(lease, -1)
        return found

    def with_growth(self) -> "Usage":
        """The sums with the growth of elastic leases counted for its team: what a team really has."""
        found = self.without(())
        for team, sums in found._grown.items():
            for kind, units in sums.items():
                _add(found._of_team, team, kind, units)
                found._of_all[kind] = found._of_all.get(kind, 0) + units
        found._grown = {}
        return found

    def on(self, node: NodeName, more: ResourceVector) -> "Usage":
        """The sums of one node alone, as if it lent this in addition."""
        found = Usage()
        for name in _BY_NODE:
            if sums := getattr(self, name).get(node):
                setattr(found, name, {node: dict(sums)})
        for kind, units in more.items():
            _add(found._taken, node, kind, units)
            _add(found._lent, node, kind, units)
        return found

    def taken(self, node: NodeName, kind: str) -> int:
        """The amounts that leases hold on a node: lent to others, or for its own work."""
        sums = self._taken.get(node)
        return sums.get(kind, 0) if sums else 0

    def lent(self, node: NodeName, kind: str) -> int:
        sums = self._lent.get(node)
        return sums.get(kind, 0) if sums else 0

    def moved_in(self, node: NodeName, kind: str) -> int:
        sums = self._moved_in.get(node)
        return sums.get(kind, 0) if sums else 0

    def with_moved_in(self, kinds: Collection[str]) -> set[NodeName]:
        """The nodes to which any of these kinds was moved."""
        return {node for node, sums in self._moved_in.items() if any(sums.get(kind) for kind in kinds)}

    def held(self, team: str, kind: str) -> int:
        """The amount of a kind that a team holds, companions included."""
        sums = self._of_team.get(team)
        return sums.get(kind, 0) if sums else 0

    def held_by_all(self, kind: str) -> int:
        return self._of_all.get(kind, 0)

    def taken_on(self, node: NodeName) -> ResourceVector:
        """The amounts that leases hold on a node: lent to others, or for its own work."""
        return ResourceVector(self._taken.get(node))

    def lent_by(self, node: NodeName) -> ResourceVector:
        """The amounts that a node lends; they count against the node's limits."""
        return ResourceVector(self._lent.get(node))

    def borrowed_by(self, node: NodeName) -> ResourceVector:
        """The amounts that a node borrows, moved to it or reserved elsewhere."""
        return ResourceVector(self._borrowed.get(node))

    def moved_to(self, node: NodeName) -> ResourceVector:
        """The amounts that were moved to a node."""
        return ResourceVector(self._moved_in.get(node))

    def moved_from(self, node: NodeName) -> ResourceVector:
        """The amounts that were moved from a node to others."""
        return ResourceVector(self._moved_out.get(node))

    def reserved_for_others(self, node: NodeName) -> ResourceVector:
        """The amounts that are reserved on a node for other nodes.

        What it reserves for itself is its own work. Capacity that moved away puts no load on the node.
        """
        return self.lent_by(node) - self.moved_from(node)

    def held_by(self, team: str) -> ResourceVector:
        return ResourceVector(self._of_team.get(team))


def _add(sums: _Sums, key: str, kind: str, units: int) -> None:
    of_key = sums.setdefault(key, {})
    of_key[kind] = of_key.get(kind, 0) + units
