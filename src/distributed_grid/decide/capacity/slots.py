"""Slots: when and on which node a request can have what it asks for, without delaying requests ahead of it."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.feasibility import could_when_idle, idle_room, may_lend
from distributed_grid.decide.capacity.lending import Preference, preference
from distributed_grid.decide.capacity.parts import divide
from distributed_grid.decide.capacity.quotas import why_above_its_most
from distributed_grid.decide.capacity.returns import LeaseEnds
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.timeline import CommonPool, NodeCalendar, TeamCalendar
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import Headroom, Part
from distributed_grid.model.resources import ResourceVector


@dataclass(frozen=True, slots=True)
class Slot:
    parts: tuple[Part, ...]
    begin: datetime
    end: datetime

    @classmethod
    def of(cls, offer: Offer, parts: tuple[Part, ...], begin: datetime) -> "Slot":
        return cls(parts, begin, begin + timedelta(seconds=offer.ask.duration_s))

    @classmethod
    def on(cls, source: NodeName, offer: Offer, begin: datetime) -> "Slot":
        """All of it on one node."""
        return cls.of(offer, (Part(source, offer.ask.units),), begin)

    @property
    def sources(self) -> tuple[NodeName, ...]:
        return tuple(dict.fromkeys(part.source for part in self.parts))


class CapacityTimeline:
    """Capacity that is lent, or taken by requests ahead, from now on. A taken slot stays taken.

    As long as no request has a slot later than now, only the present matters. The calendars of nodes and teams are
    built on first use.
    """

    def __init__(self, nodes: NodeTable, leases: Iterable[Lease], usage: Usage, now: datetime) -> None:
        leases = tuple(leases)
        self.present = Snapshot(nodes, usage, leases)
        self._nodes, self._usage, self._now = nodes, usage, now
        self._ends = LeaseEnds(leases, now)
        self._taken: list[tuple[Offer, Slot]] = []
        self._taken_of_teams: list[tuple[Offer, datetime, datetime]] = []
        self._earmarked: list[tuple[NodeName, ResourceVector, datetime]] = []
        self._has_promises = False
        self._later_teams: set[str] = set()
        self._calendars: dict[NodeName, NodeCalendar] = {}
        self._teams: dict[str, TeamCalendar] = {}
        self._pool: CommonPool | None = None
        self._departures: defaultdict[tuple[NodeName, str], list[datetime]] = defaultdict(list)
        self._headrooms: list[Headroom] = []
        self._not_before: dict[Hashable, datetime | None] = {}

    # -- the first slot ---------------------------------------------------------------------------------------

    def first(
        self,
        offer: Offer,
        until: datetime | None = None,
        known: NodeName | None = None,
        since: datetime | None = None,
    ) -> Slot | None:
        """The first slot that begins not before `since` (now, if not given) and not after `until`.

        The slot is on the target itself only if that is sooner, or preferred.
        """
        begin = since or self._now
        if offer.ask.members > 1:
            return self._on_several_nodes(offer, until, begin)
        place = self._on_one_node(offer, until, known, begin)
        soonest_from = None if place is None or place.begin > begin else place.sources[0]
        if offer.prefers_own_to(soonest_from) and self._has_it_itself(offer):
            return Slot.on(offer.ask.target, offer, begin)
        if offer.ask.max_sources > 1 and (place is None or place.begin > begin):
            before = until if place is None else place.begin - timedelta.resolution
            return self._on_several_nodes(offer, before, begin) or place
        return place

    def _has_it_itself(self, offer: Offer) -> bool:
        """Whether the target has the capacity itself now, and no request ahead has a later slot on that node."""
        name = offer.ask.target
        return self.present.has_it_itself(offer) and not any(
            name in place.sources and place.begin > self._now for _, place in self._taken
        )

    def _on_one_node(
        self, offer: Offer, until: datetime | None, known: NodeName | None, since: datetime
    ) -> Slot | None:
        """The first slot, on the preferred node or else on the node with the most left.

        `known` is the node of the request's previous slot. The request stays there if that node is as early as any
        other. Otherwise, what requests behind it have taken since would move it, and with it the requests after it.
        """
        if not self._has_promises:
            source = self.present.lender(offer, known, lasting=since > self._now)
            if source is not None:
                return Slot.on(source, offer, since)
        while until is None or since <= until:
            found = self._on_nodes(offer, since, until, known)
            if found is None:
                return None
            begin, source = found
            turn = self._turn(offer, begin)
            if turn is None:
                return None
            if turn == begin:
                return Slot.on(source, offer, begin)
            since = turn
        return None

    def _on_several_nodes(self, offer: Offer, until: datetime | None, since: datetime) -> Slot | None:
        """The first slot on several nodes together.

        More and more comes back as leases end. Where a slot of a request ahead takes it again, the search may find a
        later moment than the first.
        """
        if not self._has_promises and since == self._now and (now := self.present.several_lenders(offer)) is not None:
            return Slot.of(offer, now, since)
        number, lasts = self._number(offer.rules.headroom), timedelta(seconds=offer.ask.duration_s)
        calendars = [self._calendar(node) for node in may_lend(self._nodes, offer)]
        later = {time for calendar in calendars for time in calendar.times}

        def parts_at(begin: datetime) -> tuple[Part, ...] | None:
            return divide(offer, (calendar.room(offer, number, begin, lasts) for calendar in calendars))

        while until is None or since <= until:
            if (parts := parts_at(since)) is None:
                times = sorted(time for time in later if since < time and (until is None or time <= until))
                index = bisect_left(times, True, key=lambda time: parts_at(time) is not None)
                if index == len(times):
                    return None
                since = times[index]
                continue
            turn = self._turn(offer, since)
            if turn is None:
                return None
            if turn == since:
                return Slot.of(offer, parts, since)
            since = turn
        return None

    def _turn(self, offer: Offer, begin: datetime) -> datetime | None:
        """When teams' limits and earlier loans allow what the nodes have from `begin` on; None: never."""
        turns = (self.team_turn(offer, begin), self._pool_turn(offer, begin), self._borrowing_turn(offer, begin))
        return None if None in turns else max(turn for turn in turns if turn is not None)

    def _on_nodes(
        self, offer: Offer, since: datetime, until: datetime | None, known: NodeName | None
    ) -> tuple[datetime, NodeName] | None:
        """The first slot by what the nodes have.

        A request that asks for the same as one ahead starts its search at that one's slot.
        """
        number = self._number(offer.rules.headroom)
        ask = offer.ask
        same = (offer.need, offer.is_transfer, ask.sources, ask.nodes, ask.own_too, ask.target, ask.duration_s, number)
        earliest = self._not_before.get(same, self._now)
        if earliest is None or (until is not None and earliest > until):
            return None
        begin = max(since, earliest)
        best: tuple[datetime, bool, Preference] | None = None
        for node in may_lend(self._nodes, offer):
            calendar = self._calendar(node)
            found = calendar.first(offer, number, begin, until if best is None else best[0])
            if found is not None:
                left = calendar.left_after(offer.need, found)
                place = (found, node.name != known, preference(offer, node, left))
                best = place if best is None or place < best else best
        if since == self._now:
            later = None if until is None else until + timedelta.resolution
            self._not_before[same] = later if best is None else best[0]
        return None if best is None else (best[0], best[-1][-1])

    def team_turn(self, offer: Offer, since: datetime) -> datetime | None:
        """When the team's own limit allows the request; None: never."""
        teams, name = offer.rules.teams, offer.ask.team
        if not teams:
            return since
        if (
            name not in self._later_teams
            and why_above_its_most(offer.ask, offer.need, self.present.usage, teams) is None
        ):
            return since  # what the team has now only becomes less
        return self._team(offer).first(offer, since)

    def _pool_turn(self, offer: Offer, since: datetime) -> datetime | None:
        """When the team may have it beside what other teams withhold."""
        teams = offer.rules.teams
        if not teams.closed:
            return since
        if self._pool is None:
            self._pool = CommonPool(self._nodes, self._usage, self._ends.all, teams, self._now)
            for taken, place in self._taken:
                self._pool_takes(taken, place)
        return self._pool.first(offer, since)

    def _borrowing_turn(self, offer: Offer, since: datetime) -> datetime:
        """When the target may borrow.

        A node must not be borrowing when a lease that it lends to a request ahead begins.
        """
        if offer.is_transfer:
            lasts = timedelta(seconds=offer.ask.duration_s)
            for departure in self._departures[offer.ask.target, offer.ask.kind]:
                if since < departure < since + lasts:
                    since = departure
        return since

    # -- taking -----------------------------------------------------------------------------------------------

    def take(self, offer: Offer, place: Slot) -> None:
        """Take the slot: requests behind cannot have what it needs."""
        ask = offer.ask
        self._taken.append((offer, place))
        if place.begin <= self._now:
            for grant in offer.from_parts(place.parts):
                self.present.add(grant)
        else:
            self._has_promises = True
            self._later_teams.add(ask.team)
        for name in {*place.sources, ask.target}:
            if name in self._calendars:
                _enter(offer, place, self._calendars[name])
        if ask.team in self._teams:
            self._teams[ask.team].hold(offer.need, place.begin, place.end)
        if self._pool is not None:
            self._pool_takes(offer, place)
        if offer.is_transfer:
            for source in place.sources:
                insort(self._departures[source, ask.kind], place.begin)

    def _pool_takes(self, offer: Offer, place: Slot) -> None:
        assert self._pool is not None
        for grant in offer.from_parts(place.parts):
            self._pool.take(grant, place.begin, place.end)

    def take_for_team(self, offer: Offer, begin: datetime) -> None:
        """Take it from the team's limit only: on the nodes, other requests may go first."""
        self._later_teams.add(offer.ask.team)
        end = begin + timedelta(seconds=offer.ask.duration_s)
        self._team(offer).hold(offer.need, begin, end)
        self._taken_of_teams.append((offer, begin, end))

    def earmark(self, offer: Offer) -> tuple[NodeName, ...]:
        """Earmark nodes for a request that only a drop in their own load can meet: one, or as many as it takes.

        They are earmarked from when their leases are over. They are the nodes that lack the least; none, if nodes could
        not lend it even when idle.
        """
        calendars = [self._calendar(node) for node in may_lend(self._nodes, offer)]
        calendars.sort(key=lambda each: (each.left_after(offer.each, each.settled_at), each.node.name))
        by_name = {calendar.node.name: calendar for calendar in calendars}
        if offer.ask.members == 1 and (able := [each.node for each in calendars if could_when_idle(each.node, offer)]):
            parts: tuple[Part, ...] = (Part(able[0].name, offer.ask.units),)
        elif offer.ask.may_be_divided:
            least_first = replace(offer, ranks={name: number for number, name in enumerate(by_name)})
            parts = divide(least_first, (idle_room(each.node, offer) for each in calendars)) or ()
        else:
            return ()
        for part in parts:
            need, calendar = offer.part(part.units).need, by_name[part.source]
            since = calendar.settled_at
            self._earmarked.append((part.source, need, since))
            calendar.lend(need, since, None)
            self._has_promises = True
        return tuple(dict.fromkeys(part.source for part in parts))

    def bring_forward(self, parts: Collection[Lease], to: datetime) -> Callable[[], None]:
        """Assume that these leases, or these parts of them, are reclaimed and back by `to`.

        Returns a function that undoes this, for as long as nothing has been taken since.
        """
        nodes = {name for lease in parts for name in (lease.source, lease.target)}
        calendars = {name: self._calendars.pop(name) for name in nodes if name in self._calendars}
        teams = {lease.team: self._teams.pop(lease.team) for lease in parts if lease.team in self._teams}
        pool, self._pool = self._pool, None
        not_before, self._not_before = self._not_before, {}
        put_back = self._ends.bring_forward(parts, to)

        def undo() -> None:
            put_back()
            for name in nodes:
                self._calendars.pop(name, None)
            for lease in parts:
                self._teams.pop(lease.team, None)
            self._calendars |= calendars
            self._teams |= teams
            self._pool, self._not_before = pool, not_before

        return undo

    # -- for explanations -------------------------------------------------------------------------------------

    def comes_back(self, place: Slot, kind: str) -> int:
        """How much of a kind comes back to a slot's node just when the slot begins."""
        return sum(
            lease.resources[kind]
            for source in place.sources
            for end, lease in self._ends.on(source)
            if end == place.begin and lease.source == source
        )

    # -- built on first use -----------------------------------------------------------------------------------

    def _calendar(self, node: Node) -> NodeCalendar:
        found = self._calendars.get(node.name)
        if found is None:
            found = NodeCalendar(node, self._usage, self._ends.on(node.name), self._now)
            self._calendars[node.name] = found
            for offer, place in self._taken:
                _enter(offer, place, found)
            for name, need, since in self._earmarked:
                if name == node.name:
                    found.lend(need, since, None)
        return found

    def _team(self, offer: Offer) -> TeamCalendar:
        name = offer.ask.team
        found = self._teams.get(name)
        if found is None:
            team = offer.rules.teams.of(name)
            found = self._teams[name] = TeamCalendar(team, self._usage, self._ends.of(name), self._now)
            for taken, place in self._taken:
                if taken.ask.team == name:
                    found.hold(taken.need, place.begin, place.end)
            for taken, begin, end in self._taken_of_teams:
                if taken.ask.team == name:
                    found.hold(taken.need, begin, end)
        return found

    def _number(self, headroom: Headroom) -> int:
        """Equal headrooms have equal numbers, so comparing them once per request is enough."""
        for number, known in enumerate(self._headrooms):
            if known is headroom or known == headroom:
                return number
        self._headrooms.append(headroom)
        return len(self._headrooms) - 1


def _enter(offer: Offer, place: Slot, calendar: NodeCalendar) -> None:
    """Enter a slot into a node's calendar, if it concerns that node."""
    ask, name = offer.ask, calendar.node.name
    for part in place.parts:
        if part.source == name:
            calendar.lend(offer.part(part.units).need, place.begin, place.end, to_itself=ask.target == name)
    if offer.is_transfer and ask.target == name:
        calendar.borrow(ask.kind, ask.units, place.begin, place.end)
