"""Every node's desired total, and how far it may grow right now.

A node's desired total is `base - lent + borrowed`. Nodes above it shrink first. A shrink reaches only what is
idle, so afterwards some nodes still hold too much; the rest may grow only by what was really given up. That
rule, applied to what the cluster shows, is the grant, the release, the expiry and the repair after a crash.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector

Totals = Mapping[NodeName, ResourceVector]
_Amounts = dict[NodeName, int]


@dataclass(frozen=True, slots=True)
class Growth:
    """How far each node may grow, and what is missing for which lease."""

    allowed: Totals
    untaken: Mapping[str, int]
    """Lease id -> units its source has not given up yet."""
    outstanding: Mapping[str, int]
    """Lease id -> units its target has not given back yet."""
    unexplained: Mapping[NodeName, ResourceVector]
    """The excess of nodes over their desired totals that no lease accounts for."""


def moved(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """The leases that change totals."""
    return tuple(lease for lease in leases if lease.delivery.moves_totals and lease.holds_capacity)


def desired_totals(bases: Totals, leases: Iterable[Lease]) -> dict[NodeName, ResourceVector]:
    """base - lent + borrowed for every node in `bases`. A lease that winds down counts as returned."""
    moving = moved(leases)
    kinds = {lease.kind for lease in moving}
    wanted = {
        kind: _wanted(
            {node: base[kind] for node, base in bases.items()}, [lease for lease in moving if lease.kind == kind], {}
        )
        for kind in kinds
    }
    return {
        # Below zero means that a node has lent more than it has: some lease cannot be met.
        node: ResourceVector(dict(base) | {kind: max(0, wanted[kind][node]) for kind in kinds})
        for node, base in bases.items()
    }


def plan_growth(bases: Totals, leases: Iterable[Lease], before: Totals, reached: Totals) -> Growth:
    """After the shrinks took nodes from `before` to what they `reached`: which nodes may grow, and by how much.

    The sum of all totals never grows past the sum of all bases plus what a lost node had lent, or past the sum before,
    if that was larger. A source that came back whole while its lease is in use, or a node that Ray oversubscribed, must
    not keep others from lending what they have just given up. Where a node holds more than the leases account for, that
    much less may grow elsewhere until the node gives it up.
    """
    by_kind: dict[str, list[Lease]] = defaultdict(list)
    for lease in moved(leases):
        by_kind[lease.kind].append(lease)
    allowed: dict[NodeName, dict[str, int]] = {node: {} for node in bases}
    unexplained: dict[NodeName, dict[str, int]] = {node: {} for node in bases}
    untaken: dict[str, int] = {}
    outstanding: dict[str, int] = {}
    for kind in sorted({k for vector in (*bases.values(), *reached.values()) for k in vector} | set(by_kind)):
        plan = _plan_kind(
            {node: base[kind] for node, base in bases.items()},
            # The youngest lease goes unmet first; the id breaks ties.
            sorted(by_kind.get(kind, []), key=lambda lease: (lease.allocated_at, lease.id), reverse=True),
            {node: before[node][kind] for node in bases},
            {node: reached[node][kind] for node in bases},
        )
        untaken |= plan.untaken
        outstanding |= plan.outstanding
        for node in bases:
            allowed[node][kind] = plan.limits[node]
            unexplained[node][kind] = plan.excess[node]
    return Growth(
        {node: ResourceVector(kinds) for node, kinds in allowed.items()},
        untaken,
        outstanding,
        {node: ResourceVector(kinds) for node, kinds in unexplained.items() if any(kinds.values())},
    )


@dataclass(frozen=True, slots=True)
class _KindPlan:
    limits: _Amounts
    excess: _Amounts
    untaken: dict[str, int]
    outstanding: dict[str, int]


@dataclass(frozen=True, slots=True)
class _Budget:
    """By how much all nodes together may grow."""

    for_all: int
    for_leases: int
    """More than `for_all` if a lease with a lost source is in use. But if a node lacks an amount that no lease explains
    (after a wiped store), the borrower may be using that amount, not the lease."""


def _plan_kind(bases: _Amounts, youngest_first: list[Lease], before: _Amounts, reached: _Amounts) -> _KindPlan:
    """Everything about one kind of resource."""
    untaken: dict[str, int] = {}
    while True:
        # A lender that waits for a lease of its own has that much less to give: repeat until nothing changes.
        wanted = _wanted(bases, youngest_first, untaken)
        excess = {node: max(0, reached[node] - wanted[node]) for node in bases}
        outstanding = _take_from_winding_down(youngest_first, excess)
        more = _take_from_standing(youngest_first, excess, untaken)
        if not more:
            break
        untaken = {id_: untaken.get(id_, 0) + more.get(id_, 0) for id_ in untaken.keys() | more.keys()}
    limits = dict(wanted)
    for lease in youngest_first:
        if lease.source in limits:
            limits[lease.source] -= outstanding.get(lease.id, 0)
    limits = {node: max(0, amount) for node, amount in limits.items()}
    gone = sum(outstanding.get(lease.id, 0) for lease in youngest_first if lease.source not in bases)
    there_is, was, is_now = sum(bases.values()), sum(before.values()), sum(reached.values())
    budget = _Budget(max(0, max(there_is, was) - is_now), max(0, max(there_is + gone, was) - is_now))
    _keep_within(budget, limits, reached, youngest_first, untaken, outstanding)
    return _KindPlan(limits, excess, untaken, outstanding)


def _wanted(bases: _Amounts, leases: Iterable[Lease], untaken: Mapping[str, int]) -> _Amounts:
    wanted = dict(bases)
    for lease in leases:
        if lease.is_winding_down or lease.source not in wanted:
            continue  # with its source gone, a lease gives its target no claim
        wanted[lease.source] -= lease.units
        if lease.target in wanted:
            wanted[lease.target] += lease.units - untaken.get(lease.id, 0)
    return wanted


def _take_from_winding_down(youngest_first: list[Lease], excess: _Amounts) -> dict[str, int]:
    """Attribute the excess of targets to the leases that they still have to return; it leaves `excess`.

    Leases with a live source come first: where the source is gone too, no node would grow by the return.
    """
    found: dict[str, int] = {}
    for lease in sorted(youngest_first, key=lambda lease: lease.source not in excess):
        if lease.is_winding_down and excess.get(lease.target):
            found[lease.id] = part = min(lease.units, excess[lease.target])
            excess[lease.target] -= part
    return found


def _take_from_standing(youngest_first: list[Lease], excess: _Amounts, untaken: Mapping[str, int]) -> dict[str, int]:
    """Attribute the excess of sources to further leases that it keeps from being met; it leaves `excess`."""
    found: dict[str, int] = {}
    for lease in youngest_first:
        if lease.is_winding_down or not excess.get(lease.source):
            continue
        # What the lease was denied before is part of the same excess.
        denied = min(untaken.get(lease.id, 0), excess[lease.source])
        excess[lease.source] -= denied
        if part := min(lease.units - untaken.get(lease.id, 0), excess[lease.source]):
            found[lease.id] = part
            excess[lease.source] -= part
    return found


def _keep_within(
    budget: _Budget,
    limits: _Amounts,
    reached: _Amounts,
    youngest_first: list[Lease],
    untaken: dict[str, int],
    outstanding: Mapping[str, int],
) -> None:
    """Cut growth down to what is really left: first what no lease explains, then the youngest grants."""
    over = sum(max(0, limits[node] - reached[node]) for node in limits) - budget.for_all
    if over <= 0:
        return
    explained: _Amounts = defaultdict(int)
    for lease in youngest_first:
        if lease.is_winding_down:
            explained[lease.source] += lease.units - outstanding.get(lease.id, 0)
        else:
            explained[lease.target] += lease.units - untaken.get(lease.id, 0)
    for node in sorted(limits):
        held_back = min(over, max(0, limits[node] - reached[node] - explained[node]))
        limits[node] -= held_back
        over -= held_back
    over = max(0, over - (budget.for_leases - budget.for_all))
    for lease in youngest_first:
        if over > 0 and lease.is_granting and lease.target in limits:
            growth = max(0, limits[lease.target] - reached[lease.target])
            held_back = min(over, growth, lease.units - untaken.get(lease.id, 0))
            if held_back:
                untaken[lease.id] = untaken.get(lease.id, 0) + held_back
                limits[lease.target] -= held_back
                over -= held_back
    # What is still over can only be a return, or a borrower that was restarted: it must wait.
    for node in sorted(limits):
        held_back = min(over, max(0, limits[node] - reached[node]))
        limits[node] -= held_back
        over -= held_back
