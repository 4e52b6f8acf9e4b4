"""Members of a run that are alike, as one row: a thousand of them still fit on a screen."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

_EACH: Final = 20
"""So many members are shown one by one."""
_ROWS: Final = 40
"""More rows than this are folded further."""
_NAMED: Final = 2
"""More nodes than this are only counted."""

Member = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """Members of one role that are alike."""

    members: tuple[Member, ...]

    @property
    def role(self) -> str:
        return str(self.members[0]["role"])

    @property
    def ranks(self) -> str:
        return ranks([member["rank"] for member in self.members])

    @property
    def nodes(self) -> str:
        names = list(dict.fromkeys(member["node"] or "-" for member in self.members))
        return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} nodes"

    @property
    def gpus(self) -> str:
        """Which ones, where all are on one node; else how many. Parts of one GPU count once."""
        found = list(dict.fromkeys((member["node"], gpu) for member in self.members for gpu in member["gpus"]))
        if not found:
            return "-"
        if len({node for node, _ in found}) == 1:
            return ", ".join(str(gpu) for _, gpu in found)
        return f"{len(found)} in all"

    @property
    def state(self) -> str:
        return str(self.members[0]["state"])

    @property
    def restarts(self) -> int:
        return sum(member["restarts"] for member in self.members)

    @property
    def running(self) -> int:
        return sum(member["running"] for member in self.members)

    @property
    def queue(self) -> int:
        return sum(member["queue"] for member in self.members)


def folded(members: Sequence[Member], *, each: bool = False) -> list[Row]:
    """Each by itself where there are few, or where that is asked for; else those of a role that are alike together."""
    if each or len(members) <= _EACH:
        return [Row((member,)) for member in members]
    rows = _together(members, lambda member: (member["role"], member["node"], member["state"]))
    if len(rows) > _ROWS:
        rows = _together(members, lambda member: (member["role"], member["state"]))
    return rows


def _together(members: Iterable[Member], key: Callable[[Member], Hashable]) -> list[Row]:
    found: dict[Hashable, list[Member]] = {}
    for member in members:
        found.setdefault(key(member), []).append(member)
    place: dict[str, int] = {}
    rows = [Row(tuple(alike)) for alike in found.values()]
    for row in rows:
        place.setdefault(row.role, len(place))
    return sorted(rows, key=lambda row: (place[row.role], row.members[0]["rank"]))


def ranks(numbers: Iterable[int]) -> str:
    """ "0-3, 5"."""
    runs = [
        [number for _, number in run] for _, run in groupby(enumerate(sorted(numbers)), lambda one: one[1] - one[0])
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
