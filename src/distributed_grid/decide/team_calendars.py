"""What teams may have, from now on: each by its own limit, and all of what none keeps for itself."""

from datetime import datetime, timedelta
from functools import partial

from distributed_grid.decide.calendars import Calendar
from distributed_grid.decide.lease_ends import Ends
from distributed_grid.decide.lending import Offer
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.quotas import limited
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

    def first(self, offer: Offer, since: datetime) -> datetime | None:
        """When it may have this by its own limit; None: never."""
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
    """What no team keeps for itself, as all leases end and those who wait have their turn.

    Where it would be dear to be exact it errs towards waiting: by a part of what a closed team keeps.
    """

    def __init__(self, nodes: NodeTable, loans: Loans, ends: Ends, teams: Teams, now: datetime) -> None:
        self._nodes, self._teams = nodes, teams
        self._most = loans.without(())
        """As if nothing ended and all had their turn at once: never is more held."""
        self._gone: Calendar[str] = Calendar(now)
        """By kind, what is held, and what is kept by teams that do not hold it."""
        kinds = {kind for team in teams.closed for kind in team.lending_limit if teams.keeping(kind)}
        keeping = {(name, kind): units for kind in kinds for name, units in teams.keeping(kind)}
        held = {(name, kind): loans.held(name, kind) for name, kind in keeping}
        for kind in kinds:
            kept = sum(max(0, units - held[key]) for key, units in keeping.items() if key[1] == kind)
            self._gone.add(kind, loans.held_by_all(kind) + kept, now)
        for end, lease in ends:
            for kind, units in lease.resources.items():
                if kind in kinds:
                    less, key = -units, (lease.team, kind)
                    if key in keeping:
                        less += max(0, keeping[key] - held[key] + units) - max(0, keeping[key] - held[key])
                        held[key] -= units
                    self._gone.add(kind, less, end)

    def first(self, offer: Offer, since: datetime) -> datetime | None:
        """When its team may have this beside the others, and goes on to while those ahead have their turn.

        A request within its team's guarantee asks nobody.
        """
        most, own = self._most, self._teams.of(offer.ask.team)
        needs = []
        for kind, units in limited(offer.ask, offer.need, own, partial(most.held, own.name)).items():
            held, kept = most.held(own.name, kind), self._teams.kept_in_all(kind)
            if not kept or held + units <= own.guaranteed[kind]:
                continue
            lendable = self._nodes.lendable(kind) + max(0, own.kept_from_others(kind) - held)
            if units > lendable - most.held_by_all(kind) - kept:
                needs.append(([lendable - gone for gone in self._gone.row(kind)], units))
        return self._gone.first(needs, timedelta(seconds=offer.ask.duration_s), since)

    def take(self, grant: Grant, begin: datetime, end: datetime) -> None:
        self._most.promise(grant)
        for kind, units in grant.resources.items():
            if self._teams.keeping(kind):
                self._gone.add(kind, units, begin, end)
