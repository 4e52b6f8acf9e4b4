"""Teams: to whom leases belong, what each is sure of, and what it may have of the others' part."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import ResourceVector

DEFAULT_TEAM: Final = "default"


@dataclass(frozen=True, slots=True)
class Team:
    """What a team may hold of what the cluster lends, by kind; a kind that is not named has no such limit."""

    name: str
    guaranteed: ResourceVector = field(default_factory=ResourceVector)
    """Its own part: what others have of it comes back when the team asks."""
    borrowing_limit: Mapping[str, int] = field(default_factory=dict)
    """The most it may have above what is guaranteed."""
    lending_limit: Mapping[str, int] = field(default_factory=dict)
    """The most that others may have of what is guaranteed to it while it does not use that."""
    weight: float = 1.0
    """Its fair share of what is contested, against the others' weights."""
    max_priority: AllocationPriority | None = None
    """The highest priority that its tokens may ask for. None: each token says that for itself."""

    def most(self, kind: str) -> int | None:
        """All it may ever have of a kind; None: no limit."""
        extra = self.borrowing_limit.get(kind)
        return None if extra is None else self.guaranteed[kind] + extra

    def kept_from_others(self, kind: str) -> int:
        """The part of its guarantee that nobody else may have, also while it is not used."""
        lends = self.lending_limit.get(kind)
        return 0 if lends is None else max(0, self.guaranteed[kind] - lends)


class Teams(Mapping[str, Team]):
    """The configured teams by name. Whoever belongs to none of them has nothing guaranteed, and no limit."""

    def __init__(self, teams: Iterable[Team] = ()) -> None:
        self._teams = {team.name: team for team in teams}
        self.closed = tuple(team for team in self._teams.values() if team.lending_limit)
        """Those that keep part of what is theirs from the others."""
        self._keeping: dict[str, tuple[tuple[str, int], ...]] = {}
        self._kept_in_all: dict[str, int] = {}

    def __getitem__(self, name: str) -> Team:
        return self._teams[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._teams)

    def __len__(self) -> int:
        return len(self._teams)

    def keeping(self, kind: str) -> tuple[tuple[str, int], ...]:
        """Who keeps how much of a kind from the others."""
        if kind not in self._keeping:
            kept = ((team.name, team.kept_from_others(kind)) for team in self.closed)
            self._keeping[kind] = tuple((name, units) for name, units in kept if units)
        return self._keeping[kind]

    def kept_in_all(self, kind: str) -> int:
        if kind not in self._kept_in_all:
            self._kept_in_all[kind] = sum(units for _, units in self.keeping(kind))
        return self._kept_in_all[kind]

    def of(self, name: str) -> Team:
        return self._teams.get(name) or Team(name or DEFAULT_TEAM)
