"""The order of claims: which request is next, and which leases yield. `docs/sharing.md` tells users the same.

1. Guarantee: a request that keeps its team within its guarantee goes before every other request.
2. Priority: raised while a request waits; never raised for preemption.
   Windows go before all requests whose guarantee or priority is not better than theirs.
3. Fair share: the team that has used less lately, for its weight. Half of what was used is forgotten every day.
4. Age.

Queue, preemption, relief of lenders, `grid plan` and `grid why` all decide by the functions here.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.capacity.quotas import is_within
from distributed_grid.decide.capacity.returns import expected_end, is_overheld
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
    waiting: Iterable[Waiting],
    usage: Usage,
    accounts: Mapping[str, Account],
    teams: Teams,
    now: datetime,
    leases: Iterable[Lease] = (),
) -> tuple[Waiting, ...]:
    """The waiting requests, in the order of the queue. The id breaks ties.

    `leases`: those that there are; needed for windows of teams with a guarantee.
    """
    waiting = tuple(waiting)
    burdens: dict[str, float] = {}
    promises = _promises(waiting, tuple(leases), teams, now)

    def turn(one: Waiting) -> tuple[int, bool, float, datetime, str]:
        if is_overdue(one, now):
            return -_HIGHEST, False, 0.0, one.since, one.id
        name = one.ask.team
        if name not in burdens:
            burdens[name] = burden(teams.of(name), accounts, now)
        return -effective_rank(one, now), True, burdens[name], one.since, one.id

    by_turn = sorted((one for one in waiting if one.occurrence is None), key=turn)
    if not teams:
        return _with_promises(((False, one) for one in by_turn), promises)
    guarantees = Guarantees(usage, teams)
    for _, one in promises:
        if not one.is_promise(now):
            guarantees.count(one.ask)
    first: list[tuple[bool, Waiting]] = []
    rest: list[tuple[bool, Waiting]] = []
    for one in by_turn:
        is_guaranteed = guarantees.count(one.ask)
        (first if is_guaranteed else rest).append((is_guaranteed, one))
    return _with_promises((*first, *rest), promises)


_Strength = tuple[bool, int]
"""Whether a claim is within a guarantee, and the rank of its priority."""


def _promises(
    waiting: Iterable[Waiting], leases: Sequence[Lease], teams: Teams, now: datetime
) -> list[tuple[_Strength, Waiting]]:
    """The occurrences of windows, the best claim first; of equal claims, the earlier promise."""
    found: list[tuple[_Strength, Waiting]] = []
    earlier: list[Waiting] = []
    for one in sorted((each for each in waiting if each.occurrence is not None), key=_promised_at):
        claim = claim_of_promise(one, earlier, leases, teams, now)
        found.append(((claim.is_guaranteed, claim.rank), one))
        earlier.append(one)
    return sorted(found, key=lambda each: (not each[0][0], -each[0][1]))


def _promised_at(one: Waiting) -> tuple[datetime, datetime, str]:
    assert one.occurrence is not None
    return one.occurrence.promised_at, one.occurrence.begin, one.id


def claim_of_promise(
    one: Waiting, earlier: Iterable[Waiting], leases: Iterable[Lease], teams: Teams, now: datetime
) -> Claim:
    """The claim of an occurrence when it begins: beside the leases that last until then, and earlier promises."""
    ask, occurrence, team = one.ask, one.occurrence, teams.get(one.ask.team)
    if occurrence is None or team is None or not team.guaranteed:
        return Claim(ask.team, False, ask.priority.rank)
    lasting = (
        lease for lease in leases if lease.team == ask.team and expected_end(lease, now) > max(now, occurrence.begin)
    )
    guarantees = Guarantees(Usage.of(lasting), teams)
    for other in earlier:
        at = other.occurrence
        if at is not None and other.ask.team == ask.team and at.begin < occurrence.end and occurrence.begin < at.end:
            guarantees.count(other.ask)
    return Claim(ask.team, guarantees.count(ask), ask.priority.rank)


def _with_promises(
    queue: Iterable[tuple[bool, Waiting]], promises: Sequence[tuple[_Strength, Waiting]]
) -> tuple[Waiting, ...]:
    """The queue with each occurrence ahead of the first request whose claim is not better, however long that waited."""
    merged: list[Waiting] = []
    left = list(promises)
    for is_guaranteed, one in queue:
        while left and (is_guaranteed, one.ask.priority.rank) <= left[0][0]:
            merged.append(left.pop(0)[1])
        merged.append(one)
    return (*merged, *(one for _, one in left))


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

    An idle lease, if it is configured to, and the growth of an elastic lease yield to every claim, except that growth
    takes nothing from others. A claim within its guarantee takes from other teams,
    whatever their priority and whatever the policy says. Any other claim, and a claim on leases of its own team, needs
    a higher priority and a policy that preempts.
    """
    if lease.yields_to_all or (claim.is_guaranteed and lease.team != claim.team):
        return True
    return preempts and lease.priority.rank < claim.rank


def may_take(lease: Lease, claim: Claim, above: Mapping[str, int]) -> int:
    """How many units of a lease may be taken for a claim to which it yields.

    `above`: how much the lease's team holds above its guarantee, of each kind that matters. What a team holds within
    its guarantee stays. Other teams cannot take it, nor can the team's own requests above the guarantee, whose claims
    are lower. A reservation cannot be divided. One that is partly above its team's guarantee goes as a whole to a claim
    within a guarantee, and to no other. Which of a team's leases are above its guarantee is not fixed: only the amount
    counts. A guarantee protects neither an idle lease nor growth.
    """
    if lease.yields_to_all:
        return lease.units
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

    It can if it is overheld, or if it is no pending return and its minimum hold is over. Growth has no minimum hold.
    """
    if is_overheld(lease, at):
        return True
    return lease.state is LeaseState.ACTIVE and lease.notice is None and hold_ends(lease, min_hold_s) <= at


def hold_ends(lease: Lease, min_hold_s: float) -> datetime:
    """The end of the minimum hold. Before it, no lease is reclaimed for others."""
    if lease.grows:
        return lease.allocated_at
    return lease.allocated_at + timedelta(seconds=min_hold_s)


def yields_first(lease: Lease, now: datetime) -> tuple[bool, bool, int, bool, float, float, str]:
    """The order in which leases yield: growth, what its work does not use first; idle ones; then by priority, then by
    how little is lost. The id makes every run the same."""
    saved = lease.checkpointed_at is not None and now - lease.checkpointed_at <= RECENT_CHECKPOINT
    held = lease.units / scale(lease.kind)
    order = not lease.grows, not lease.yields_as_idle, lease.priority.rank
    return *order, not saved, -lease.allocated_at.timestamp(), held, lease.id
