"""Pending returns: the cluster once certain leases are back, and when each lease is expected back."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from distributed_grid.model.leases import Delivery, Lease, LeaseState, Notice, OnGraceEnd
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.resources import ResourceVector


def coming_back(leases: Iterable[Lease], now: datetime | None = None) -> tuple[Lease, ...]:
    """What is on its way home already: leases that wind down, and what holders are asked to give up.

    With `now`: without those that were given back, and are kept by their work for longer than their grace period.
    """
    return tuple(
        lease if lease.is_winding_down or lease.notice is None else part_of(lease, lease.notice.units)
        for lease in leases
        if (lease.is_winding_down and (now is None or not is_overheld(lease, now)))
        or (lease.holds_capacity and lease.notice is not None)
    )


def part_of(lease: Lease, units: int) -> Lease:
    """The lease as if it were for `units` only; a reservation comes back whole."""
    if units >= lease.units or lease.delivery is not Delivery.TRANSFER:
        return lease
    return replace(lease, units=units, resources=ResourceVector({lease.kind: units}))


def once_home(nodes: NodeTable, leases: Iterable[Lease], back: Collection[Lease]) -> NodeTable:
    """The nodes once `back`, which are some of the `leases` or parts of them, have come home."""
    if not back:
        return nodes
    touched = {name for lease in back for name in (lease.source, lease.target)}
    home = Homecoming(leases, back)
    return NodeTable(home.of(node) if node.name in touched else node for node in nodes.values())


class Homecoming:
    """What comes home, summed up once for all who ask about one node or another, with this or that lease besides."""

    def __init__(self, leases: Iterable[Lease], back: Iterable[Lease]) -> None:
        self._all = _Moves(leases)
        self._back = _Moves(back)

    def of(self, node: Node, besides: Iterable[Lease] = ()) -> Node:
        """The node once all that is home, and these leases, too.

        A transfer that winds down may be partly home already. So its total goes to what the leases that stay want it
        to be, and no further than what comes back could take it.
        """
        more = _Moves(lease for lease in besides if node.name in (lease.source, lease.target))
        steps = {}
        for kind in {**self._back.kinds(node.name), **more.kinds(node.name)}:
            at = (node.name, kind)
            out, into = self._back.out[at] + more.out[at], self._back.into[at] + more.into[at]
            wanted = node.base[kind] - (self._all.out[at] - out) + (self._all.into[at] - into)
            steps[kind] = min(max(wanted - node.total[kind], -into), out)
        moved = ResourceVector(steps)
        freed = self._back.freed[node.name] + more.freed[node.name]
        return replace(node, total=node.total + moved, free=node.free + moved + freed)


class _Moves:
    """What transfers took from each node and brought to it, by kind, and what reservations hold there."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        self.out: defaultdict[tuple[NodeName, str], int] = defaultdict(int)
        self.into: defaultdict[tuple[NodeName, str], int] = defaultdict(int)
        self.freed: defaultdict[NodeName, ResourceVector] = defaultdict(ResourceVector)
        self._kinds: defaultdict[NodeName, dict[str, None]] = defaultdict(dict)
        for lease in leases:
            if not lease.holds_capacity:
                continue
            if lease.delivery is Delivery.RESERVE:
                self.freed[lease.source] += lease.resources
                continue
            self.out[lease.source, lease.kind] += lease.units
            self.into[lease.target, lease.kind] += lease.units
            self._kinds[lease.source][lease.kind] = self._kinds[lease.target][lease.kind] = None

    def kinds(self, name: NodeName) -> dict[str, None]:
        return self._kinds.get(name, {})


def is_overheld(lease: Lease, at: datetime) -> bool:
    """It was given back, its grace period is over, and its work may still keep it for as long as that likes.

    Unless it is asked back: then its work is ended.
    """
    return (
        lease.state is LeaseState.RELEASING
        and lease.delivery is Delivery.TRANSFER
        and not lease.wanted_back
        and lease.on_grace_end is not OnGraceEnd.KILL
        and lease.release_asked_at is not None
        and lease.release_asked_at + timedelta(seconds=lease.grace_s) <= at
    )


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
