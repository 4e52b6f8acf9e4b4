"""Who yields to whom: to a request that nobody can meet now, and to a lender that needs its own back."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from distributed_grid.decide.homecoming import Homecoming, coming_back, once_home, part_of
from distributed_grid.decide.lending import BY_AMOUNT, Offer, obstacle, plan_grant
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.policies import PolicyNumbers
from distributed_grid.decide.quotas import is_own, why_over_limit
from distributed_grid.decide.victims import fewest, has_been_held, needed_of, trimmed, yields_first
from distributed_grid.decide.yielding import Standing, Yielding
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.plans import Grant
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.model.rules import Rules


@dataclass(frozen=True, slots=True)
class Preemption:
    """Leases that yield so that a request can be met, and the grant that it then gets."""

    source: NodeName
    victims: tuple[Lease, ...]
    """None of them can be left out; who yields first comes first."""
    grant: Grant
    reason: str
    """For those who yield."""
    takes_own: bool
    """The request is within what is guaranteed to its team."""
    takes: Mapping[str, int] = field(default_factory=dict)
    """By victim's id: how many units of it are enough. To take more may leave its team less than its guarantee."""


_Choice = tuple[NodeName, tuple[Lease, ...], Yielding]


def plan_preemption(
    ask: Ask,
    nodes: NodeTable,
    leases: Iterable[Lease],
    loans: Loans,
    rules: Rules,
    numbers: PolicyNumbers,
    now: datetime,
) -> Preemption | None:
    """The lender where the fewest yield, and who; None if it can be met without, now or once that is home which is on
    its way, or if nobody's yielding would help.

    Leases of a lower priority yield where the policy preempts. To a request within its team's guarantee also leases of
    the same priority yield, and that under every policy, but then only what their teams have above their guarantees: a
    guarantee that waits for others' good will is none. Nobody yields to a lower priority, or before its minimum hold.
    A team's own limits are not a matter of who yields.
    """
    leases = tuple(leases)
    back = coming_back(leases)
    home, after = once_home(nodes, leases, back), loans.without(back)
    offer = Offer.of(ask, home, rules)
    if why_over_limit(ask.team, offer.need, home, after, rules.teams):
        return None
    takes_own = is_own(ask.team, offer.need, after, rules.teams)
    candidates = _candidates(ask, leases, numbers, now, takes_own)
    if not candidates or _can_be_met(ask, nodes, loans, rules) or _can_be_met(ask, home, after, rules):
        return None
    standing = Standing(ask, nodes, rules, Homecoming(leases, back), after)
    choices: list[_Choice] = []
    for lender, pool in candidates.items():
        stop = obstacle(home[lender], offer, after) if lender in home else None
        if stop is not None and stop[0] in BY_AMOUNT:
            guarded = {lease.id for lease in pool if not numbers.preempts or lease.priority is ask.priority}
            yielding = Yielding(standing, lender, guarded)
            if (victims := _victims(pool, yielding, now)) is not None:
                choices.append((lender, victims, yielding))

    def harm(choice: _Choice) -> tuple[object, ...]:
        lender, victims, _ = choice
        order = [yields_first(victim, now)[:-1] for victim in reversed(victims)]  # their ids are no reason
        return len(victims), order, -nodes[lender].limits.priority, lender

    for lender, found, yielding in sorted(choices, key=harm):
        victims = trimmed(found, yielding.enough)
        takes = needed_of(victims, yielding.enough)
        pool_by_id = {lease.id: lease for lease in candidates[lender]}
        whole = tuple(pool_by_id[victim.id] for victim in victims)
        parts = (*back, *(part_of(lease, takes[lease.id]) for lease in whole))
        plan = plan_grant(ask, once_home(nodes, leases, parts), loans.without(parts), rules)
        if isinstance(plan, Grant) and plan.source == lender:
            return Preemption(lender, whole, plan, _reason(ask, takes_own), takes_own, takes)
    return None


