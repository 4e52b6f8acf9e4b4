"""Pending returns: the cluster once certain leases are back, and when each lease is expected back."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from distributed_grid.model.leases import Lease, LeaseState, Notice
from distributed_grid.model.nodes import NodeName


def coming_back(leases: Iterable[Lease], now: datetime | None = None) -> tuple[Lease, ...]:
    """Pending returns: leases that wind down, and the parts that notices name.

    With `now`, leases that were given back but are kept by their work beyond their grace period are left out.
    """
    return tuple(
        part_of(lease, lease.coming_back)
        for lease in leases
        if lease.coming_back and (now is None or not is_overheld(lease, now))
    )


def part_of(lease: Lease, units: int) -> Lease:
    """The lease as if it were for `units` only; a reservation comes back whole."""
    if units >= lease.units or not lease.delivery.can_split:
        return lease
    return lease.of_units(units)


def is_overheld(lease: Lease, at: datetime) -> bool:
    """Whether the lease was given back, its grace period is over, and its work may still keep it without limit.

    If the lease is reclaimed it may not: then the work is ended.
    """
    return (
        lease.state is LeaseState.RELEASING
        and lease.delivery.moves_totals
        and not lease.is_reclaimed
        and not lease.on_grace_end.ends_work
        and lease.release_asked_at is not None
        and lease.grace_ends(lease.release_asked_at) <= at
    )


Ends = Sequence[tuple[datetime, Lease]]
"""Leases with the time at which each will be back, earliest first."""

SOON: Final = timedelta(seconds=10)
"""For leases that should already be back: their work ends any moment, or is being ended."""


def expected_end(lease: Lease, now: datetime) -> datetime:
    """When the lease expires; if all of it is reclaimed or released, when its grace period is over."""
    asked_at = lease.release_asked_at or now
    if lease.is_winding_down:
        end = lease.grace_ends(asked_at)
    elif lease.notice is not None and lease.notice.units >= lease.units:
        end = min(lease.expires_at, _taken_by(lease, lease.notice))
    else:
        end = lease.expires_at
    return max(end, now + SOON)


def _taken_by(lease: Lease, notice: Notice) -> datetime:
    """When the part that a notice names is back, whatever the holder does.

    The notice is a part of the grace period.
    """
    return max(notice.deadline, lease.grace_ends(notice.asked_at))


class LeaseEnds:
    """The expected ends of many leases, computed only for the nodes or teams that are queried."""

    def __init__(self, leases: Iterable[Lease], now: datetime) -> None:
        self._holding = [lease for lease in leases if lease.holds_capacity]
        self._now = now
        self._sooner: dict[str, tuple[int, datetime]] = {}

    def bring_forward(self, parts: Iterable[Lease], to: datetime) -> Callable[[], None]:
        """Assume that these leases, or these parts of them, are reclaimed and back by `to`. Returns what undoes it."""
        before = self._sooner
        self._sooner = before | {part.id: (part.units, to) for part in parts}

        def undo() -> None:
            self._sooner = before

        return undo

    @property
    def all(self) -> Ends:
        return self._ends(self._holding)

    def on(self, node: NodeName) -> Ends:
        """The leases that end on a node: capacity comes back to it, or leaves it."""
        return self._ends(self._by_node.get(node, ()))

    def of(self, team: str) -> Ends:
        return self._ends(self._by_team.get(team, ()))

    def _ends(self, leases: Iterable[Lease]) -> Ends:
        found = [end for lease in leases for end in self._ends_of(lease)]
        return sorted(found, key=lambda end: (end[0], end[1].id))

    def _ends_of(self, lease: Lease) -> Ends:
        """A part of a transfer may come back before the rest."""
        end = expected_end(lease, self._now)
        if lease.id in self._sooner:
            units, sooner = self._sooner[lease.id]
        elif lease.notice is not None and not lease.is_winding_down:
            units, sooner = lease.notice.units, _taken_by(lease, lease.notice)
        else:
            return ((end, lease),)
        sooner = min(end, max(sooner, self._now + SOON))
        part = part_of(lease, units)
        if part.units >= lease.units:
            return ((sooner, lease),)
        return ((sooner, part), (end, part_of(lease, lease.units - part.units)))

    @cached_property
    def _by_node(self) -> Mapping[NodeName, list[Lease]]:
        found: defaultdict[NodeName, list[Lease]] = defaultdict(list)
        for lease in self._holding:
            found[lease.source].append(lease)
            if lease.delivery.moves_totals:
                found[lease.target].append(lease)
        return found

    @cached_property
    def _by_team(self) -> Mapping[str, list[Lease]]:
        found: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease in self._holding:
            found[lease.team].append(lease)
        return found
