"""Places in time: when and on which node a request has what it asks for, without delaying anybody ahead."""

from bisect import insort
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from distributed_grid.decide.lease_ends import expected_end
from distributed_grid.decide.lending import Offer, never, room_of
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.node_calendar import NodeCalendar
from distributed_grid.decide.team_calendars import CommonPool, TeamCalendar
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.rules import Reserve


@dataclass(frozen=True, slots=True)
class Place:
    source: NodeName
    begin: datetime
    end: datetime


class Places:
    """What is lent, and taken by those ahead, from now on. A place that is free now is only ever taken, never freed."""

    def __init__(self, nodes: NodeTable, leases: Iterable[Lease], loans: Loans, now: datetime) -> None:
        self._nodes, self._loans, self._now = nodes, loans, now
        holding = ((expected_end(lease, now), lease) for lease in leases if lease.holds_capacity)
        self._ends = sorted(holding, key=lambda end: (end[0], end[1].id))
        self._ends_on: defaultdict[NodeName, list[tuple[datetime, Lease]]] = defaultdict(list)
        self._ends_of: defaultdict[str, list[tuple[datetime, Lease]]] = defaultdict(list)
        for end in self._ends:
            lease = end[1]
            self._ends_on[lease.source].append(end)
            self._ends_of[lease.team].append(end)
            if lease.delivery is Delivery.TRANSFER:
                self._ends_on[lease.target].append(end)
        self._calendars: dict[NodeName, NodeCalendar] = {}
        self._teams: dict[str, TeamCalendar] = {}
        self._pool: CommonPool | None = None
        self._departures: defaultdict[tuple[NodeName, str], list[datetime]] = defaultdict(list)
        self._reserves: list[Reserve] = []
        self._not_before: dict[Hashable, datetime | None] = {}

    # -- the first place --------------------------------------------------------------------------------------

    def first(self, offer: Offer, until: datetime | None = None) -> Place | None:
        """The first place that begins not after `until`; on the node that then has the most left."""
        lasts = timedelta(seconds=offer.ask.duration_s)
        since = self._now
        while until is None or since <= until:
            found = self._on_nodes(offer, since, until)
            if found is None:
                return None
            begin, source = found
            turns = (self.team_turn(offer, begin), self._pool_turn(offer, begin), self._borrowing_turn(offer, begin))
            if None in turns:
                return None
            since = max(turn for turn in turns if turn is not None)
            if since == begin:
                return Place(source, begin, begin + lasts)
        return None

    def _on_nodes(self, offer: Offer, since: datetime, until: datetime | None) -> tuple[datetime, NodeName] | None:
        """By what the nodes have. Who asks for the same as one ahead need not look before that one's place."""
        number = self._number(offer.rules.reserve)
        ask = offer.ask
        same = (offer.need, offer.is_transfer, ask.source, ask.target, ask.duration_s, number)
        earliest = self._not_before.get(same, self._now)
        if earliest is None or (until is not None and earliest > until):
            return None
        begin = max(since, earliest)
        best: tuple[datetime, tuple[int, ...], float, NodeName] | None = None
        for node in self._nodes.lenders:
            if never(node, offer) is not None:
                continue
            calendar = self._calendar(node)
            found = calendar.first(offer, number, begin, until if best is None else best[0])
            if found is not None:
                place = (found, calendar.left_after(offer.need, found), -node.limits.priority, node.name)
                best = place if best is None or place < best else best
        if since == self._now:
            later = None if until is None else until + timedelta.resolution
            self._not_before[same] = later if best is None else best[0]
        return None if best is None else (best[0], best[-1])

    def team_turn(self, offer: Offer, since: datetime) -> datetime | None:
        """When its team may have it by its own limit; None: never."""
        if not offer.rules.teams:
            return since
        return self._team(offer).first(offer.need, timedelta(seconds=offer.ask.duration_s), since)

    def _pool_turn(self, offer: Offer, since: datetime) -> datetime | None:
        """When its team may have it beside what other teams keep."""
        teams = offer.rules.teams
        if not teams.closed:
            return since
        if self._pool is None:
            self._pool = CommonPool(self._nodes, self._loans, self._ends, teams)
        return self._pool.first(offer, since)

    def _borrowing_turn(self, offer: Offer, since: datetime) -> datetime:
        """When its target may borrow: who is to lend to somebody ahead cannot be borrowing when that begins."""
        if offer.is_transfer:
            lasts = timedelta(seconds=offer.ask.duration_s)
            for departure in self._departures[offer.ask.target, offer.ask.kind]:
                if since < departure < since + lasts:
                    since = departure
        return since

    # -- taking -----------------------------------------------------------------------------------------------

    def take(self, offer: Offer, place: Place) -> None:
        """From now on nobody behind can have what this place needs."""
        ask, begin, end = offer.ask, place.begin, place.end
        self._calendar(self._nodes[place.source]).lend(offer.need, begin, end)
        self.take_for_team(offer, begin)
        if self._pool is not None:
            self._pool.take(offer.from_node(place.source), begin, end)
        if offer.is_transfer:
            self._calendar(self._nodes[ask.target]).borrow(ask.kind, ask.units, begin, end)
            insort(self._departures[place.source, ask.kind], begin)

    def take_for_team(self, offer: Offer, begin: datetime) -> None:
        """Of the team's limit only: on the nodes others may go first."""
        if offer.rules.teams:
            self._team(offer).hold(offer.need, begin, begin + timedelta(seconds=offer.ask.duration_s))

    def keep(self, offer: Offer) -> NodeName | None:
        """Keep a node for what no lease's end makes possible, only the node's own work: from when its leases are over.

        The node that lacks the least; None if none could lend it even if it were idle.
        """
        able = [self._calendar(node) for node in self._nodes.lenders if never(node, offer) is None]
        able = [calendar for calendar in able if could_when_idle(calendar.node, offer)]
        if not able:
            return None
        best = min(
            able, key=lambda calendar: (calendar.left_after(offer.need, calendar.settled_at), calendar.node.name)
        )
        best.lend(offer.need, best.settled_at, None)
        return best.node.name

    # -- for words --------------------------------------------------------------------------------------------

    def comes_back(self, place: Place, kind: str) -> int:
        """How much of a kind comes back to a place's node just when it begins."""
        ends = self._ends_on[place.source]
        return sum(lease.resources[kind] for end, lease in ends if end == place.begin and lease.source == place.source)

    # -- what is made when it is needed -----------------------------------------------------------------------

    def _calendar(self, node: Node) -> NodeCalendar:
        found = self._calendars.get(node.name)
        if found is None:
            found = NodeCalendar(node, self._loans, self._ends_on[node.name], self._now)
            self._calendars[node.name] = found
        return found

    def _team(self, offer: Offer) -> TeamCalendar:
        name = offer.ask.team
        if name not in self._teams:
            team = offer.rules.teams.of(name)
            self._teams[name] = TeamCalendar(team, self._loans, self._ends_of[name], self._now)
        return self._teams[name]

    def _number(self, reserve: Reserve) -> int:
        """Equal reserves have equal numbers: comparing them once for a request is enough."""
        for number, known in enumerate(self._reserves):
            if known is reserve or known == reserve:
                return number
        self._reserves.append(reserve)
        return len(self._reserves) - 1


def could_when_idle(node: Node, offer: Offer) -> bool:
    return all(units <= room_when_idle(node, kind, offer.rules.reserve) for kind, units in offer.need.items())


def room_when_idle(node: Node, kind: str, reserve: Reserve) -> int:
    """How much it could lend if nothing were lent and its own work needed nothing."""
    return room_of(replace(node, total=node.base), kind, node.base[kind], 0, reserve)
