"""What one lender could do for a request if some of its leases came home: tried and undone as often as it takes."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from distributed_grid.decide.homecoming import once_home, part_of
from distributed_grid.decide.lending import Offer, obstacle, room
from distributed_grid.decide.loans import Loans
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.rules import Rules


@dataclass(frozen=True, slots=True)
class Standing:
    """A request in the cluster as it is, and what is on its way home already."""

    ask: Ask
    nodes: NodeTable
    leases: tuple[Lease, ...]
    rules: Rules
    back: tuple[Lease, ...]
    loans: Loans
    """Without what is on its way home. A what-if takes leases out of these sums and puts them back."""


class Yielding:
    """One lender, and the leases there that may be taken for the request."""

    def __init__(self, standing: Standing, lender: NodeName, guarded: Collection[str]) -> None:
        self._standing = standing
        self._lender = lender
        self._guarded = guarded
        both = (lender, standing.ask.target)
        self._pair = NodeTable(standing.nodes[name] for name in both)
        self._near = tuple(lease for lease in standing.leases if lease.source in both or lease.target in both)
        self._back = tuple(lease for lease in standing.back if lease.source in both or lease.target in both)
        self.short = self._short()

    def _short(self) -> ResourceVector:
        """What the lender lacks once that is home which comes anyway."""
        pair = once_home(self._pair, self._near, self._back)
        rules, loans = self._standing.rules, self._standing.loans
        need = Offer.of(self._standing.ask, pair, rules).need
        lender = pair[self._lender]
        lacks = {kind: units - room(lender, kind, loans, rules.reserve) for kind, units in need.items()}
        return ResourceVector(lacks).at_least_zero()

    def enough(self, victims: tuple[Lease, ...]) -> bool:
        """Whether the lender could lend what is asked if these came home, as far as they may be taken."""
        taken = self.may_take(victims)
        pair = once_home(self._pair, self._near, (*self._back, *taken))
        offer = Offer.of(self._standing.ask, pair, self._standing.rules)
        loans = self._standing.loans
        for lease in taken:
            loans.count(lease, -1)
        found = obstacle(pair[self._lender], offer, loans)
        for lease in taken:
            loans.count(lease)
        return found is None

    def may_take(self, victims: Iterable[Lease]) -> tuple[Lease, ...]:
        """These leases, or the parts of them, whose return leaves the teams of the guarded ones what is guaranteed.

        What a lease is for counts, and what the lender is short of, but not what else comes along: a guarantee of CPUs
        keeps nobody's GPU.
        """
        left: dict[tuple[str, str], int] = {}
        taken = []
        for lease in sorted(victims, key=lambda lease: lease.id in self._guarded):
            part: Lease | None = lease
            kinds = [kind for kind in lease.resources if kind in self.short or kind == lease.kind]
            for kind in kinds:
                left.setdefault((lease.team, kind), self._above_guarantee(lease.team, kind))
            if lease.id in self._guarded:
                part = _within(lease, {kind: left[lease.team, kind] for kind in kinds})
            if part is not None:
                taken.append(part)
                for kind in kinds:
                    left[lease.team, kind] -= part.resources[kind]
        return tuple(taken)

    def _above_guarantee(self, team: str, kind: str) -> int:
        return self._standing.loans.held(team, kind) - self._standing.rules.teams.of(team).guaranteed[kind]


def _within(lease: Lease, most: dict[str, int]) -> Lease | None:
    """The lease, or the part of it, that is within these amounts; None if none is. A reservation has no parts."""
    if lease.delivery is Delivery.TRANSFER:
        units = min(lease.units, most.get(lease.kind, lease.units))
        return part_of(lease, units) if units > 0 else None
    return lease if all(lease.resources[kind] <= units for kind, units in most.items()) else None
