"""What every node has lent and borrowed, summed up once for all who ask."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector

_Sums = Mapping[NodeName, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Loans:
    """The sums over all leases that hold capacity, in whatever way; each counts until it is home again."""

    _lent: _Sums
    _borrowed: _Sums
    _moved_in: _Sums

    @classmethod
    def of(cls, leases: Iterable[Lease]) -> "Loans":
        lent: dict[NodeName, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        borrowed: dict[NodeName, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        moved_in: dict[NodeName, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for lease in leases:
            if not lease.holds_capacity:
                continue
            for kind, units in lease.resources.items():
                lent[lease.source][kind] += units
                borrowed[lease.target][kind] += units
            if lease.delivery is Delivery.TRANSFER:
                moved_in[lease.target][lease.kind] += lease.units
        return cls(lent, borrowed, moved_in)

    def lent_by(self, node: NodeName) -> ResourceVector:
        """What a node has given away; it counts against its limits."""
        return ResourceVector(self._lent.get(node))

    def borrowed_by(self, node: NodeName) -> ResourceVector:
        """What a node was given, on itself or reserved elsewhere."""
        return ResourceVector(self._borrowed.get(node))

    def moved_to(self, node: NodeName) -> ResourceVector:
        """What a node was given on itself."""
        return ResourceVector(self._moved_in.get(node))
