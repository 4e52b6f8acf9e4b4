"""The capacity timeline: what nodes can lend and teams may have from now on, as leases end and slots are taken."""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.devices import free_devices, most_on
from distributed_grid.decide.capacity.feasibility import free_of, headroom_of, left_of, within_limit
from distributed_grid.decide.capacity.parts import Room
from distributed_grid.decide.capacity.quotas import from_the_common_part, limited
from distributed_grid.decide.capacity.returns import Ends
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.nodes import Node, NodeTable, gpu_part
from distributed_grid.model.plans import Grant, Headroom
from distributed_grid.model.resources import GPU, ResourceVector
from distributed_grid.model.teams import Team, Teams

Key = TypeVar("Key", bound=Hashable)


class Calendar(Generic[Key]):
    """Amounts by key, from now on. They change at `times`; the last amounts stay."""

    __slots__ = ("_amounts", "times")

    def __init__(self, now: datetime) -> None:
        self.times = [now]
        self._amounts: list[dict[Key, int]] = [{}]

    def add(self, key: Key, units: int, begin: datetime, end: datetime | None = None) -> None:
        """Add the units from `begin` until `end`, or for good."""
        first = self._split(begin)
        last = len(self.times) if end is None else self._split(end)
        for amounts in self._amounts[first:last]:
            amounts[key] = amounts.get(key, 0) + units

    def row(self, key: Key) -> list[int]:
        """The amounts of one key, in the order of `times`."""
        return [amounts.get(key, 0) for amounts in self._amounts]

    def at(self, key: Key, when: datetime) -> int:
        return self._amounts[bisect_right(self.times, when) - 1].get(key, 0)

    def steps(self, begin: datetime, end: datetime) -> slice:
        """Which of its steps are in force between two moments."""
        return slice(bisect_right(self.times, begin) - 1, bisect_left(self.times, end))

    def first(
        self,
        needs: Sequence[tuple[Sequence[int], int]],
        lasts: timedelta,
        since: datetime,
        until: datetime | None = None,
        closed: Sequence[int] = (),
    ) -> datetime | None:
        """The first time, not before `since` nor after `until`, from which on every need fits for as long as it lasts.

        A need pairs the amounts that there are, in the order of `times`, with the amount asked. No slot begins where
        `closed` is set.
        """
        times, count = self.times, len(self.times)
        index = bisect_right(times, since) - 1
        start = since
        while until is None or start <= until:
            end, step = start + lasts, index
            if not (closed and closed[index]):
                while step < count and (step == index or times[step] < end) and _fits(needs, step):
                    step += 1
                if step == count or (step > index and times[step] >= end):
                    return start
            index = step + 1
            if index >= count:
                return None
            start = times[index]
        return None

    def _split(self, at: datetime) -> int:
        """The index of the step that begins at this moment; created if there is none."""
        index = bisect_left(self.times, at)
        if index == len(self.times) or self.times[index] != at:
            self.times.insert(index, at)
            self._amounts.insert(index, dict(self._amounts[index - 1]))
        return index


def _fits(needs: Sequence[tuple[Sequence[int], int]], step: int) -> bool:
    for row, units in needs:  # noqa: SIM110
        if row[step] < units:  # called so often in a long queue that a generator would be half of the work
            return False
    return True


