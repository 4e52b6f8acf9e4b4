"""Which leases yield: to a request that no node can meet now, and to a lender that needs its own capacity back."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.devices import Together, most_short_of
from distributed_grid.decide.capacity.feasibility import obstacle
from distributed_grid.decide.capacity.lending import plan_grant, rooms_now, several_lenders
from distributed_grid.decide.capacity.parts import divide, in_bundles
from distributed_grid.decide.capacity.quotas import why_over_limit
from distributed_grid.decide.capacity.returns import coming_back, part_of
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import PolicyNumbers
from distributed_grid.decide.queue.claims import (
    Claim,
    above_guarantee,
    hold_ends,
    may_be_asked,
    yields_first,
    yields_to,
)
from distributed_grid.decide.queue.victims import LenderPreemption, Standing, fewest, needed_of, trimmed
from distributed_grid.model.endings import ENDING_S
from distributed_grid.model.leases import Lease, LeaseState, Purpose
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plans import Grant, Part, Rules
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask, Layout, Waiting
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.model.teams import DEFAULT_TEAM, Teams


@dataclass(frozen=True, slots=True)
class Preemption:
    """Leases that yield so that a request can be met, and the grant that it then gets."""

    victims: tuple[Lease, ...]
    """None of them can be left out. The lease that yields first comes first."""
    grants: tuple[Grant, ...]
    """What the request gets: from one lender, or a part from each of several."""
    reason: str
    """For the holders that yield."""
    takes_own: bool
    """The request is within its team's guarantee."""
    at: datetime
    """When the reclaim of the victims begins: now, or when the last of their minimum holds is over."""
    takes: Mapping[str, int] = field(default_factory=dict)
    """By victim's id: how many of its units are enough. Taking more may leave its team less than its guarantee."""
    each_at: Mapping[str, datetime] = field(default_factory=dict)
    """By victim's id: when its own reclaim begins, if not `at`: each in time for the window that it yields to."""

    def due(self, now: datetime) -> tuple[Lease, ...]:
        """The victims whose reclaim begins now."""
        return tuple(victim for victim in self.victims if self.each_at.get(victim.id, self.at) <= now)

    @property
    def parts(self) -> tuple[Lease, ...]:
        """The leases, or the parts of them, that come back."""
        return tuple(part_of(victim, self.takes[victim.id]) for victim in self.victims)

    @property
    def grant(self) -> Grant:
        """Of several parts, the first."""
        return self.grants[0]

    @property
    def source(self) -> NodeName:
        return self.grant.source

    @property
    def sources(self) -> tuple[NodeName, ...]:
        return tuple(dict.fromkeys(grant.source for grant in self.grants))

    @property
    def back_by(self) -> datetime:
        """When the last of it is back: a reclaimed lease ends with its grace period, whatever its work does."""
        return max(_back_by(victim, self.each_at.get(victim.id, self.at)) for victim in self.victims)


AFTER_GRACE: Final = timedelta(seconds=ENDING_S + 5)
"""How long after the last grace period capacity may take to be there: programs get a moment to end."""


def patient_for(waiting: Waiting, preemption: Preemption) -> Waiting:
    """The request, which waits at least until the capacity that yields to it is there: it must not be lost."""
    if waiting.until is None:
        return waiting
    return replace(waiting, until=max(waiting.until, preemption.back_by + AFTER_GRACE))


_Choice = tuple[NodeName, tuple[Lease, ...], tuple[Lease, ...], LenderPreemption]


