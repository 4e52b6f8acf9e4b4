"""The order of claims: which request is next, and which leases yield. `docs/sharing.md` tells users the same.

1. Guarantee: a request that keeps its team within its guarantee goes before every other request.
2. Priority: raised while a request waits; never raised for preemption.
3. Fair share: the team that has used less lately, for its weight. Half of what was used is forgotten every day.
4. Age.

Queue, preemption, relief of lenders, `grid plan` and `grid why` all decide by the functions here.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.capacity.quotas import is_within
from distributed_grid.decide.capacity.returns import is_overheld
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import DEFAULT_DURATION_S, Ask, Waiting
from distributed_grid.model.resources import ResourceVector, scale
from distributed_grid.model.teams import Team, Teams

HALF_LIFE_S: Final = 24 * 3600.0
"""Leases last for about an hour and people work in days: a team that had much this morning lets others go first this
afternoon, and after some quiet days starts afresh."""

_FORGOTTEN_S: Final = 1.0
"""An account that has faded below the whole cluster for this long is dropped."""


@dataclass(frozen=True, slots=True)
class Account:
    """A team's usage: its part of the cluster, in seconds, weighted as of `at`."""

    used: float
    at: datetime


def charged(
    accounts: Mapping[str, Account], leases: Iterable[Lease], totals: ResourceVector, now: datetime
) -> dict[str, Account]:
    """The accounts with what was held since they were last charged; how often they are charged makes no difference.

    A team is charged for its dominant share: the largest part that it holds of any kind, so that four of eight GPUs
    weigh as much as half of all CPUs.
    """
    holding = [lease for lease in leases if lease.holds_capacity]
    usage = Usage.of(holding)
    began: dict[str, datetime] = {}
    for lease in holding:
        began[lease.team] = min(lease.allocated_at, began.get(lease.team, lease.allocated_at))
    kept = {team: account for team, account in accounts.items() if _weight(account, now) >= _FORGOTTEN_S}
    for team, first in began.items():
        held = usage.held_by(team)
        share = max((units / totals[kind] for kind, units in held.items() if totals[kind]), default=0.0)
        before = accounts.get(team)
        since = first if before is None else max(before.at, first)
        kept[team] = Account((0.0 if before is None else _weight(before, now)) + share * _faded_s(since, now), now)
    return kept


def burden(team: Team, accounts: Mapping[str, Account], now: datetime) -> float:
    """A team's recent usage, divided by its weight: the lower, the sooner its turn."""
    account = accounts.get(team.name)
    used = 0.0 if account is None else _weight(account, now)
    return used / team.weight if team.weight > 0 else math.inf  # without a weight: after all other teams


def _weight(account: Account, now: datetime) -> float:
    return account.used * _left_after(account.at, now)


def _left_after(since: datetime, now: datetime) -> float:
    """The part that is not forgotten; a clock that is set back forgets nothing."""
    return float(2.0 ** (-max(0.0, (now - since).total_seconds()) / HALF_LIFE_S))


def _faded_s(since: datetime, now: datetime) -> float:
    """The seconds since then, each weighted by what is left of it: the first ones have faded most."""
    return HALF_LIFE_S / math.log(2) * (1.0 - _left_after(since, now))


AGING_STEP_S: Final = DEFAULT_DURATION_S / 2
"""Half of a lease's usual duration: by then about half of all that is lent has come back once, and went to other
requests."""

_HIGHEST: Final = max(priority.rank for priority in AllocationPriority)

OVERDUE_S: Final = _HIGHEST * AGING_STEP_S
"""After this, even the lowest priority has risen to the highest. From then on a request goes by age alone, so that none
starves: neither newer requests nor teams that used less can pass it. Only requests within a guarantee still do."""

RECENT_CHECKPOINT: Final = timedelta(minutes=5)
"""A holder that saved its work this recently loses little."""


# -- what a request claims -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a request, with which it competes against other requests and against leases."""

    team: str
    is_guaranteed: bool
    """With the request, the team stays within its guarantee."""
    rank: int
    """The rank of its priority."""

    @classmethod
    def of(cls, ask: Ask, usage: Usage, teams: Teams) -> "Claim":
        """The claim of a request on its own, with no others of its team ahead."""
        return cls(ask.team, Guarantees(usage, teams).count(ask), ask.priority.rank)


class Guarantees:
    """The rest of each team's guarantee, while requests are counted one after the other.

    A request counts as a whole: it is within the guarantee if all that it asks for is. Its companions (the CPU of a
    GPU) are then guaranteed with it. They still count as held, like all that a team has.
    """

    def __init__(self, usage: Usage, teams: Teams) -> None:
        self._usage, self._teams = usage, teams
        self._counted: dict[tuple[str, str], int] = {}

    def count(self, ask: Ask) -> bool:
        """Whether the request is within what is left of its team's guarantee; if so, that much less is left."""
        team = self._teams.get(ask.team)
        if team is None or not team.guaranteed:
            return False
        name, counted = ask.team, self._counted
        if not is_within(ask, team, lambda kind: self._usage.held(name, kind) + counted.get((name, kind), 0)):
            return False
        for kind, units in ask.asked:
            counted[name, kind] = counted.get((name, kind), 0) + units
        return True


