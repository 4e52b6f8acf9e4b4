"""What teams may have, from now on: each by its own limit, and all of what none keeps for itself."""

from bisect import insort
from datetime import datetime, timedelta

from distributed_grid.decide.calendars import Calendar
from distributed_grid.decide.lease_ends import Ends
from distributed_grid.decide.lending import Offer
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.quotas import why_kept_by_others
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.plans import Grant
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.teams import Team, Teams


class TeamCalendar:
    """What one team has, and when that ends."""

    __slots__ = ("_calendar", "_team")

    def __init__(self, team: Team, loans: Loans, ends: Ends, now: datetime) -> None:
        self._team = team
        self._calendar: Calendar[str] = Calendar(now)
        for kind, units in loans.held_by(team.name).items():
            self._calendar.add(kind, units, now)
        for end, lease in ends:
            for kind, units in lease.resources.items():
                self._calendar.add(kind, -units, end)

    def first(self, need: ResourceVector, lasts: timedelta, since: datetime) -> datetime | None:
        """When it may have this by its own limit; None: never."""
        limited = ((kind, units, self._team.most(kind)) for kind, units in need.items())
        needs = [
            ([most - held for held in self._calendar.row(kind)], units)
            for kind, units, most in limited
            if most is not None
        ]
        return self._calendar.first(needs, lasts, since) if needs else since

    def hold(self, need: ResourceVector, begin: datetime, end: datetime) -> None:
        for kind, units in need.items():
            self._calendar.add(kind, units, begin, end)


class CommonPool:
    """What no team keeps for itself, as all leases end and those who wait have their turn."""

    def __init__(self, nodes: NodeTable, loans: Loans, ends: Ends, teams: Teams) -> None:
        self._nodes, self._loans, self._teams = nodes, loans, teams
        self._most = loans.without(())
        """As if nothing ended and all had their turn at once: who may have something then may have it at any time."""
        self._changes: list[_Change] = [(end, number, lease, -1) for number, (end, lease) in enumerate(ends)]

    def first(self, offer: Offer, since: datetime) -> datetime | None:
        """When its team may have this beside the others, and goes on to while those ahead have their turn.

        A request within its team's guarantee asks nobody.
        """
        if self._may_have(offer, self._most):
            return since
        loans = self._loans.without(())
        lasts = timedelta(seconds=offer.ask.duration_s)
        done, start = 0, None
        for at in (since, *(change[0] for change in self._changes if change[0] > since)):
            while done < len(self._changes) and self._changes[done][0] <= at:
                _make(self._changes[done], loans)
                done += 1
            if start is not None and at >= start + lasts:
                break
            if not self._may_have(offer, loans):
                start = None
            elif start is None:
                start = at
        return start

    def take(self, grant: Grant, begin: datetime, end: datetime) -> None:
        self._most.promise(grant)
        for at, times in ((begin, 1), (end, -1)):
            insort(self._changes, (at, len(self._changes), grant, times), key=lambda change: change[:2])

    def _may_have(self, offer: Offer, loans: Loans) -> bool:
        return why_kept_by_others(offer.ask.team, offer.need, self._nodes, loans, self._teams) is None


_Change = tuple[datetime, int, Lease | Grant, int]
"""When, in which order, what comes (1) or goes (-1)."""


def _make(change: _Change, loans: Loans) -> None:
    _, _, what, times = change
    if isinstance(what, Lease):
        loans.count(what, times)
    else:
        loans.promise(what, times)