def plan_preemption(
    ask: Ask,
    capacity: Snapshot,
    rules: Rules,
    numbers: PolicyNumbers,
    now: datetime,
    *,
    claim: Claim | None = None,
    given_up: Collection[Lease] = (),
    held: Usage | None = None,
    staying: Container[str] = (),
) -> Preemption | None:
    """The lender where the fewest leases yield, and its victims; None if no preemption is needed or none would help.

    None is needed if the request can be met now or after pending returns. `decide/queue/claims.py` says which leases
    may have to yield. No lease yields before its minimum hold is over. Preemption does not lift a team's own limits.
    Nor does a boost yield where its own team would only get the same again.

    `claim`: the request's, where other requests of its team are ahead of it. `given_up`: leases, or parts of them, that
    yield to requests ahead. `held`: what teams hold now, where `capacity` also counts what requests ahead will get.
    `staying`: the ids of leases that do not yield. The plan is tried in `capacity` and undone.
    """
    leases = capacity.leases
    if claim is None:
        claim = Claim.of(ask, capacity.usage, rules.teams)
    spared = {part.id for part in given_up}
    able = {
        lease.id
        for lease in leases
        if yields_to(lease, claim, preempts=numbers.preempts)
        and lease.id not in spared
        and lease.id not in staying
        and may_be_asked(lease, numbers.min_hold_s, now)
    }
    if not able or _can_be_met(ask, capacity, rules):
        return None
    back = (*coming_back(leases, now), *given_up)
    plan = None
    with capacity.trying():
        capacity.give_back(back)
        if _can_be_met(ask, capacity, rules):
            return None
        if ask.members == 1:
            standing = Standing(ask, claim, rules, capacity, capacity.usage if held is None else held.without(back))
            plan = _least_harm(standing, able, now)
            if plan is not None and _only_changes_hands(plan):
                like = {lease.id for lease in leases if _is_like(lease, plan.grants[0])}
                plan = _least_harm(standing, able - like, now)
    if plan is None and ask.may_be_divided:
        plan = _from_several(ask, capacity, rules, numbers, now, claim, able, given_up, held)
    return plan


def _from_several(
    ask: Ask,
    capacity: Snapshot,
    rules: Rules,
    numbers: PolicyNumbers,
    now: datetime,
    claim: Claim,
    able: Collection[str],
    given_up: Collection[Lease],
    held: Usage | None,
) -> Preemption | None:
    """Several lenders that can lend it together, and the victims of each, chosen as for a request of its own."""
    parts = _divided_after(ask, capacity, rules, now, able, given_up)
    if len(parts) < 2 and ask.members == 1:
        return None
    plans: list[Preemption] = []
    grants: list[Grant] = []
    with capacity.trying():
        for part in parts:
            offer = Offer.of(ask, capacity, rules).part(part.units)
            alone = replace(offer.ask, sources=(part.source,), max_sources=1)
            gone = (*given_up, *(back for plan in plans for back in plan.parts))
            plan = plan_preemption(alone, capacity, rules, numbers, now, claim=claim, given_up=gone, held=held)
            if plan is not None:
                plans.append(plan)
            for grant in offer.from_parts(_members_of(ask, part)):
                grants.append(grant)
                capacity.add(grant)
    victims = tuple(victim for plan in plans for victim in plan.victims)
    if not victims or not _are_met(grants, plans, capacity, rules, now, given_up):
        return None
    takes = {lease_id: units for plan in plans for lease_id, units in plan.takes.items()}
    return Preemption(victims, tuple(grants), _reason(ask, claim, victims), claim.is_guaranteed, now, takes)


def _divided_after(
    ask: Ask, capacity: Snapshot, rules: Rules, now: datetime, able: Collection[str], given_up: Collection[Lease]
) -> tuple[Part, ...]:
    """How much each lender would lend: first what it has free, then what the leases hold that may have to yield."""
    with capacity.trying():
        capacity.give_back((*coming_back(capacity.leases, now), *given_up))
        offer = Offer.of(ask, capacity, rules)
        free = {room.node.name: room.most(offer) for room in rooms_now(offer, capacity, capacity.usage)}
        if why_over_limit(ask, offer.need, capacity, capacity.usage, rules.teams):
            return ()
        capacity.give_back([lease for lease in capacity.leases if lease.id in able])
        rooms = sorted(rooms_now(offer, capacity, capacity.usage), key=lambda room: -free.get(room.node.name, 0))
        if ask.members > 1 and ask.layout is not Layout.STRICT_PACK:
            most = {room.node.name: room.most(offer) for room in rooms}
        else:
            most = Counter[NodeName]()
            for part in divide(offer, rooms) or ():
                most[part.source] += part.units
    if sum(most.values()) < ask.units:
        return ()
    units = {source: min(amount, free.get(source, 0)) for source, amount in most.items()}
    missing = ask.units - sum(units.values())
    for source, amount in most.items():
        more = min(missing, amount - units[source])
        units[source] += more
        missing -= more
    return tuple(Part(source, amount) for source, amount in units.items() if amount)


