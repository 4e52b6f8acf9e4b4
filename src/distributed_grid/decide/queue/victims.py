"""Victims of a preemption: the fewest leases whose return is enough, and no more of each than is needed.

A what-if for each lender shows what it could lend if some of its leases came back; then it is undone.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from typing import Final

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.devices import devices_short
from distributed_grid.decide.capacity.feasibility import obstacle, own_room, room
from distributed_grid.decide.capacity.returns import part_of
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.queue.claims import Claim, above_guarantee, may_take
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import Rules
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import GPU, ResourceVector

Enough = Callable[[tuple[Lease, ...]], bool]
"""Whether the return of these leases is enough; it stays so when more return."""

# With one kind short, the first try is the right one. With several (a GPU and its CPUs), finding the fewest is a hard
# problem: after this many tries a minimal set will do, though there may be a smaller one.
_MOST_TRIES: Final = 2_000
_DEEPEST: Final = 200


def fewest(candidates: Sequence[Lease], short: ResourceVector, enough: Enough) -> tuple[Lease, ...] | None:
    """As few candidates as are enough, in the order in which they yield; None: all are too few.

    No lease returns more than it holds, so `short` bounds the search. (A part of a GPU may, if the parts that stay are
    assumed to share devices then: call `trimmed` on what is found.) Of sets of one size, the search chooses the one
    whose last member yields sooner, then goes by the member before it. This spares important leases where possible.
    """
    return _Search(candidates, short, enough).run() or _in_order(candidates, enough)


def needed_of(victims: Sequence[Lease], enough: Enough) -> dict[str, int]:
    """By lease id: how many units of each victim are enough. Only a transfer can give up a part."""
    parts = list(victims)
    for at in reversed(range(len(parts))):
        whole = parts[at]
        if whole.delivery.can_split:

            def does(units: int, at: int = at, whole: Lease = whole) -> bool:
                return enough((*parts[:at], part_of(whole, units), *parts[at + 1 :]))

            parts[at] = part_of(whole, 1 + bisect_left(range(1, whole.units), True, key=does))
    return {part.id: part.units for part in parts}


class _Search:
    def __init__(self, candidates: Sequence[Lease], short: ResourceVector, enough: Enough) -> None:
        self._candidates = candidates
        self._short = short
        self._enough = enough
        self._gives = {kind: [lease.resources[kind] for lease in candidates] for kind in short}
        self._tries = 0

    def run(self) -> tuple[Lease, ...] | None:
        count_of_all = len(self._candidates)
        fewest = bisect_left(range(count_of_all + 1), True, key=lambda count: self._could(count, count_of_all, ()))
        for count in range(max(1, fewest), min(count_of_all, _DEEPEST) + 1):
            if (found := self._find(count, count_of_all, ())) is not None:
                return found
        return None

    def _find(self, count: int, among: int, chosen: tuple[Lease, ...]) -> tuple[Lease, ...] | None:
        """Choose `count` more of the first `among` candidates, the last of these as early in the order as possible."""
        self._tries += 1
        if count == 0:
            return chosen if self._enough(chosen) else None
        ends = range(count, among + 1)
        for end in ends[bisect_left(ends, True, key=lambda end: self._could(count, end, chosen)) :]:
            if self._tries > _MOST_TRIES:
                return None
            if (found := self._find(count - 1, end - 1, (self._candidates[end - 1], *chosen))) is not None:
                return found
        return None

    def _could(self, count: int, among: int, chosen: tuple[Lease, ...]) -> bool:
        """Whether `count` of the first `among` candidates could be enough, looking at each kind alone."""
        return all(
            sum(nlargest(count, gives[:among])) + sum(lease.resources[kind] for lease in chosen) >= self._short[kind]
            for kind, gives in self._gives.items()
        )


def _in_order(candidates: Sequence[Lease], enough: Enough) -> tuple[Lease, ...] | None:
    for count in range(1, len(candidates) + 1):
        if enough(found := tuple(candidates[:count])):
            return trimmed(found, enough)
    return None


def _together(one: Lease | None, other: Lease) -> Lease:
    """The parts of a reservation as one lease, for the claims of its team."""
    if one is None:
        return replace(other, id=other.whole_id)
    return replace(one, units=one.units + other.units, resources=one.resources + other.resources)


def trimmed(victims: tuple[Lease, ...], enough: Enough) -> tuple[Lease, ...]:
    """The victims without those that can be left out; the ones that should yield last are spared first."""
    for victim in reversed(victims):
        if enough(rest := tuple(lease for lease in victims if lease is not victim)):
            victims = rest
    return victims


@dataclass(frozen=True, slots=True)
class Standing:
    """A request in the cluster as it is, with the pending returns."""

    ask: Ask
    claim: Claim
    rules: Rules
    capacity: Snapshot
    """After pending returns."""
    held: Usage
    """The amounts that teams hold, without pending returns."""


class LenderPreemption:
    """One lender, and the leases there that may be taken for the request."""

    def __init__(self, standing: Standing, lender: NodeName, must_go: tuple[Lease, ...] = ()) -> None:
        """`must_go`: leases that have to leave the lender in any case."""
        self._standing = standing
        self._lender = lender
        self._must_go = must_go
        self._wholes: dict[str, Lease] = {}
        """By id: reservations with several lenders, which come back whole."""
        for lease in standing.capacity.leases:
            if lease.id != lease.whole_id and not lease.delivery.can_split:
                self._wholes[lease.whole_id] = _together(self._wholes.get(lease.whole_id), lease)
        with standing.capacity.trying():
            standing.capacity.give_back(must_go)
            self.short = self._short()

    def _offered(self) -> tuple[Node, Offer]:
        """The lender, and what it should lend."""
        ask, capacity = self._standing.ask, self._standing.capacity
        pair = NodeTable((capacity[self._lender], capacity[ask.target]))
        return pair[self._lender], Offer.of(ask, pair, self._standing.rules)

    def _short(self) -> ResourceVector:
        lender, offer = self._offered()
        usage, headroom = self._standing.capacity.usage, self._standing.rules.headroom
        lacks = {kind: max(0, units - room(lender, kind, usage, headroom)) for kind, units in offer.need.items()}
        if lender.gpu_parts and GPU in lacks:
            free = own_room(lender, GPU, usage)
            lacks[GPU] = max(lacks[GPU], devices_short(lender, free, (offer.need[GPU],)))
        return ResourceVector(lacks)

    def enough(self, victims: tuple[Lease, ...]) -> bool:
        """Whether the lender could lend it if these leases came back, as far as they may be taken."""
        taken, capacity = self.may_take((*self._must_go, *victims)), self._standing.capacity
        with capacity.trying():
            capacity.give_back(taken)
            return obstacle(*self._offered(), capacity.usage) is None

    def may_take(self, victims: Iterable[Lease]) -> tuple[Lease, ...]:
        """These leases, or the parts of them, that the order of claims lets the request have.

        The kind that a lease is for counts, and what the lender is short of, but not other companions: a guarantee of
        CPUs protects no GPU.
        """
        above: dict[tuple[str, str], int] = {}
        taken = []
        for lease in victims:
            whole = self._wholes.get(lease.whole_id, lease)
            kinds = self._that_matter(whole)
            for kind in kinds:
                above.setdefault((lease.team, kind), self._above(lease.team, kind))
            units = may_take(whole, self._standing.claim, {kind: above[lease.team, kind] for kind in kinds})
            if units > 0:
                taken.append(part_of(lease, units))
                gone = part_of(whole, units)
                for kind in kinds:
                    above[lease.team, kind] -= gone.resources[kind]
        return tuple(taken)

    def reluctance(self, lease: Lease) -> int:
        """How reluctantly a lease is taken; the lowest goes first.

        -1: it is idle, or growth. 0: its team has it above its guarantee. 1: the request's own team would pay with a
        lease within its guarantee. 2: another team would be left with less than its guarantee.
        """
        claim = self._standing.claim
        if lease.yields_to_all:
            return -1
        if lease.team == claim.team:
            return int(claim.is_guaranteed)
        breaks_in = any(
            self._wholes.get(part.whole_id, part).resources[kind] > max(0, self._above(lease.team, kind))
            for part in self.may_take((lease,))
            for kind in self._that_matter(lease)
        )
        return 2 if breaks_in else 0

    def _that_matter(self, lease: Lease) -> list[str]:
        return [kind for kind in lease.resources if kind in self.short or kind == lease.kind]

    def _above(self, team: str, kind: str) -> int:
        return above_guarantee(team, kind, self._standing.held, self._standing.rules.teams)
