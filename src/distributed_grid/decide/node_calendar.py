"""What a node can lend, from now on: as leases end, and with what is kept for those who wait."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from distributed_grid.decide.calendars import Calendar
from distributed_grid.decide.lease_ends import Ends
from distributed_grid.decide.lending import Offer, free_of
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.reserves import kept
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import Node
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.rules import Reserve


class NodeCalendar:
    """Its own work is taken to go on as it is, and what it keeps for that to stay the same."""

    __slots__ = ("_calendar", "_keeps", "_loans", "_moved_in", "_rooms", "node")

    def __init__(self, node: Node, loans: Loans, ends: Ends, now: datetime) -> None:
        self.node, self._loans = node, loans
        self._calendar: Calendar[tuple[str, str]] = Calendar(now)
        self._rooms: dict[tuple[str, int], list[int]] = {}
        self._moved_in: dict[str, list[int]] = {}
        self._keeps: dict[tuple[str, int], int] = {}
        free = dict(node.free)
        for kind, units in loans.lent_by(node.name).items():
            self._calendar.add(("lent", kind), units, now)
        for kind, units in loans.taken_on(node.name).items():
            self._calendar.add(("taken", kind), units, now)
        for kind, units in loans.moved_to(node.name).items():
            self._calendar.add(("moved in", kind), units, now)
        for kind, units in node.free.items():
            self._calendar.add(("free", kind), units, now)
        for end, lease in ends:
            if lease.source == node.name:
                for kind, units in lease.resources.items():
                    free[kind] = free.get(kind, 0) + units
                    self._calendar.add(("free", kind), units, end)
                    self._calendar.add(("taken", kind), -units, end)
                    if lease.target != node.name:
                        self._calendar.add(("lent", kind), -units, end)
            elif lease.delivery is Delivery.TRANSFER:
                # What is in use of it goes with its work: no less than nothing is free then.
                gone = min(lease.units, max(0, free.get(lease.kind, 0)))
                free[lease.kind] = free.get(lease.kind, 0) - gone
                self._calendar.add(("free", lease.kind), -gone, end)
                self._calendar.add(("moved in", lease.kind), -lease.units, end)

    def first(self, offer: Offer, reserve_no: int, since: datetime, until: datetime | None = None) -> datetime | None:
        """When it could lend this, or set it aside for itself, by amounts; see `Calendar.first`."""
        reserve, is_own = offer.rules.reserve, offer.ask.target == self.node.name
        needs = [
            (self._own_rooms(kind) if is_own else self.rooms(kind, reserve, reserve_no), units)
            for kind, units in offer.need.items()
        ]
        borrows = self._borrows(offer.ask.kind) if offer.is_transfer else ()
        lasts = timedelta(seconds=offer.ask.duration_s)
        return self._calendar.first(needs, lasts, since, until, closed=borrows)

    def _borrows(self, kind: str) -> list[int]:
        if kind not in self._moved_in:
            self._moved_in[kind] = self._calendar.row(("moved in", kind))
        return self._moved_in[kind]

    def rooms(self, kind: str, reserve: Reserve, reserve_no: int) -> list[int]:
        """How much of a kind it could lend, in the order of its times. Equal reserves have equal numbers."""
        known = self._rooms.get((kind, reserve_no))
        if known is None:
            known = self._rooms[kind, reserve_no] = list(self._room_by_time(kind, reserve, reserve_no))
        return known

    def _room_by_time(self, kind: str, reserve: Reserve, reserve_no: int) -> Iterable[int]:
        node, limit = self.node, self.node.limits.limit(kind)
        keeps = self._keeps.get((kind, reserve_no))
        if keeps is None:
            free, lent = free_of(node, kind, self._loans), self._loans.lent(node.name, kind)
            keeps = kept(node, kind, free, lent, reserve) + node.in_use.withheld[kind]
            self._keeps[kind, reserve_no] = keeps
        rows = (self._calendar.row((what, kind)) for what in ("free", "taken", "lent"))
        for free, taken, lent in zip(*rows, strict=True):
            left = min(free, node.base[kind] - taken) - keeps
            yield left if limit is None else min(left, limit - lent)

    def _own_rooms(self, kind: str) -> list[int]:
        """How much it could set aside for itself, as `lending.own_room` says for now: nothing is kept, nothing lent."""
        node = self.node
        rows = (self._calendar.row((what, kind)) for what in ("free", "taken", "moved in"))
        return [
            min(free, node.base[kind] + moved_in - taken) - node.in_use.withheld[kind]
            for free, taken, moved_in in zip(*rows, strict=True)
        ]

    def left_after(self, need: ResourceVector, when: datetime) -> tuple[int, ...]:
        """How much is asked above what is free then, by kind: the least has the most left."""
        calendar, base = self._calendar, self.node.base
        return tuple(
            units - min(calendar.at(("free", kind), when), base[kind] - calendar.at(("taken", kind), when))
            for kind, units in need.items()
        )

    def lend(self, need: ResourceVector, begin: datetime, end: datetime | None, *, to_itself: bool = False) -> None:
        for kind, units in need.items():
            self._calendar.add(("free", kind), -units, begin, end)
            self._calendar.add(("taken", kind), units, begin, end)
            if not to_itself:
                self._calendar.add(("lent", kind), units, begin, end)
        self._forget()

    def borrow(self, kind: str, units: int, begin: datetime, end: datetime) -> None:
        """What it is lent frees nothing of its own, as far as anybody can tell; but meanwhile it lends none on."""
        self._calendar.add(("moved in", kind), units, begin, end)
        self._forget()

    def _forget(self) -> None:
        """There may be more times now, and other amounts."""
        self._rooms.clear()
        self._moved_in.clear()

    @property
    def settled_at(self) -> datetime:
        """From when on nothing changes any more."""
        return self._calendar.times[-1]
