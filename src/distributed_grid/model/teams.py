"""Teams: the owners of leases, with their guarantees and their limits."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.errors import InvalidRequest, did_you_mean
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import ResourceVector

DEFAULT_TEAM: Final = "default"


@dataclass(frozen=True, slots=True)
class Team:
    """A team's guarantee and limits, by kind; a kind that is not named has none."""

    name: str
    guaranteed: ResourceVector = field(default_factory=ResourceVector)
    """Its own part: what others hold of it is reclaimed when the team asks."""
    borrowing_limit: Mapping[str, int] = field(default_factory=dict)
    """The most it may hold above its guarantee."""
    lending_limit: Mapping[str, int] = field(default_factory=dict)
    """The most that others may hold of its guarantee while the team does not use it."""
    weight: float = 1.0
    """Its fair share of contested capacity, relative to the other teams' weights."""
    max_priority: AllocationPriority | None = None
    """The highest priority that its tokens may ask for. None: each token has its own limit."""

    def most(self, kind: str) -> int | None:
        """The most it may ever hold of a kind; None: no limit."""
        extra = self.borrowing_limit.get(kind)
        return None if extra is None else self.guaranteed[kind] + extra

    def withheld_from_others(self, kind: str) -> int:
        """The part of its guarantee that no other team may hold, even while it is unused."""
        lends = self.lending_limit.get(kind)
        return 0 if lends is None else max(0, self.guaranteed[kind] - lends)


def check_known_team(name: str, teams: "Teams") -> str:
    """A team's name; `InvalidRequest` if teams are configured and it is not one of them."""
    if not name or not teams or name in (*teams, DEFAULT_TEAM):
        return name
    raise InvalidRequest(
        f"No team {name!r} is configured{did_you_mean(name, teams)}",
        because=[f"the teams are: {', '.join(teams)}"],
        try_next="Use one of them, or add it below resource_sharing.teams in the configuration.",
    )


class Teams(Mapping[str, Team]):
    """The configured teams by name. A lease of no configured team has no guarantee and no limit."""

    def __init__(self, teams: Iterable[Team] = ()) -> None:
        self._teams = {team.name: team for team in teams}
        self.closed = tuple(team for team in self._teams.values() if team.lending_limit)
        """The teams that withhold part of their guarantee from others."""
        self._withheld: dict[str, tuple[tuple[str, int], ...]] = {}
        self._withheld_in_all: dict[str, int] = {}

    def __getitem__(self, name: str) -> Team:
        return self._teams[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._teams)

    def __len__(self) -> int:
        return len(self._teams)

    def withheld_by_team(self, kind: str) -> tuple[tuple[str, int], ...]:
        """The teams that withhold some of a kind from others, and how much."""
        if kind not in self._withheld:
            withheld = ((team.name, team.withheld_from_others(kind)) for team in self.closed)
            self._withheld[kind] = tuple((name, units) for name, units in withheld if units)
        return self._withheld[kind]

    def withheld_in_all(self, kind: str) -> int:
        if kind not in self._withheld_in_all:
            self._withheld_in_all[kind] = sum(units for _, units in self.withheld_by_team(kind))
        return self._withheld_in_all[kind]

    def in_force(self, name: str) -> str:
        """The team that a token's team counts as: `default` if it is not configured. A token may have no team."""
        return name if not name or name in self._teams else DEFAULT_TEAM

    def of(self, name: str) -> Team:
        return self._teams.get(name) or Team(name or DEFAULT_TEAM)