# -- the order of the queue ------------------------------------------------------------------------------------


def ordered(
    waiting: Iterable[Waiting], usage: Usage, accounts: Mapping[str, Account], teams: Teams, now: datetime
) -> tuple[Waiting, ...]:
    """The waiting requests, in the order of the queue. The id breaks ties."""
    burdens: dict[str, float] = {}

    def turn(one: Waiting) -> tuple[int, bool, float, datetime, str]:
        if is_overdue(one, now):
            return -_HIGHEST, False, 0.0, one.since, one.id
        name = one.ask.team
        if name not in burdens:
            burdens[name] = burden(teams.of(name), accounts, now)
        return -effective_rank(one, now), True, burdens[name], one.since, one.id

    by_turn = sorted(waiting, key=turn)
    if not teams:
        return tuple(by_turn)
    guarantees = Guarantees(usage, teams)
    first: list[Waiting] = []
    rest: list[Waiting] = []
    for one in by_turn:
        (first if guarantees.count(one.ask) else rest).append(one)
    return (*first, *rest)


def effective_rank(waiting: Waiting, now: datetime) -> int:
    """The rank of its priority, plus one for every step that it has waited; never above critical."""
    steps = max(0, int(_waited_s(waiting, now) // AGING_STEP_S))
    return min(_HIGHEST, waiting.ask.priority.rank + steps)


def is_overdue(waiting: Waiting, now: datetime) -> bool:
    return _waited_s(waiting, now) >= OVERDUE_S


def _waited_s(waiting: Waiting, now: datetime) -> float:
    return (now - waiting.since).total_seconds()


# -- which leases yield ----------------------------------------------------------------------------------------


def yields_to(lease: Lease, claim: Claim, *, preempts: bool) -> bool:
    """Whether a lease may be reclaimed for a claim, as far as `may_take` allows.

    A claim within its guarantee takes from other teams, whatever their priority and whatever the policy says. Any other
    claim, and a claim on leases of its own team, needs a higher priority and a policy that preempts.
    """
    if claim.is_guaranteed and lease.team != claim.team:
        return True
    return preempts and lease.priority.rank < claim.rank


def may_take(lease: Lease, claim: Claim, above: Mapping[str, int]) -> int:
    """How many units of a lease may be taken for a claim to which it yields.

    `above`: how much the lease's team holds above its guarantee, of each kind that matters. What a team holds within
    its guarantee stays. Other teams cannot take it, nor can the team's own requests above the guarantee, whose claims
    are lower. A reservation cannot be divided. One that is partly above its team's guarantee goes as a whole to a claim
    within a guarantee, and to no other. Which of a team's leases are above its guarantee is not fixed: only the amount
    counts.
    """
    if claim.is_guaranteed and lease.team == claim.team:
        return lease.units  # the team stays within its guarantee with either, and the request is worth more to it
    if lease.delivery.can_split:
        return max(0, min(lease.units, above.get(lease.kind, lease.units)))
    least = 1 if claim.is_guaranteed else None
    return lease.units if all(units >= (least or lease.resources[kind]) for kind, units in above.items()) else 0


def above_guarantee(team: str, kind: str, usage: Usage, teams: Teams) -> int:
    """How much more of a kind a team holds than its guarantee; below zero where it holds less."""
    return usage.held(team, kind) - teams.of(team).guaranteed[kind]


def may_be_asked(lease: Lease, min_hold_s: float, at: datetime) -> bool:
    """Whether a lease can be reclaimed at a moment.

    It can if it is overheld, or if it is no pending return and its minimum hold is over.
    """
    if is_overheld(lease, at):
        return True
    return lease.state is LeaseState.ACTIVE and lease.notice is None and hold_ends(lease, min_hold_s) <= at


def hold_ends(lease: Lease, min_hold_s: float) -> datetime:
    """The end of the minimum hold. Before it, no lease is reclaimed for others."""
    return lease.allocated_at + timedelta(seconds=min_hold_s)


def yields_first(lease: Lease, now: datetime) -> tuple[int, bool, float, float, str]:
    """The order in which leases yield: by priority, then by how little is lost; the id makes every run the same."""
    saved = lease.checkpointed_at is not None and now - lease.checkpointed_at <= RECENT_CHECKPOINT
    held = lease.units / scale(lease.kind)
    return lease.priority.rank, not saved, -lease.allocated_at.timestamp(), held, lease.id
