"""What every node's total should be, and how far it may grow right now.

A node's desired total is `base - lent + borrowed`. Nodes above it shrink first. A shrink reaches only what is
idle, so afterwards some nodes still hold too much; the rest may grow only by what was really given up. That
rule, applied to whatever the cluster shows, is the grant, the release, the expiry and the repair after a crash.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector

Totals = Mapping[NodeName, ResourceVector]


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
    return {node: vector.at_least_zero() for node, vector in _wanted(bases, leases).items()}


def _wanted(bases: Totals, leases: Iterable[Lease]) -> dict[NodeName, ResourceVector]:
    """Like `desired_totals`, below zero where a node has lent more than it has: then some lease cannot be met."""
    wanted = dict(bases)
    for lease in moved(leases):
        if lease.is_winding_down:
            continue
        if lease.source in wanted:
            wanted[lease.source] = wanted[lease.source] - lease.resources
        # Half a lease is none: with its source gone, the target has no claim.
        if lease.target in wanted and lease.source in wanted:
            wanted[lease.target] = wanted[lease.target] + lease.resources
    return wanted


def plan_growth(bases: Totals, leases: Iterable[Lease], reached: Totals) -> Growth:
    """After the shrinks reached what they could: who may grow, and by how much.

    The sum of all totals then stays at or below the sum of all bases, but for what a node that is gone had lent
    and what Ray itself oversubscribed; neither is ever passed on.
    """
    moving = moved(leases)
    wanted = _wanted(bases, moving)
    allowed: dict[NodeName, dict[str, int]] = {node: {} for node in bases}
    untaken: dict[str, int] = {}
    outstanding: dict[str, int] = {}
    unexplained: dict[NodeName, dict[str, int]] = {node: {} for node in bases}
    for kind in sorted({k for vector in (*bases.values(), *reached.values()) for k in vector}):
        excess = {node: max(0, reached[node][kind] - wanted[node][kind]) for node in bases}
        _blame(moving, kind, excess, untaken, outstanding)
        for node in bases:
            if excess[node]:
                unexplained[node][kind] = excess[node]
            allowed[node][kind] = _allowed(node, kind, wanted, moving, untaken, outstanding, bases)
        _withhold(kind, bases, moving, allowed, reached, untaken, outstanding, sum(excess.values()))
    return Growth(
        {node: ResourceVector(kinds) for node, kinds in allowed.items()},
        untaken,
        outstanding,
        {node: ResourceVector(kinds) for node, kinds in unexplained.items() if kinds},
    )


def _blame(
    moving: tuple[Lease, ...],
    kind: str,
    excess: dict[NodeName, int],
    untaken: dict[str, int],
    outstanding: dict[str, int],
) -> None:
    """Say which lease each node's excess belongs to, youngest first; what is left in `excess` belongs to none."""
    youngest_first = sorted(
        (lease for lease in moving if lease.kind == kind),
        key=lambda lease: (lease.allocated_at, lease.id),
        reverse=True,
    )
    for lease in youngest_first:
        if lease.is_winding_down and excess.get(lease.target):
            outstanding[lease.id] = part = min(lease.units, excess[lease.target])
            excess[lease.target] -= part
    for lease in youngest_first:
        if not lease.is_winding_down and excess.get(lease.source):
            untaken[lease.id] = part = min(lease.units, excess[lease.source])
            excess[lease.source] -= part


def _allowed(
    node: NodeName,
    kind: str,
    wanted: Totals,
    moving: tuple[Lease, ...],
    untaken: Mapping[str, int],
    outstanding: Mapping[str, int],
    bases: Totals,
) -> int:
    amount = wanted[node][kind]
    for lease in moving:
        if lease.kind != kind:
            continue
        if lease.target == node and lease.source in bases:
            amount -= untaken.get(lease.id, 0)
        if lease.source == node:
            amount -= outstanding.get(lease.id, 0)
    return max(0, amount)


def _withhold(
    kind: str,
    bases: Totals,
    moving: tuple[Lease, ...],
    allowed: dict[NodeName, dict[str, int]],
    reached: Totals,
    untaken: Mapping[str, int],
    outstanding: Mapping[str, int],
    surplus: int,
) -> None:
    """Let nobody grow back into what some other node still holds without a lease (as after a wiped store).

    Growth that a lease explains is not held up by it.
    """
    for node in sorted(bases):
        if surplus <= 0:
            return
        explained = sum(
            (lease.units - untaken.get(lease.id, 0))
            if lease.target == node and lease.state is LeaseState.GRANTING
            else (lease.units - outstanding.get(lease.id, 0))
            if lease.source == node and lease.is_winding_down
            else 0
            for lease in moving
            if lease.kind == kind
        )
        growth = allowed[node][kind] - reached[node][kind] - explained
        if growth > 0:
            held_back = min(growth, surplus)
            allowed[node][kind] -= held_back
            surplus -= held_back
