"""What every node's total should be, and how far it may grow right now.

A node's desired total is `base - lent + borrowed`. Nodes above it shrink first. A shrink reaches only what is
idle, so afterwards some nodes still hold too much; the rest may grow only by what was really given up. That
rule, applied to whatever the cluster shows, is the grant, the release, the expiry and the repair after a crash.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distributed_grid.model.leases import Delivery, Lease, LeaseState
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
    """What nodes hold above their desired total that no lease accounts for."""


def moved(leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """The leases that change totals."""
    return tuple(lease for lease in leases if lease.delivery is Delivery.TRANSFER and lease.holds_capacity)


def desired_totals(bases: Totals, leases: Iterable[Lease]) -> dict[NodeName, ResourceVector]:
    """base - lent + borrowed, for every node that is there; leases that wind down want everything home."""
    moving = moved(leases)
    kinds = {lease.kind for lease in moving}
    wanted = {kind: _wanted(kind, bases, [lease for lease in moving if lease.kind == kind]) for kind in kinds}
    return {
        # Below zero means that a node has lent more than it has: some lease cannot be met.
        node: ResourceVector(dict(base) | {kind: max(0, wanted[kind][node]) for kind in kinds})
        for node, base in bases.items()
    }


def plan_growth(bases: Totals, leases: Iterable[Lease], reached: Totals) -> Growth:
    """After the shrinks reached what they could: who may grow, and by how much.

    The sum of all totals then stays at or below the sum of all bases, but for what a node that is gone had lent
    and what Ray itself oversubscribed; neither is ever passed on.
    """
    by_kind: dict[str, list[Lease]] = defaultdict(list)
    for lease in moved(leases):
        by_kind[lease.kind].append(lease)
    allowed: dict[NodeName, dict[str, int]] = {node: {} for node in bases}
    unexplained: dict[NodeName, dict[str, int]] = {node: {} for node in bases}
    untaken: dict[str, int] = {}
    outstanding: dict[str, int] = {}
    for kind in sorted({k for vector in (*bases.values(), *reached.values()) for k in vector} | set(by_kind)):
        moving = by_kind.get(kind, [])
        wanted = _wanted(kind, bases, moving)
        excess = {node: max(0, reached[node][kind] - wanted[node]) for node in bases}
        _blame(moving, excess, untaken, outstanding)
        limits = _limits(wanted, moving, untaken, outstanding, bases)
        _withhold(limits, {node: reached[node][kind] for node in bases}, moving, untaken, outstanding, excess)
        for node in bases:
            allowed[node][kind] = limits[node]
            unexplained[node][kind] = excess[node]
    return Growth(
        {node: ResourceVector(kinds) for node, kinds in allowed.items()},
        untaken,
        outstanding,
        {node: ResourceVector(kinds) for node, kinds in unexplained.items() if any(kinds.values())},
    )


def _wanted(kind: str, bases: Totals, moving: list[Lease]) -> _Amounts:
    wanted = {node: base[kind] for node, base in bases.items()}
    for lease in moving:
        if lease.is_winding_down or lease.source not in wanted:
            continue  # half a lease is none: with its source gone, the target has no claim
        wanted[lease.source] -= lease.units
        if lease.target in wanted:
            wanted[lease.target] += lease.units
    return wanted


def _blame(moving: list[Lease], excess: _Amounts, untaken: dict[str, int], outstanding: dict[str, int]) -> None:
    """Say which lease each node's excess belongs to, youngest first; what is left in `excess` belongs to none."""
    if not any(excess.values()):
        return
    youngest_first = sorted(moving, key=lambda lease: (lease.allocated_at, lease.id), reverse=True)
    for lease in youngest_first:
        if lease.is_winding_down and excess.get(lease.target):
            outstanding[lease.id] = part = min(lease.units, excess[lease.target])
            excess[lease.target] -= part
    for lease in youngest_first:
        if not lease.is_winding_down and excess.get(lease.source):
            untaken[lease.id] = part = min(lease.units, excess[lease.source])
            excess[lease.source] -= part


def _limits(
    wanted: _Amounts,
    moving: list[Lease],
    untaken: Mapping[str, int],
    outstanding: Mapping[str, int],
    bases: Totals,
) -> _Amounts:
    """What was wanted, less what has not been given up for it."""
    limits = dict(wanted)
    for lease in moving:
        if lease.target in limits and lease.source in bases:
            limits[lease.target] -= untaken.get(lease.id, 0)
        if lease.source in limits:
            limits[lease.source] -= outstanding.get(lease.id, 0)
    return {node: max(0, amount) for node, amount in limits.items()}


def _withhold(
    limits: _Amounts,
    reached: _Amounts,
    moving: list[Lease],
    untaken: Mapping[str, int],
    outstanding: Mapping[str, int],
    excess: _Amounts,
) -> None:
    """Let nobody grow back into what some other node still holds without a lease (as after a wiped store).

    Growth that a lease explains is not held up by it.
    """
    surplus = sum(excess.values())
    if surplus <= 0:
        return
    explained: _Amounts = defaultdict(int)
    for lease in moving:
        if lease.state is LeaseState.GRANTING:
            explained[lease.target] += lease.units - untaken.get(lease.id, 0)
        elif lease.is_winding_down:
            explained[lease.source] += lease.units - outstanding.get(lease.id, 0)
    for node in sorted(limits):
        held_back = min(surplus, max(0, limits[node] - reached[node] - explained[node]))
        limits[node] -= held_back
        surplus -= held_back
