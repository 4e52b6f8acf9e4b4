"""What one lender could do for a request if some of its leases came home: tried and undone as often as it takes."""

from collections.abc import Iterable
from dataclasses import dataclass

from distributed_grid.decide.claims import Claim, above_guarantee, may_take
from distributed_grid.decide.homecoming import Homecoming, part_of
from distributed_grid.decide.lending import Offer, obstacle, room
from distributed_grid.decide.loans import Loans
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.rules import Rules


@dataclass(frozen=True, slots=True)
class Standing:
    """A request in the cluster as it is, and what is on its way home already."""

    ask: Ask
    claim: Claim
    nodes: NodeTable
    rules: Rules
    home: Homecoming
    loans: Loans
    """Without what is on its way home. A what-if takes leases out of these sums and puts them back."""
    held: Loans
    """What teams have, without what is on its way home."""


class Yielding:
    """One lender, and the leases there that may be taken for the request."""

    def __init__(self, standing: Standing, lender: NodeName, must_go: tuple[Lease, ...] = ()) -> None:
        """`must_go`: what has to leave the lender in any case."""
        self._standing = standing
        self._lender = lender
        self._must_go = must_go
        self._pair = tuple(standing.nodes[name] for name in (lender, standing.ask.target))
        self.short = self._short()

    def _offered(self, taken: tuple[Lease, ...]) -> tuple[Node, Offer]:
        """The lender, and what is asked of it, once that is home which comes anyway, and what is taken."""
        pair = NodeTable(self._standing.home.of(node, taken) for node in self._pair)
        return pair[self._lender], Offer.of(self._standing.ask, pair, self._standing.rules)

    def _short(self) -> ResourceVector:
        lender, offer = self._offered(self._must_go)
        loans, reserve = self._standing.loans, self._standing.rules.reserve
        lacks = {kind: units - room(lender, kind, loans, reserve) for kind, units in offer.need.items()}
        return ResourceVector(lacks).at_least_zero()

    def enough(self, victims: tuple[Lease, ...]) -> bool:
        """Whether the lender could lend what is asked if these came home, as far as they may be taken."""
        taken = self.may_take((*self._must_go, *victims))
        lender, offer = self._offered(taken)
        loans = self._standing.loans
        for lease in taken:
            loans.count(lease, -1)
        found = obstacle(lender, offer, loans)
        for lease in taken:
            loans.count(lease)
        return found is None

    def may_take(self, victims: Iterable[Lease]) -> tuple[Lease, ...]:
        """These leases, or the parts of them, that the order of claims lets the request have.

        What a lease is for counts, and what the lender is short of, but not what else comes along: a guarantee of CPUs
        keeps nobody's GPU.
        """
        above: dict[tuple[str, str], int] = {}
        taken = []
        for lease in victims:
            kinds = self._that_matter(lease)
            for kind in kinds:
                above.setdefault((lease.team, kind), self._above(lease.team, kind))
            units = may_take(lease, self._standing.claim, {kind: above[lease.team, kind] for kind in kinds})
            if units > 0:
                part = part_of(lease, units)
                taken.append(part)
                for kind in kinds:
                    above[lease.team, kind] -= part.resources[kind]
        return tuple(taken)

    def reluctance(self, lease: Lease) -> int:
        """0: what its team has above its guarantee is taken first. 1: the request's own team would pay with a lease
        within its guarantee. 2: another team would be left with less than its guarantee.
        """
        claim = self._standing.claim
        if lease.team == claim.team:
            return int(claim.is_guaranteed)
        breaks_in = any(
            part.resources[kind] > max(0, self._above(lease.team, kind))
            for part in self.may_take((lease,))
            for kind in self._that_matter(lease)
        )
        return 2 if breaks_in else 0

    def _that_matter(self, lease: Lease) -> list[str]:
        return [kind for kind in lease.resources if kind in self.short or kind == lease.kind]

    def _above(self, team: str, kind: str) -> int:
        return above_guarantee(team, kind, self._standing.held, self._standing.rules.teams)