class NodeCalendar:
    """The capacity that one node can lend over time, if its own work and its headroom stay as they are."""

    __slots__ = ("_calendar", "_headroom", "_moved_in", "_parts", "_rooms", "_usage", "node")

    def __init__(self, node: Node, usage: Usage, ends: Ends, now: datetime) -> None:
        self.node, self._usage = node, usage
        self._calendar: Calendar[tuple[str, str]] = Calendar(now)
        self._rooms: dict[tuple[str, int], list[int]] = {}
        self._moved_in: dict[str, list[int]] = {}
        self._headroom: dict[tuple[str, int], int] = {}
        self._parts: set[int] = set()
        """Every part of a GPU that is held at some time; how many of each are held, the calendar says."""
        free, parts = dict(node.free), list(node.gpu_parts)
        for part in parts:
            self._hold_part(part, 1, now)
        for kind, units in usage.lent_by(node.name).items():
            self._calendar.add(("lent", kind), units, now)
        for kind, units in usage.taken_on(node.name).items():
            self._calendar.add(("taken", kind), units, now)
        for kind, units in usage.moved_to(node.name).items():
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
                if (part := gpu_part(lease.resources)) in parts:
                    parts.remove(part)
                    self._hold_part(part, -1, end)
            elif lease.delivery.moves_totals:
                # The part in use leaves with its work, so the free amount does not drop below zero.
                gone = min(lease.units, max(0, free.get(lease.kind, 0)))
                free[lease.kind] = free.get(lease.kind, 0) - gone
                self._calendar.add(("free", lease.kind), -gone, end)
                self._calendar.add(("moved in", lease.kind), -lease.units, end)

    def first(self, offer: Offer, headroom_no: int, since: datetime, until: datetime | None = None) -> datetime | None:
        """When the node could lend this, or set it aside for itself, by amounts; see `Calendar.first`."""
        headroom, is_own = offer.rules.headroom, offer.ask.target == self.node.name
        needs = [
            (self._own_rooms(kind) if is_own else self.rooms(kind, headroom, headroom_no), units)
            for kind, units in offer.need.items()
        ]
        if self._parts and GPU in offer.need:
            needs.append((list(self._device_rooms(offer.need[GPU])), offer.need[GPU]))
        borrows = self._borrows(offer.ask.kind) if offer.is_transfer else ()
        lasts = timedelta(seconds=offer.ask.duration_s)
        return self._calendar.first(needs, lasts, since, until, closed=borrows)

    def room(self, offer: Offer, headroom_no: int, begin: datetime, lasts: timedelta) -> Room:
        """What the node has room for from `begin` on, for as long as it lasts: the least of any moment."""
        headroom, is_own = offer.rules.headroom, offer.ask.target == self.node.name
        if offer.is_transfer and self._calendar.at(("moved in", offer.ask.kind), begin):
            return Room(self.node, dict.fromkeys(offer.need, 0))
        steps = self._calendar.steps(begin, begin + lasts)
        rows = {
            kind: self._own_rooms(kind) if is_own else self.rooms(kind, headroom, headroom_no) for kind in offer.need
        }
        rooms = {kind: max(0, min(row[steps])) for kind, row in rows.items()}
        if GPU in rooms:
            rooms[GPU] = min(rooms[GPU], *list(self._device_rooms(offer.each[GPU], offer.ask.members))[steps])
        return Room(self.node, rooms)

    def _borrows(self, kind: str) -> list[int]:
        if kind not in self._moved_in:
            self._moved_in[kind] = self._calendar.row(("moved in", kind))
        return self._moved_in[kind]

    def rooms(self, kind: str, headroom: Headroom, headroom_no: int) -> list[int]:
        """How much of a kind the node could lend, in the order of its times. Equal headrooms have equal numbers."""
        known = self._rooms.get((kind, headroom_no))
        if known is None:
            known = self._rooms[kind, headroom_no] = list(self._room_by_time(kind, headroom, headroom_no))
        return known

    def _room_by_time(self, kind: str, headroom: Headroom, headroom_no: int) -> Iterable[int]:
        node, base = self.node, self.node.base[kind]
        keeps = self._headroom.get((kind, headroom_no))
        if keeps is None:
            free, lent = free_of(node, kind, self._usage), self._usage.lent(node.name, kind)
            keeps = self._headroom[kind, headroom_no] = headroom_of(node, kind, free, lent, headroom)
        rows = (self._calendar.row((what, kind)) for what in ("free", "taken", "lent"))
        for free, taken, lent in zip(*rows, strict=True):
            yield within_limit(node, kind, left_of(node, kind, free, base - taken) - keeps, lent)

    def _own_rooms(self, kind: str) -> list[int]:
        """How much the node could set aside for itself: `own_room` over time, without headroom or limits."""
        node, base = self.node, self.node.base[kind]
        rows = (self._calendar.row((what, kind)) for what in ("free", "taken", "moved in"))
        return [left_of(node, kind, free, base + moved_in - taken) for free, taken, moved_in in zip(*rows, strict=True)]

    def _device_rooms(self, units: int, members: int = 1) -> Iterator[int]:
        """`device_room` over time."""
        rows = [[(part, count) for count in self._calendar.row(("parts", str(part)))] for part in self._parts]
        for free, *held in zip(self._own_rooms(GPU), *rows, strict=True):
            parts = [part for part, count in held for _ in range(count)]
            yield most_on(free_devices(self.node.total[GPU], free, parts), units, members)

    def left_after(self, need: ResourceVector, when: datetime) -> tuple[int, ...]:
        """By kind, how much more is requested than is free then: the lowest leaves the most."""
        calendar, node = self._calendar, self.node
        left = {
            kind: left_of(
                node,
                kind,
                calendar.at(("free", kind), when),
                node.base[kind] - calendar.at(("taken", kind), when),
            )
            for kind in need
        }
        return tuple(units - left[kind] for kind, units in need.items())

    def lend(self, need: ResourceVector, begin: datetime, end: datetime | None, *, to_itself: bool = False) -> None:
        for kind, units in need.items():
            self._calendar.add(("free", kind), -units, begin, end)
            self._calendar.add(("taken", kind), units, begin, end)
            if not to_itself:
                self._calendar.add(("lent", kind), units, begin, end)
        if part := gpu_part(need):
            self._hold_part(part, 1, begin, end)
        self._forget()

    def borrow(self, kind: str, units: int, begin: datetime, end: datetime) -> None:
        """Count what the node borrows. It can lend no more because of it, and meanwhile transfers none of that kind."""
        self._calendar.add(("moved in", kind), units, begin, end)
        self._forget()

    def _hold_part(self, part: int, times: int, begin: datetime, end: datetime | None = None) -> None:
        self._parts.add(part)
        self._calendar.add(("parts", str(part)), times, begin, end)

    def _forget(self) -> None:
        """Drop the cached rows: times and amounts may have changed."""
        self._rooms.clear()
        self._moved_in.clear()

    @property
    def times(self) -> Sequence[datetime]:
        """The moments at which something changes, now first."""
        return self._calendar.times

    @property
    def settled_at(self) -> datetime:
        """The time after which nothing changes."""
        return self._calendar.times[-1]