def plan_relief(
    node: NodeName, needed: ResourceVector, leases: Iterable[Lease], numbers: PolicyNumbers, now: datetime
) -> tuple[Lease, ...]:
    """Which of a lender's leases go home, so that it gets back what it needs itself, or as much of that as there is.

    Under every policy: who lends must not suffer for it. What is on its way home counts. Lower priorities go before it
    matters how few go; critical leases stay.
    """
    lent = [lease for lease in leases if lease.source == node != lease.target and lease.holds_capacity]
    short = _still_short(needed, lent)
    pool = sorted(
        (
            lease
            for lease in lent
            if _can_yield(lease, numbers, now)
            and lease.priority is not AllocationPriority.CRITICAL
            and any(kind in short for kind in lease.resources)
        ),
        key=lambda lease: yields_first(lease, now),
    )
    enough = _covering(pool, short)
    for priority in AllocationPriority:
        among = [lease for lease in pool if lease.priority.rank <= priority.rank]
        if among and enough(tuple(among)):
            return fewest(among, _at_most(short, pool), enough) or ()
    return ()


def relief_units(victims: Sequence[Lease], needed: ResourceVector, leases: Iterable[Lease]) -> dict[str, int]:
    """By lease id: how much of what `plan_relief` found is enough; a transfer may give up a part."""
    lent = [lease for lease in leases if any(lease.source == victim.source for victim in victims)]
    return needed_of(victims, _covering(victims, _still_short(needed, lent)))


def _candidates(
    ask: Ask, leases: Iterable[Lease], numbers: PolicyNumbers, now: datetime, takes_own: bool
) -> dict[NodeName, list[Lease]]:
    """By lender: who may have to yield."""
    found: dict[NodeName, list[Lease]] = defaultdict(list)
    for lease in leases:
        lower = lease.priority.rank < ask.priority.rank
        if (lower and numbers.preempts) or (takes_own and (lower or lease.priority is ask.priority)):
            found[lease.source].append(lease)
    return {
        lender: able
        for lender, pool in sorted(found.items())
        if (able := [lease for lease in pool if _can_yield(lease, numbers, now)])
    }


def _can_yield(lease: Lease, numbers: PolicyNumbers, now: datetime) -> bool:
    """It is not on its way already, and was held for long enough."""
    return lease.state is LeaseState.ACTIVE and lease.notice is None and has_been_held(lease, numbers.min_hold_s, now)


def _victims(pool: list[Lease], yielding: Yielding, now: datetime) -> tuple[Lease, ...] | None:
    ordered = sorted(pool, key=lambda lease: yields_first(lease, now))
    parts = [part for lease in ordered for part in yielding.may_take((lease,))]
    useful = [part for part in parts if any(kind in yielding.short for kind in part.resources)]
    return fewest(useful, yielding.short, yielding.enough)


def _can_be_met(ask: Ask, nodes: NodeTable, loans: Loans, rules: Rules) -> bool:
    offer = Offer.of(ask, nodes, rules)
    return why_over_limit(ask.team, offer.need, nodes, loans, rules.teams) is None and any(
        obstacle(node, offer, loans) is None for node in nodes.values()
    )


def _reason(ask: Ask, takes_own: bool) -> str:
    if takes_own:
        return f"team {ask.team} asks for what is guaranteed to it: {ask.describe()}"
    return f"a request of {ask.priority} priority goes before it: {ask.describe()}"


def _still_short(needed: ResourceVector, lent: Collection[Lease]) -> ResourceVector:
    return (needed - _sum(coming_back(lent))).at_least_zero()


def _at_most(short: ResourceVector, leases: Collection[Lease]) -> ResourceVector:
    """As much of what is short as these leases hold."""
    there = _sum(leases)
    return ResourceVector({kind: min(units, there[kind]) for kind, units in short.items()})


def _covering(leases: Collection[Lease], short: ResourceVector) -> Callable[[tuple[Lease, ...]], bool]:
    """Whether some of these leases give as much of what is short as all of them would."""
    reachable = _at_most(short, leases)
    return lambda some: _sum(some).covers(reachable)


def _sum(leases: Collection[Lease]) -> ResourceVector:
    return total([lease.resources for lease in leases])
