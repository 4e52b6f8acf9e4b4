"""When what is lent will be back, as far as anybody can know."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from distributed_grid.decide.homecoming import part_of
from distributed_grid.model.leases import Delivery, Lease, Notice
from distributed_grid.model.nodes import NodeName

Ends = Sequence[tuple[datetime, Lease]]
"""Leases with the time at which each will be back, the first first."""

SOON: Final = timedelta(seconds=10)
"""For what should be back already: its work ends any moment, or is being ended."""


def expected_end(lease: Lease, now: datetime) -> datetime:
    """When it expires; if it, or all of it, is asked back or given back, when its grace period is over."""
    asked_at = lease.release_asked_at or now
    if lease.is_winding_down:
        end = asked_at + timedelta(seconds=lease.grace_s)
    elif lease.notice is not None and lease.notice.units >= lease.units:
        end = min(lease.expires_at, _taken_by(lease, lease.notice))
    else:
        end = lease.expires_at
    return max(end, now + SOON)


def _taken_by(lease: Lease, notice: Notice) -> datetime:
    """When what a holder was asked for is home, whatever the holder does: the notice is a part of the grace period."""
    return max(notice.deadline, notice.asked_at + timedelta(seconds=lease.grace_s))


class LeaseEnds:
    """The same for many; by node or team, only for those that are asked for."""

    def __init__(self, leases: Iterable[Lease], now: datetime) -> None:
        self._holding = [lease for lease in leases if lease.holds_capacity]
        self._now = now
        self._sooner: dict[str, tuple[int, datetime]] = {}

    def bring_forward(self, parts: Iterable[Lease], to: datetime) -> None:
        """These leases, or these parts of them, are asked back and will be home by then."""
        self._sooner |= {part.id: (part.units, to) for part in parts}

    def put_back(self, parts: Iterable[Lease]) -> None:
        for part in parts:
            del self._sooner[part.id]

    @property
    def all(self) -> Ends:
        return self._ends(self._holding)

    def on(self, node: NodeName) -> Ends:
        """What comes back to a node, and what was moved to it and leaves."""
        return self._ends(self._by_node.get(node, ()))

    def of(self, team: str) -> Ends:
        return self._ends(self._by_team.get(team, ()))

    def _ends(self, leases: Iterable[Lease]) -> Ends:
        found = [end for lease in leases for end in self._ends_of(lease)]
        return sorted(found, key=lambda end: (end[0], end[1].id))

    def _ends_of(self, lease: Lease) -> Ends:
        """Of a transfer a part may come home before the rest."""
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
            if lease.delivery is Delivery.TRANSFER:
                found[lease.target].append(lease)
        return found

    @cached_property
    def _by_team(self) -> Mapping[str, list[Lease]]:
        found: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease in self._holding:
            found[lease.team].append(lease)
        return found