class TeamCalendar:
    """The amounts that one team holds, and when that ends."""

    __slots__ = ("_calendar", "_team")

    def __init__(self, team: Team, usage: Usage, ends: Ends, now: datetime) -> None:
        self._team = team
        self._calendar: Calendar[str] = Calendar(now)
        for kind, units in usage.held_by(team.name).items():
            self._calendar.add(kind, units, now)
        for end, lease in ends:
            for kind, units in lease.resources.items() if not lease.grows else ():
                self._calendar.add(kind, -units, end)

    def first(self, offer: Offer, since: datetime) -> datetime | None:
        """When the team's own limit allows this; None: never."""
        counted = limited(offer.ask, offer.need, self._team, lambda kind: max(self._calendar.row(kind)))
        mosts = ((kind, units, self._team.most(kind)) for kind, units in counted.items())
        needs = [
            ([most - held for held in self._calendar.row(kind)], units)
            for kind, units, most in mosts
            if most is not None
        ]
        return self._calendar.first(needs, timedelta(seconds=offer.ask.duration_s), since) if needs else since

    def hold(self, need: ResourceVector, begin: datetime, end: datetime) -> None:
        for kind, units in need.items():
            self._calendar.add(kind, units, begin, end)


class CommonPool:
    """The capacity that no team withholds, over time, as leases end and waiting requests get their slots.

    Where an exact answer would be expensive, it errs towards waiting: by a part of what a closed team withholds.
    """

    def __init__(self, nodes: NodeTable, usage: Usage, ends: Ends, teams: Teams, now: datetime) -> None:
        self._nodes, self._teams = nodes, teams
        self._most = usage.without(())
        """As if no lease ended and all requests had their slots at once: the most that is ever held."""
        self._gone: Calendar[str] = Calendar(now)
        """By kind: what is held, and what teams keep but do not hold."""
        kinds = {kind for team in teams.closed for kind in team.lending_limit if teams.withheld_by_team(kind)}
        by_team = {(name, kind): units for kind in kinds for name, units in teams.withheld_by_team(kind)}
        held = {(name, kind): usage.held(name, kind) for name, kind in by_team}
        for kind in kinds:
            withheld = sum(max(0, units - held[key]) for key, units in by_team.items() if key[1] == kind)
            self._gone.add(kind, usage.held_by_all(kind) + withheld, now)
        for end, lease in ends:
            for kind, units in lease.resources.items() if not lease.grows else ():
                if kind in kinds:
                    less, key = -units, (lease.team, kind)
                    if key in by_team:
                        less += max(0, by_team[key] - held[key] + units) - max(0, by_team[key] - held[key])
                        held[key] -= units
                    self._gone.add(kind, less, end)

    def first(self, offer: Offer, since: datetime) -> datetime | None:
        """When the team may have this beside the others, and can keep it while requests ahead get their slots.

        A request within its team's guarantee depends on no other team.
        """
        most, own = self._most, self._teams.of(offer.ask.team)
        needs = []
        for kind, units in from_the_common_part(offer.ask, offer.need, own, self._teams, most):
            kept_for_it = max(0, own.withheld_from_others(kind) - most.held(own.name, kind))
            there_is = self._nodes.shareable(kind) + kept_for_it
            if units > there_is - most.held_by_all(kind) - self._teams.withheld_in_all(kind):
                needs.append(([there_is - gone for gone in self._gone.row(kind)], units))
        return self._gone.first(needs, timedelta(seconds=offer.ask.duration_s), since)

    def take(self, grant: Grant, begin: datetime, end: datetime) -> None:
        self._most.promise(grant)
        for kind, units in grant.resources.items():
            if self._teams.withheld_by_team(kind):
                self._gone.add(kind, units, begin, end)
