"""The order of claims: whose turn it is, and who yields to whom. `docs/sharing.md` tells users the same.

1. Guarantee: a request that keeps its team within what is guaranteed to it goes before every other request.
2. Priority: lifted with the time that a request waits; never lifted for taking leases back.
3. Fair share: the team that has used less lately, for its weight.
4. Age.

Queue, preemption, relief of lenders, `grid plan` and `grid why` all decide by the functions here.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.fair_share import Account, burden
from distributed_grid.decide.loans import Loans
from distributed_grid.model.leases import Delivery, Lease, LeaseState, OnGraceEnd
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.model.requests import DEFAULT_DURATION_S, Ask
from distributed_grid.model.resources import scale
from distributed_grid.model.teams import Team, Teams
from distributed_grid.model.waiting import Waiting

AGING_STEP_S: Final = DEFAULT_DURATION_S / 2
"""Half of a lease's usual time: by then about half of all that is lent has come back once, and went to others."""

_RANKS: Final = {priority: rank for rank, priority in enumerate(AllocationPriority)}
_HIGHEST: Final = max(_RANKS.values())

OVERDUE_S: Final = _HIGHEST * AGING_STEP_S
"""After this even the lowest priority is lifted to the highest. From then on a request goes by age alone, so that none
starves: neither newcomers nor teams that had less can pass it. Only requests within a guarantee still do."""

RECENT_CHECKPOINT: Final = timedelta(minutes=5)
"""A holder that saved its work so lately loses little."""


# -- what a request claims -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """What stands behind a request when it competes with others, and with leases."""

    team: str
    is_guaranteed: bool
    """With it the team stays within what is guaranteed to it."""
    rank: int
    """Of its priority."""

    @classmethod
    def of(cls, ask: Ask, loans: Loans, teams: Teams) -> "Claim":
        """The claim of a request that is alone."""
        return cls(ask.team, Guarantees(loans, teams).count(ask), _RANKS[ask.priority])


class Guarantees:
    """What is left of each team's guarantee, while requests are counted one after the other.

    A request counts as a whole: it is within the guarantee if all that it asks for is. What a reservation brings along
    unasked (the CPU of a GPU) is then guaranteed with it. It counts as held, though, like all that a team has.
    """

    def __init__(self, loans: Loans, teams: Teams) -> None:
        self._loans, self._teams = loans, teams
        self._counted: dict[tuple[str, str], int] = {}

    def count(self, ask: Ask) -> bool:
        """Whether the request is within what is left of its team's guarantee; then that much less is left."""
        team = self._teams.get(ask.team)
        if team is None or not team.guaranteed:
            return False
        name, counted = ask.team, self._counted
        if not is_within(ask, team, lambda kind: self._loans.held(name, kind) + counted.get((name, kind), 0)):
            return False
        for kind, units in ask.asked:
            counted[name, kind] = counted.get((name, kind), 0) + units
        return True


def is_within(ask: Ask, team: Team, held: Callable[[str], int]) -> bool:
    """Whether all that is asked for is within a team's guarantee, on top of what the team has of each kind."""
    return all(held(kind) + units <= team.guaranteed[kind] for kind, units in ask.asked)


# -- whose turn it is ------------------------------------------------------------------------------------------


def ordered(
    waiting: Iterable[Waiting], loans: Loans, accounts: Mapping[str, Account], teams: Teams, now: datetime
) -> tuple[Waiting, ...]:
    """The queue. The id breaks ties."""
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
    guarantees = Guarantees(loans, teams)
    first: list[Waiting] = []
    rest: list[Waiting] = []
    for one in by_turn:
        (first if guarantees.count(one.ask) else rest).append(one)
    return (*first, *rest)


def effective_rank(waiting: Waiting, now: datetime) -> int:
    """Its priority's rank, one more for every step that it has waited; never above critical."""
    steps = max(0, int(_waited_s(waiting, now) // AGING_STEP_S))
    return min(_HIGHEST, _RANKS[waiting.ask.priority] + steps)


def is_overdue(waiting: Waiting, now: datetime) -> bool:
    return _waited_s(waiting, now) >= OVERDUE_S


def _waited_s(waiting: Waiting, now: datetime) -> float:
    return (now - waiting.since).total_seconds()


# -- who yields to whom ----------------------------------------------------------------------------------------


def yields_to(lease: Lease, claim: Claim, *, preempts: bool) -> bool:
    """Whether a lease may be taken back for a claim, as far as `may_take` allows.

    A claim within its guarantee takes from other teams, whatever their priority and whatever the policy says. Any other
    claim, and one among leases of its own team, needs a higher priority, and a policy that preempts.
    """
    if claim.is_guaranteed and lease.team != claim.team:
        return True
    return preempts and _RANKS[lease.priority] < claim.rank


def may_take(lease: Lease, claim: Claim, above: Mapping[str, int]) -> int:
    """How many units of a lease may be taken for a claim to which it yields.

    `above`: how much the lease's team has above its guarantee, of each kind that matters. What a team has within its
    guarantee stays, for all others and for its own requests above it: these claim less. A reservation cannot be
    divided. One that is partly above its team's guarantee goes as a whole to a claim within a guarantee, and to no
    other. Which of a team's leases are above its guarantee is not fixed: it is the amount that counts.
    """
    if claim.is_guaranteed and lease.team == claim.team:
        return lease.units  # the team stays within its guarantee with either, and the request is worth more to it
    if lease.delivery is Delivery.TRANSFER:
        return max(0, min(lease.units, above.get(lease.kind, lease.units)))
    least = 1 if claim.is_guaranteed else None
    return lease.units if all(units >= (least or lease.resources[kind]) for kind, units in above.items()) else 0


def above_guarantee(team: str, kind: str, loans: Loans, teams: Teams) -> int:
    """How much more of a kind a team has than what is guaranteed to it; below zero where it has less."""
    return loans.held(team, kind) - teams.of(team).guaranteed[kind]


def may_be_asked(lease: Lease, min_hold_s: float, at: datetime) -> bool:
    """Whether a lease can be asked back at a moment: it is not on its way home, and has been held for long enough."""
    if is_overheld(lease, at):
        return True
    return lease.state is LeaseState.ACTIVE and lease.notice is None and hold_ends(lease, min_hold_s) <= at


def hold_ends(lease: Lease, min_hold_s: float) -> datetime:
    """Before this no lease is taken back for others."""
    return lease.allocated_at + timedelta(seconds=min_hold_s)


def is_overheld(lease: Lease, at: datetime) -> bool:
    """It was given back, its grace period is over, and its work may still keep it for as long as that likes.

    Unless it is asked back: then its work is ended.
    """
    return (
        lease.state is LeaseState.RELEASING
        and lease.delivery is Delivery.TRANSFER
        and not lease.wanted_back
        and lease.on_grace_end is not OnGraceEnd.KILL
        and lease.release_asked_at is not None
        and lease.release_asked_at + timedelta(seconds=lease.grace_s) <= at
    )


def yields_first(lease: Lease, now: datetime) -> tuple[int, bool, float, float, str]:
    """The order in which leases yield: by priority, then who loses least; the id makes it the same in every run."""
    saved = lease.checkpointed_at is not None and now - lease.checkpointed_at <= RECENT_CHECKPOINT
    held = lease.units / scale(lease.kind)
    return _RANKS[lease.priority], not saved, -lease.allocated_at.timestamp(), held, lease.id
