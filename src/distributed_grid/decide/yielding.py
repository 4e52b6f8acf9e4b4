"""What one lender could do for a request if some of its leases came home: tried and undone as often as it takes."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from distributed_grid.decide.homecoming import Homecoming, part_of
from distributed_grid.decide.lending import Offer, obstacle, room
from distributed_grid.decide.loans import Loans
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.rules import Rules


@dataclass(frozen=True, slots=True)
class Standing:
    """A request in the cluster as it is, and what is on its way home already."""

    ask: Ask
    nodes: NodeTable
    rules: Rules
    home: Homecoming
    loans: Loans
    """Without what is on its way home. A what-if takes leases out of these sums and puts them back."""


class Yielding:
    """One lender, and the leases there that may be taken for the request."""

    def __init__(self, standing: Standing, lender: NodeName, guarded: Collection[str]) -> None:
        self._standing = standing
        self._lender = lender
        self._guarded = guarded
        self._pair = tuple(standing.nodes[name] for name in (lender, standing.ask.target))
        self.short = self._short()

    def _offered(self, taken: tuple[Lease, ...]) -> tuple[Node, Offer]:
        """The lender, and what is asked of it, once that is home which comes anyway, and what is taken."""
        pair = NodeTable(self._standing.home.of(node, taken) for node in self._pair)
        return pair[self._lender], Offer.of(self._standing.ask, pair, self._standing.rules)

    def _short(self) -> ResourceVector:
        lender, offer = self._offered(())
        loans, reserve = self._standing.loans, self._standing.rules.reserve
        lacks = {kind: units - room(lender, kind, loans, reserve) for kind, units in offer.need.items()}
        return ResourceVector(lacks).at_least_zero()

    def enough(self, victims: tuple[Lease, ...]) -> bool:
        """Whether the lender could lend what is asked if these came home, as far as they may be taken."""
        taken = self.may_take(victims)
        lender, offer = self._offered(taken)
        loans = self._standing.loans
        for lease in taken:
            loans.count(lease, -1)
        found = obstacle(lender, offer, loans)
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