def _members_of(ask: Ask, part: Part) -> tuple[Part, ...]:
    """A part for each bundle with members of the request that a lender carries; without members, the part itself."""
    if ask.members == 1:
        return (part,)
    return in_bundles(ask, (part.source,) * (part.units * ask.members // ask.units))


def _are_met(
    grants: Collection[Grant],
    plans: Collection[Preemption],
    capacity: Snapshot,
    rules: Rules,
    now: datetime,
    given_up: Collection[Lease],
) -> bool:
    """Whether every part can be lent once the victims are back."""
    with capacity.trying():
        capacity.give_back((*coming_back(capacity.leases, now), *given_up))
        capacity.give_back([back for plan in plans for back in plan.parts])
        for grant in grants:
            offer = Offer.of(grant.ask, capacity, rules)
            if obstacle(capacity[grant.source], offer, capacity.usage) is not None:
                return False
            capacity.add(grant)
    return True


def _only_changes_hands(plan: Preemption) -> bool:
    """Whether the request's own team would give up all that it gets: work would be lost for nothing."""
    ask, parts = plan.grants[0].ask, plan.parts
    gives_all = total([part.resources for part in parts]).covers(ResourceVector(dict(ask.asked)))
    return gives_all and all(_is_like(part, plan.grants[0]) for part in parts)


def _is_like(lease: Lease, grant: Grant) -> bool:
    """Whether a boost is of the grant's own team, and does the same for the same node.

    The users in the team `default` are no team-mates. Leases of runs, tasks and roles each have work of their own, and
    an idle boost does nothing.
    """
    ask = grant.ask
    are_team_mates = lease.team != DEFAULT_TEAM or lease.requester == ask.requester != ""
    return (
        are_team_mates
        and (lease.team, lease.target, lease.kind) == (ask.team, ask.target, ask.kind)
        and lease.delivery is grant.delivery
        and lease.purpose is ask.purpose is Purpose.BOOST
        and not lease.yields_to_all
    )


def _least_harm(standing: Standing, able: Collection[str], now: datetime) -> Preemption | None:
    """The lender where the fewest leases yield, once pending returns are back. `able`: the ids of leases that may."""
    ask, claim, rules, capacity = standing.ask, standing.claim, standing.rules, standing.capacity
    offer, leases = Offer.of(ask, capacity, rules), capacity.leases
    if why_over_limit(ask, offer.need, capacity, capacity.usage, rules.teams):
        return None
    choices: list[_Choice] = []
    for lender, lent, moved_in in _by_lender(offer, leases, able):
        stop = obstacle(capacity[lender], offer, capacity.usage) if lender in capacity else None
        # A node that borrows a kind transfers none of it: all that it borrows has to leave first.
        borrows = stop is not None and stop[0] is RefusalCode.IS_BORROWING
        if stop is None or not (stop[0].reason.by_amount or borrows):
            continue
        must_go = moved_in if borrows else ()
        preemption = LenderPreemption(standing, lender, must_go)
        leaves = sum(part.units for part in preemption.may_take(must_go))
        if borrows and capacity.usage.moved_in(lender, ask.kind) > leaves:
            continue
        if (victims := _victims(lent, preemption, bool(must_go), now)) is not None:
            choices.append((lender, must_go, victims, preemption))

    def harm(choice: _Choice) -> tuple[object, ...]:
        lender, must_go, victims, preemption = choice
        gone = (*must_go, *victims)
        reluctant = sorted((preemption.reluctance(victim) for victim in gone), reverse=True)
        order = [yields_first(victim, now)[:-1] for victim in reversed(gone)]  # the ids do not count
        active = sum(not victim.yields_to_all for victim in gone)
        above = [each for each in reluctant if each > 0]
        return above, active, len(gone), order, -capacity[lender].limits.priority, lender

    by_id = {lease.id: lease for lease in leases}
    for lender, must_go, found, preemption in sorted(choices, key=harm):
        victims = trimmed(found, preemption.enough)
        takes = {lease.id: lease.units for lease in must_go} | needed_of(victims, preemption.enough)
        chosen = [by_id[victim.id] for victim in (*must_go, *victims)]
        others = _parts_that_go_along(chosen, leases)
        takes |= {lease.id: lease.units for lease in others}
        whole = (*chosen, *others)
        reason = _reason(ask, claim, whole)
        plan = Preemption(whole, (offer.from_node(lender),), reason, claim.is_guaranteed, now, takes)
        with capacity.trying():
            capacity.give_back(plan.parts)
            grant = plan_grant(ask, capacity, capacity.usage, rules)
        if isinstance(grant, Grant) and grant.source == lender:
            return replace(plan, grants=(grant,))
    return None


def _parts_that_go_along(victims: Collection[Lease], leases: Iterable[Lease]) -> tuple[Lease, ...]:
    """What other lenders get back, too: a reservation with several lenders comes back whole."""
    chosen = {victim.id for victim in victims}
    wholes = {victim.whole_id for victim in victims if victim.id != victim.whole_id and not victim.delivery.can_split}
    return tuple(lease for lease in leases if lease.whole_id in wholes and lease.id not in chosen)


def foresee_preemption(
    ask: Ask,
    capacity: Snapshot,
    rules: Rules,
    numbers: PolicyNumbers,
    now: datetime,
    *,
    claim: Claim,
    given_up: Collection[Lease] = (),
    held: Usage | None = None,
    before: datetime | None = None,
) -> Preemption | None:
    """The same for the first moment at which preemption is possible, before a moment, if given.

    With time, leases become old enough to yield, and leases that do not yield end.
    """
    leases = capacity.leases
    stay = tuple(lease for lease in leases if lease.state is LeaseState.ACTIVE and lease.notice is None)

    def gone_by(moment: datetime) -> tuple[Lease, ...]:
        return (*given_up, *(lease for lease in stay if lease.expires_at <= moment and lease.id not in spared))

    def plan_at(moment: datetime) -> Preemption | None:
        gone = gone_by(moment)
        return plan_preemption(ask, capacity, rules, numbers, moment, claim=claim, given_up=gone, held=held)

    def can_be_met_at(moment: datetime) -> bool:
        back = (*coming_back(leases, moment), *gone_by(moment))
        if plan_at(moment) is not None:
            return True
        with capacity.trying():
            capacity.give_back(back)
            return _can_be_met(ask, capacity, rules)

    spared = {part.id for part in given_up}
    holds = {
        hold_ends(lease, numbers.min_hold_s) for lease in stay if yields_to(lease, claim, preempts=numbers.preempts)
    }
    ends = {lease.expires_at for lease in stay}
    moments = sorted(moment for moment in holds | ends if now < moment and (before is None or moment < before))
    if not moments or not can_be_met_at(moments[-1]):
        return None
    return plan_at(moments[bisect_left(moments, True, key=can_be_met_at)])


def plan_relief(
    node: NodeName,
    wanted: Collection[Together],
    capacity: Snapshot,
    numbers: PolicyNumbers,
    now: datetime,
    *,
    teams: Teams | None = None,
    given_up: Collection[Lease] = (),
) -> Mapping[str, int]:
    """The amounts to reclaim so that a lender has room for each of its own wants, or for as much as possible of it.

    By lease id, in the order in which they yield: how many units are enough; a transfer may give up a part.

    This holds under every policy: a lender must not suffer for lending. Pending returns count, and so do leases that
    are `given_up` anyway. Lower claims go first, even if more leases have to go: leases above their teams' guarantees,
    and of these lower priorities. Critical leases stay, unless a lease within a guarantee would have to go instead of
    one above. The plan is tried in `capacity` and undone.
    """
    usage, gone = capacity.usage, {lease.id for lease in given_up}
    lent = [
        lease
        for lease in capacity.leases
        if lease.source == node != lease.target and lease.holds_capacity and lease.id not in gone
    ]

    def short_after(returned: Collection[Lease]) -> ResourceVector:
        with capacity.trying():
            capacity.give_back(returned)
            return most_short_of(capacity[node], wanted)

    with capacity.trying():
        capacity.give_back((*coming_back(lent), *given_up))
        short = short_after(())
        able = [
            lease
            for lease in sorted(lent, key=lambda lease: yields_first(lease, now))
            if lease.state is LeaseState.ACTIVE
            and may_be_asked(lease, numbers.min_hold_s, now)
            and any(kind in short for kind in lease.resources)
        ]
        within = _within_guarantees(able, short, usage, teams or Teams())
        worth = {lease.id: (lease.id in within, lease.priority.rank) for lease in able}
        # A critical lease above its team's guarantee has a lower claim than any lease within one.
        stays = {lease.id for lease in able if lease.priority is AllocationPriority.CRITICAL}
        if within - stays:
            stays &= within
        pool = [lease for lease in able if lease.id not in stays]
        pool.sort(key=lambda lease: (worth[lease.id], yields_first(lease, now)))
        remains = short_after(pool)

        def enough(some: Collection[Lease]) -> bool:
            return remains.covers(short_after(some))

        if enough(()):
            return {}
        for level in sorted({worth[lease.id] for lease in pool}):
            among = [lease for lease in pool if worth[lease.id] <= level]
            if enough(among):
                return needed_of(trimmed(fewest(among, short - remains, enough) or (), enough), enough)
    return {}


def _within_guarantees(leases: Iterable[Lease], short: ResourceVector, usage: Usage, teams: Teams) -> set[str]:
    """Which of these leases are within their teams' guarantees, if those that yield first count as above them."""
    above: dict[tuple[str, str], int] = {}
    within = set()
    for lease in leases:
        taken = {(lease.team, kind): lease.resources[kind] for kind in lease.resources if kind in short}
        for team, kind in taken:
            above.setdefault((team, kind), above_guarantee(team, kind, usage, teams))
        if any(units > above[key] for key, units in taken.items()):
            within.add(lease.id)
        else:
            for key, units in taken.items():
                above[key] -= units
    return within


def _by_lender(
    offer: Offer, leases: Iterable[Lease], able: Collection[str]
) -> Iterator[tuple[NodeName, list[Lease], tuple[Lease, ...]]]:
    """For every lender: which leases on it may be reclaimed, and which leases moved to it and are in the way."""
    lent: defaultdict[NodeName, list[Lease]] = defaultdict(list)
    moved_in: defaultdict[NodeName, list[Lease]] = defaultdict(list)
    for lease in leases:
        if lease.id in able:
            lent[lease.source].append(lease)
            if offer.is_transfer and lease.delivery.moves_totals and lease.kind == offer.ask.kind:
                moved_in[lease.target].append(lease)
    for lender in sorted({*lent, *moved_in}):
        yield lender, lent[lender], tuple(moved_in[lender])


def _victims(
    pool: list[Lease], preemption: LenderPreemption, others_go: bool, now: datetime
) -> tuple[Lease, ...] | None:
    if others_go and preemption.enough(()):
        return ()
    useful = [
        part
        for lease in sorted(pool, key=lambda lease: yields_first(lease, now))
        for part in preemption.may_take((lease,))
        if any(kind in preemption.short for kind in part.resources)
    ]
    by_reluctance = [(part, preemption.reluctance(part)) for part in useful]
    for level in sorted({reluctance for _, reluctance in by_reluctance}):
        among = [part for part, reluctance in by_reluctance if reluctance <= level]
        if (found := fewest(among, preemption.short, preemption.enough)) is not None:
            return found
    return None


def growth_that_yields(ask: Ask, leases: Iterable[Lease]) -> Lease | None:
    """A step of an elastic lease that yields to this step of another: of one with a lower priority, or of one with the
    same priority that has grown by more, even after it yields."""
    steps: dict[str, list[Lease]] = defaultdict(list)
    for lease in leases:
        if lease.grows and lease.kind == ask.kind and lease.state is LeaseState.ACTIVE:
            steps[lease.grows].append(lease)
    own = sum(step.units for step in steps.pop(ask.grows, ()))

    def yields(theirs: Collection[Lease]) -> bool:
        rank, has = next(iter(theirs)).priority.rank, sum(step.units for step in theirs)
        most = max(step.units for step in theirs)
        return rank < ask.priority.rank or (rank == ask.priority.rank and has - most >= own + ask.units)

    able = [step for theirs in steps.values() if yields(theirs) for step in theirs]
    allowed = [step for step in able if not ask.sources or step.source in ask.sources]
    return min(
        allowed,
        key=lambda step: (
            step.priority.rank,
            step.idle is None,
            -sum(other.units for other in steps[step.grows]),
            -step.allocated_at.timestamp(),
            step.id,
        ),
        default=None,
    )


def _back_by(lease: Lease, asked_at: datetime) -> datetime:
    since = lease.release_asked_at if lease.is_winding_down and lease.release_asked_at is not None else asked_at
    return max(asked_at, lease.grace_ends(since))


def _can_be_met(ask: Ask, capacity: Snapshot, rules: Rules) -> bool:
    offer, usage = Offer.of(ask, capacity, rules), capacity.usage
    if why_over_limit(ask, offer.need, capacity, usage, rules.teams) is not None:
        return False
    if ask.members == 1 and any(obstacle(node, offer, usage) is None for node in capacity.values()):
        return True
    return several_lenders(offer, capacity, usage) is not None


def _reason(ask: Ask, claim: Claim, victims: Collection[Lease]) -> str:
    if all(victim.grows for victim in victims):
        return f"elastic leases yield what they grew by to a request: {ask.describe()}"
    if all(victim.yields_as_idle for victim in victims):
        return f"idle leases yield to a request that waits: {ask.describe()}"
    if claim.is_guaranteed:
        return f"team {ask.team} requests its guaranteed capacity: {ask.describe()}"
    return f"a request of {ask.priority} priority takes precedence: {ask.describe()}"
