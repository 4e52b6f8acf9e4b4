"""Whose turn it is: by priority, lifted with the time; then who had less lately; then who came first."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

from distributed_grid.decide.fair_share import Account, burden
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.model.requests import DEFAULT_DURATION_S
from distributed_grid.model.teams import Teams
from distributed_grid.model.waiting import Waiting

AGING_STEP_S: Final = DEFAULT_DURATION_S / 2
"""Half of a lease's usual time: by then about half of all that is lent has come back once, and went to others."""

_RANKS: Final = {priority: rank for rank, priority in enumerate(AllocationPriority)}
_HIGHEST: Final = max(_RANKS.values())

OVERDUE_S: Final = _HIGHEST * AGING_STEP_S
"""After this even the lowest is lifted all the way. Who still waits then goes by age alone, so that nobody starves:
neither newcomers nor teams that had less can pass any more."""


def effective_rank(waiting: Waiting, now: datetime) -> int:
    """Its priority's rank, one more for every step that it has waited; never above critical."""
    steps = max(0, int(_waited_s(waiting, now) // AGING_STEP_S))
    return min(_HIGHEST, _RANKS[waiting.ask.priority] + steps)


def is_overdue(waiting: Waiting, now: datetime) -> bool:
    return _waited_s(waiting, now) >= OVERDUE_S


def ordered(
    waiting: Iterable[Waiting], accounts: Mapping[str, Account], teams: Teams, now: datetime
) -> tuple[Waiting, ...]:
    """The queue: the highest rank, in it the overdue, then the least burdened team, the oldest; the id breaks ties."""
    burdens: dict[str, float] = {}

    def turn(one: Waiting) -> tuple[int, bool, float, datetime, str]:
        if is_overdue(one, now):
            return -_HIGHEST, False, 0.0, one.since, one.id
        name = one.ask.team
        if name not in burdens:
            burdens[name] = burden(teams.of(name), accounts, now)
        return -effective_rank(one, now), True, burdens[name], one.since, one.id

    return tuple(sorted(waiting, key=turn))


def _waited_s(waiting: Waiting, now: datetime) -> float:
    return (now - waiting.since).total_seconds()
