"""Admission: whether each waiting request is granted now, met after preemption, met later, or not in sight; and why.

This is the one answer. The queue carries it out; `grid plan`, `grid why` and the queue's list show it.

Conservative backfill: every request gets the first slot on one node that delays no request ahead of it. Slots that
begin now are granted now, so a small and short request passes a large one only if it ends before the large one's turn.
Where preemption gives an earlier slot, the request gets that one.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.feasibility import could_when_idle, idle_room, may_lend, never, room_when_idle
from distributed_grid.decide.capacity.parts import divide
from distributed_grid.decide.capacity.quotas import why_above_its_most, why_over_limit
from distributed_grid.decide.capacity.returns import SOON, coming_back, expected_end
from distributed_grid.decide.capacity.slots import CapacityTimeline, Slot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import PolicyNumbers
from distributed_grid.decide.queue.claims import Claim, Guarantees, claim_of_promise, is_overdue, yields_to
from distributed_grid.decide.queue.preemption import (
    Preemption,
    foresee_preemption,
    growth_that_yields,
    plan_preemption,
)
from distributed_grid.decide.queue.windows import asked_by, ending_late, over_by, reclaim_times, with_those_that_end
from distributed_grid.errors import GridError
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable, in_words
from distributed_grid.model.plans import Grant, Part, Refusal, Refused, Rules
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask, Occurrence, Waiting
from distributed_grid.model.resources import MEMORY, amount_of, describe
from distributed_grid.model.times import minute, stamp


def why_it_waits(offer: Offer, place: Slot, comes_back: int, ahead: int) -> str:
    """ "waits for 4 CPUs: 2 come back to gpu1 at 2025-06-01T12:30Z; 1 request is ahead of it"."""
    ask, when = offer.ask, minute(place.begin)
    if comes_back:
        amount = amount_of(ask.kind, comes_back)
        what = f"{amount} {'comes' if amount == 1 else 'come'} back to {in_words(place.sources)} at {when}"
    else:
        what = _has_room(place)
    return f"waits for {describe(ask.kind, ask.units)}: {what}" + (f"; {are_ahead(ahead)}" if ahead else "")


def _has_room(place: Slot) -> str:
    have = "has" if len(place.sources) == 1 else "together have"
    return f"{in_words(place.sources)} {have} room at {minute(place.begin)}"


def why_others_yield(offer: Offer, place: Slot, preemption: Preemption, ahead: int, now: datetime) -> str:
    """ "waits for 6 CPUs: 1 boost on gpu1 yields to the guarantee of team red, and is back by 2025-06-01T12:30Z"."""
    ask, count = offer.ask, len(preemption.victims)
    boosts, yields, are = ("1 boost", "yields", "is") if count == 1 else (f"{count} boosts", "yield", "are")
    to = f"to the guarantee of team {ask.team}" if preemption.takes_own else f"to {ask.priority} priority"
    after = f" at {minute(preemption.at)}, after the minimum hold," if preemption.at > now else ","
    said = f"{boosts} on {in_words(preemption.sources)} {yields} {to}{after} and {are} back by {minute(place.begin)}"
    return f"waits for {describe(ask.kind, ask.units)}: {said}" + (f"; {are_ahead(ahead)}" if ahead else "")


def why_its_team_never_may(offer: Offer) -> str:
    """Why a request for more than its team's limit can never be met."""
    team = offer.rules.teams.of(offer.ask.team)
    most = ", ".join(describe(kind, team.most(kind) or 0) for kind in offer.need if team.most(kind) is not None)
    return f"its team {team.name} may have at most {most}"


def why_team_waits(offer: Offer, usage: Usage, turn: datetime, expected: Slot | None) -> str:
    """The team's own limit, until its turn; and where the request is met then, or later."""
    limit = why_above_its_most(offer.ask, offer.need, usage, offer.rules.teams)
    said = f"team {offer.ask.team} reaches its limit with its leases and its requests ahead of this one"
    if limit is not None:
        said = limit.detail
    if expected is None:
        return f"its team's limit: {said}"
    reason = f"its team's limit: {said}; as its leases end, the limit allows it at {minute(turn)}"
    return reason + (f", and {_has_room(expected)}" if expected.begin > turn else "")


def why_no_estimate(offer: Offer, nodes: NodeTable, earmarked: tuple[NodeName, ...]) -> str:
    """Why the request has no expected start: no lease's end makes it possible."""
    ask = offer.ask
    what = describe(ask.kind, ask.units)
    able = list(may_lend(nodes, offer))
    if not able:
        return f"no node lends to {ask.target} now"
    idle = [node.name for node in able if could_when_idle(node, offer)] if ask.members == 1 else []
    if ask.members > 1 and not _together_when_idle(offer, able):
        return f"all nodes together can never lend {ask.amounts}"
    if not idle and (together := _together_when_idle(offer, able)):
        it = "it" if ask.kind == MEMORY else "them"
        said = f"waits for {what}: {in_words(together)} together can lend {it} once their own load drops; no estimate"
        return said + _earmarked_for_it(earmarked)
    if not idle:
        away = [node for node in nodes.values() if never(node, offer) and _could_ever(node, offer)]
        if away and all(node.alive for node in away):
            return f"only {_any_of([n.name for n in away])} could lend {offer.need.describe()}, but not now"
        headroom = offer.rules.headroom
        rooms = {node.name: room_when_idle(node, ask.kind, headroom, is_own=node.name == ask.target) for node in able}
        name = min(rooms, key=lambda name: (-rooms[name], name))
        most = describe(ask.kind, max(0, rooms[name]))
        which = "no connected node" if away else "no node"
        lacking = f"{which} can ever lend {offer.need.describe()}"
        if ask.max_sources > 1 and len(able) > 1:
            several = "all" if ask.max_sources >= len(able) else f"any {ask.max_sources}"
            lacking += f", nor can {several} of them together"
        return f"{lacking} ({name} can lend the most: {most})"
    it = "it" if ask.kind == MEMORY or amount_of(ask.kind, ask.units) == 1 else "them"
    said = f"waits for {what}: {_any_of(idle)} can lend {it} once its own load drops; no estimate"
    return said + _earmarked_for_it(earmarked)


def _earmarked_for_it(nodes: tuple[NodeName, ...]) -> str:
    return f"; {in_words(nodes)} {'is' if len(nodes) == 1 else 'are'} earmarked for it" if nodes else ""


def can_ever_be_lent(offer: Offer, nodes: NodeTable) -> bool:
    """Whether nodes could ever lend it: once they are idle, back in the cluster, or no longer cordoned."""
    able = [node for node in nodes.values() if _may_ever(node, offer)]
    one_is_enough = offer.ask.members == 1 and any(_could_ever(node, offer) for node in able)
    return one_is_enough or bool(_together_when_idle(offer, able))


def _may_ever(node: Node, offer: Offer) -> bool:
    code = never(node, offer)
    return (code is None or code.reason.passes) and (node.limits.can_share or node.name == offer.ask.target)


def _could_ever(node: Node, offer: Offer) -> bool:
    """The capacity of a node that is away is known once it is back."""
    return _may_ever(node, offer) and (not node.alive or could_when_idle(node, offer))


def _together_when_idle(offer: Offer, nodes: Iterable[Node]) -> tuple[NodeName, ...]:
    """The nodes that could lend it together with nothing lent and no work of their own; empty if none could."""
    if not offer.ask.may_be_divided:
        return ()
    parts = divide(offer, (idle_room(node, offer) for node in nodes))
    return tuple(dict.fromkeys(part.source for part in parts or ()))


def _parts_when_idle(offer: Offer, nodes: NodeTable) -> tuple[Part, ...]:
    """What nodes would lend of it with nothing lent and no work of their own; empty if they could not."""
    able = list(may_lend(nodes, offer))
    for node in able if offer.ask.members == 1 else ():
        if could_when_idle(node, offer):
            return (Part(node.name, offer.ask.units),)
    return divide(offer, (idle_room(node, offer) for node in able)) or () if offer.ask.may_be_divided else ()


def too_far_back(ahead: int) -> str:
    return f"{are_ahead(ahead)}: too many to estimate its start"


def are_ahead(ahead: int) -> str:
    return "1 request is ahead of it" if ahead == 1 else f"{ahead} requests are ahead of it"


def _any_of(names: list[NodeName]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}"


_MOST_BEGINS: Final = 8
"""How many windows are tried as the end of a request that would fit now if it were shorter."""
DEPTH: Final = 100
"""How many requests get a slot in time. Requests behind them may still be admitted now, where they delay none of
these."""

MAY_PREEMPT: Final = 8
"""For how many requests that cannot be met now preemption is planned; also for all within a guarantee."""
FORESEEN: Final = 2
"""For how many of these later preemption is planned, too; again also for all within a guarantee."""

NONE_EXPECTED: Final[Mapping[str, NodeName]] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """The plan's result for one request."""

    waiting: Waiting
    position: int
    """1 is first."""
    grants: tuple[Grant, ...] = ()
    """The grant, or one for each part, if the request is met now."""
    reason: str = ""
    """Why it waits, in words."""
    preemption: Preemption | None = None
    """The leases that yield to it, and when they are reclaimed."""
    expected_start: datetime | None = None
    """None: no estimate."""
    expected_sources: tuple[NodeName, ...] = ()
    refused: Refused | None = None
    """For every node, why it does not lend now; None if the request is granted, or no explanation was asked for."""
    is_hopeless: bool = False
    """The request is never met, however long it waits: only another request, or another configuration, helps."""
    may_last_until: datetime | None = None
    """It would be met now if it ended by then: a window that begins then is in its way."""

    @property
    def grant(self) -> Grant | None:
        """Of several parts, the first."""
        return self.grants[0] if self.grants else None

    @property
    def expected_source(self) -> NodeName | None:
        return self.expected_sources[0] if self.expected_sources else None


@dataclass(frozen=True, slots=True)
class NoPlace:
    """Why a request has no slot of its own."""

    reason: str
    expected: Slot | None = None
    """Where and when it is met if nothing changes; other requests may pass it until then."""
    is_hopeless: bool = False


def plan_queue(
    ordered_waiting: Iterable[Waiting],
    nodes: NodeTable,
    leases: Iterable[Lease],
    usage: Usage,
    rules_for: Callable[[Ask], Rules],
    now: datetime,
    *,
    depth: int = DEPTH,
    explain: Container[str] | None = None,
    expected_sources: Mapping[str, NodeName] = NONE_EXPECTED,
    numbers: PolicyNumbers | None = None,
) -> tuple[Verdict, ...]:
    """A verdict for every request, in the order of `claims.ordered`: no verdict depends on requests behind it.

    `numbers`: those of the policy in force; without them no lease yields to a request. `explain`: the ids of the
    requests whose verdict says for every node why it does not lend; None: all. In a long queue this is most of the
    work, so a caller that only wants to admit asks for none. `expected_sources`: those of the last plan,
    by id; a request that keeps its slot there cannot get in the way of others' slots.
    """
    walk = QueuePlan(nodes, leases, usage, rules_for, now, depth, numbers)
    return tuple(
        walk.decide(
            waiting, position, expected_sources.get(waiting.id), explained=explain is None or waiting.id in explain
        )
        for position, waiting in positions(ordered_waiting, now)
    )


def positions(queue: Iterable[Waiting], now: datetime) -> Iterator[tuple[int, Waiting]]:
    """Each request with its position, from 1 on. Windows that have not begun take none: they do not wait yet."""
    position = 1
    for waiting in queue:
        yield position, waiting
        position += not waiting.is_promise(now)


def with_windows(refused: Refused, promises: Iterable[tuple[Waiting, Offer, Slot]], now: datetime) -> Refused:
    """The same refusals; if a node could lend but is promised to a window in that time, the window is the reason."""
    end = now + timedelta(seconds=refused.ask.duration_s)
    kinds = {kind for kind, _ in refused.ask.asked}
    of_node: dict[NodeName, Occurrence] = {}
    for one, offer, place in promises:
        if one.occurrence is not None and place.begin < end and not kinds.isdisjoint(offer.need):
            for source in place.sources:
                of_node.setdefault(source, one.occurrence)

    def reason(refusal: Refusal) -> Refusal:
        found = of_node.get(refusal.node)
        if found is None or refusal.code is not RefusalCode.OTHERS_AHEAD:
            return refusal
        code = RefusalCode.RESERVED_FOR_WINDOW
        facts = {"window": found.window, "begin": minute(found.begin), "end": minute(found.end)}
        return Refusal(refusal.node, code, code.message(facts))

    return replace(refused, refusals=tuple(reason(each) for each in refused.refusals))


class QueuePlan:
    """A walk through the queue, from its head: each decision bounds those after it.

    The caller may keep it while nothing has come back, to decide about a request at the end without repeating those
    ahead.
    """

    def __init__(
        self,
        nodes: NodeTable,
        leases: Iterable[Lease],
        usage: Usage,
        rules_for: Callable[[Ask], Rules],
        now: datetime,
        depth: int = DEPTH,
        numbers: PolicyNumbers | None = None,
    ) -> None:
        self._nodes, self._rules_for, self._now, self._depth = nodes, rules_for, now, depth
        self._leases, self._usage, self._numbers = tuple(leases), usage, numbers
        self._places = CapacityTimeline(nodes, self._leases, usage, now)
        self._placed = 0
        """How many requests have a slot in time; they are ahead of all that follow."""
        self._has_earmarked = False
        self._yields_growth = any(lease.grows and lease.is_winding_down for lease in self._leases)
        self._full: set[str] = set()
        """The elastic leases that cannot grow now."""
        self._guarantees: Guarantees | None = None
        self._tries = MAY_PREEMPT
        self._given_up: list[Lease] = []
        """Leases, or parts of them, that yield to requests ahead."""
        self._for_those: list[Grant] = []
        """The grants of requests ahead from these leases."""
        self._soon: list[tuple[datetime, Grant]] = []
        """The grants of requests ahead when leases end; and from when on."""
        self._promises: list[tuple[Waiting, Offer, Slot]] = []
        """The windows ahead that have not begun, with their slots."""
        self._for_windows: list[tuple[Slot, Grant]] = []
        """Their grants, but for those that `_for_those` has."""

    def decide(
        self, waiting: Waiting, position: int, expected_source: NodeName | None = None, *, explained: bool = False
    ) -> Verdict:
        """The request's verdict. What the request gets, or has a slot for, is then taken."""
        target = self._nodes.get(waiting.ask.target)
        if target is None or not target.alive:
            return Verdict(waiting, position, reason=f"its target {waiting.ask.target} is not in the cluster now")
        try:
            offer = Offer.of(waiting.ask, self._nodes, self._rules_for(waiting.ask))
        except GridError as error:  # the rules have changed since the request was accepted
            return Verdict(waiting, position, reason=str(error))
        ahead = self._placed
        if waiting.is_promise(self._now):
            return self._promise(offer, waiting, position, expected_source)
        found = self._place(offer, waiting, position, expected_source)
        if isinstance(found, NoPlace) and offer.ask.grows:
            return Verdict(waiting, position, (), found.reason, self._evened_out(offer))
        if isinstance(found, NoPlace):
            begin, sources = (found.expected.begin, found.expected.sources) if found.expected else (None, ())
            verdict = Verdict(waiting, position, (), found.reason, None, begin, sources, is_hopeless=found.is_hopeless)
        elif isinstance(found, Slot) and found.begin <= self._now:
            can = "can" if len(found.sources) == 1 else "together can"
            reason = f"{in_words(found.sources)} {can} lend it now"
            return Verdict(waiting, position, offer.from_parts(found.parts), reason, None, self._now, found.sources)
        elif isinstance(found, Slot):
            back = self._places.comes_back(found, waiting.ask.kind)
            reason = why_it_waits(offer, found, back, ahead)
            verdict = Verdict(waiting, position, (), reason, None, found.begin, found.sources)
        else:
            place, preemption = found
            reason = why_others_yield(offer, place, preemption, ahead, self._now)
            verdict = Verdict(waiting, position, (), reason, preemption, place.begin, place.sources)
        if (until := self._may_last_until(offer)) is not None:
            names = in_words(sorted({one.occurrence.window for one in self._in_the_way(offer) if one.occurrence}))
            reason = f"{verdict.reason}; until {minute(until)} it would fit now: then the window {names} begins"
            verdict = replace(verdict, reason=reason, may_last_until=until)
        if explained:
            refused = self._places.present.refused(offer, ahead)
            verdict = replace(verdict, refused=with_windows(refused, self._promises, self._now))
        return verdict

    # -- windows ----------------------------------------------------------------------------------------------

    def _promise(self, offer: Offer, waiting: Waiting, position: int, expected_source: NodeName | None) -> Verdict:
        """The slot of a window from when it begins, or as soon after as possible; and the leases that yield to it."""
        places, occurrence = self._places, waiting.occurrence
        assert occurrence is not None
        earlier = (one for one, _, _ in self._promises)
        claim = claim_of_promise(waiting, earlier, self._leases, offer.rules.teams, self._now)
        turn = places.team_turn(offer, occurrence.begin)
        if turn is None:
            return Verdict(waiting, position, reason=why_its_team_never_may(offer), is_hopeless=True)
        place = places.first(offer, known=expected_source, since=turn)
        preemption = None
        if place is None or place.begin > turn:
            sooner = self._cleared_by(turn, offer, claim, place)
            place, preemption = sooner or (place, None)
        if place is None or place.begin >= occurrence.end:
            is_hopeless = not can_ever_be_lent(offer, self._nodes)
            reason = why_no_estimate(offer, self._nodes, ()) if place is None else why_it_waits(offer, place, 0, 0)
            if place is None and (parts := _parts_when_idle(offer, self._nodes)):
                # What is in its way now may be gone by then: what could lend it is promised all the same.
                held = Slot(parts, occurrence.begin, occurrence.end)
                places.take(offer, held)
                self._promises.append((waiting, offer, held))
            return Verdict(waiting, position, reason=reason, is_hopeless=is_hopeless)
        place = replace(place, end=occurrence.end)
        places.take(offer, place)
        self._promises.append((waiting, offer, place))
        if preemption is None or not preemption.due(self._now):
            self._for_windows += ((place, grant) for grant in offer.from_parts(place.parts))
        known = self._given_up
        if preemption is not None and not preemption.due(self._now):
            known = [*known, *preemption.parts]
        late = ending_late(offer, place, claim, places.present, known, occurrence.begin, self._now)
        if late:
            preemption = with_those_that_end(preemption, late, offer, place, self._now)
        if preemption is not None:
            preemption = replace(
                preemption, reason=f"the window {occurrence.window} begins at {stamp(occurrence.begin)}"
            )
        late_by = "" if place.begin <= occurrence.begin else f", though it begins at {minute(occurrence.begin)}"
        reason = f"{in_words(place.sources)} will lend it from {minute(place.begin)} on{late_by}"
        return Verdict(waiting, position, (), reason, preemption, place.begin, place.sources)

    def _cleared_by(
        self, begin: datetime, offer: Offer, claim: Claim, place: Slot | None
    ) -> tuple[Slot, Preemption] | None:
        """An earlier slot than `place`, not before `begin`, if leases yield to the window by then."""
        if self._numbers is None or not (claim.is_guaranteed or self._numbers.preempts):
            return None
        present, now = self._places.present, self._now
        ahead = [*self._grants_ahead(), *(grant for slot, grant in self._for_windows if slot.begin <= begin < slot.end)]
        over = over_by(begin, self._leases, self._given_up, claim)
        held = present.usage.without(()) if ahead else None
        known = (offer.ask, present, offer.rules, self._numbers, begin)
        gone = (*self._given_up, *over)
        with present.trying():
            for grant in ahead:
                present.add(grant)
            too_late = {lease.id for lease in self._leases if asked_by(lease, begin, now) < now}
            plan = plan_preemption(*known, claim=claim, given_up=gone, held=held, staying=too_late)
            if plan is None and too_late:
                plan = plan_preemption(*known, claim=claim, given_up=gone, held=held)
        if plan is None:
            return None
        each_at = reclaim_times(plan.victims, begin, self._numbers.min_hold_s, now)
        plan = replace(plan, at=min(each_at.values()), each_at=each_at)
        undo = self._places.bring_forward(plan.parts, max(begin, plan.back_by))
        found = self._places.first(offer, known=plan.sources[0], since=begin)
        if found is None or (place is not None and found.begin >= place.begin):
            undo()
            return None
        if plan.due(now):  # until then, they may still yield to requests that end before the window begins
            self._given_up += plan.parts
            self._for_those += offer.from_parts(found.parts)
        return found, plan

    def _in_the_way(self, offer: Offer) -> list[Waiting]:
        """The windows that begin before this request would end if it were met now, and take of the same kinds."""
        end = self._now + timedelta(seconds=offer.ask.duration_s)
        return [
            one
            for one, taken, place in self._promises
            if place.begin < end and any(k in offer.need for k in taken.need)
        ]

    def _may_last_until(self, offer: Offer) -> datetime | None:
        """The beginning of a window until which this request could have its capacity now, though not for longer."""
        begins = {one.occurrence.begin for one in self._in_the_way(offer) if one.occurrence is not None}
        for begin in sorted(begins, reverse=True)[:_MOST_BEGINS]:
            left_s = (begin - self._now).total_seconds()
            if left_s > 0 and self.lenders_now(replace(offer.ask, duration_s=left_s)):
                return begin
        return None

    def lenders_now(self, ask: Ask) -> tuple[NodeName, ...]:
        """The nodes that would lend this now if it came next; nothing is taken."""
        offer, places = Offer.of(ask, self._nodes, self._rules_for(ask)), self._places
        if places.team_turn(offer, self._now) != self._now:
            return ()
        place = places.first(offer, until=self._now)
        return () if place is None or place.begin > self._now else place.sources

    def _place(
        self, offer: Offer, waiting: Waiting, position: int, expected_source: NodeName | None
    ) -> Slot | tuple[Slot, Preemption] | NoPlace:
        """The slot that the request has from now on, and the preemption behind it; or why it has none."""
        places, now = self._places, self._now
        if offer.ask.grows:
            return self._for_growth(offer)
        claim = self._claim(offer)
        turn = places.team_turn(offer, now)
        if turn is None:
            return NoPlace(why_its_team_never_may(offer), is_hopeless=True)
        if turn > now:
            # Requests of other teams may pass it; of its own team, only those that end before its turn.
            expected = places.first(offer, known=expected_source, since=turn) if position <= self._depth else None
            places.take_for_team(offer, turn)
            return NoPlace(why_team_waits(offer, places.present.usage, turn, expected), expected)
        is_too_far_back = self._placed >= self._depth
        place = places.first(offer, until=now if is_too_far_back else None, known=expected_source)
        if (place is None or place.begin > now) and (sooner := self._sooner(offer, claim, place)) is not None:
            places.take(offer, sooner[0])
            self._placed += 1
            return sooner
        if place is not None:
            places.take(offer, place)
            self._placed += place.begin > now
            if place.begin > now:
                self._soon += ((place.begin, grant) for grant in offer.from_parts(place.parts))
            return place
        if is_too_far_back:
            return NoPlace(too_far_back(position - 1))
        earmarked: tuple[NodeName, ...] = ()
        withheld_by_others = places.present.withheld_by_others(offer)
        if is_overdue(waiting, now) and not self._has_earmarked and withheld_by_others is None:
            # Its turn has come, but later requests would keep taking the room that it needs. One request at a time.
            earmarked = places.earmark(offer)
            self._has_earmarked = bool(earmarked)
        if withheld_by_others is not None:
            return NoPlace(withheld_by_others.detail)
        is_hopeless = not can_ever_be_lent(offer, self._nodes)
        return NoPlace(why_no_estimate(offer, self._nodes, earmarked), is_hopeless=is_hopeless)

    def _for_growth(self, offer: Offer) -> Slot | NoPlace:
        """A slot now for the growth of an elastic lease. It takes nothing from others, and keeps no later slot."""
        if offer.ask.grows in self._full:
            return NoPlace("nothing is idle that no request waits for")
        self._full.add(offer.ask.grows)
        usage, teams = self._places.present.usage, offer.rules.teams
        if teams and why_over_limit(offer.ask, offer.need, self._nodes, usage.with_growth(), teams) is not None:
            return NoPlace(f"team {offer.ask.team} has as much as it may have")
        place = self._places.first(offer, until=self._now)
        if place is None or place.begin > self._now:
            return NoPlace("nothing is idle that no request waits for")
        self._places.take(offer, place)
        self._full.discard(offer.ask.grows)
        return place

    def _evened_out(self, offer: Offer) -> Preemption | None:
        """The step of another elastic lease that yields to this one: elastic leases of equal priority grow alike."""
        if self._yields_growth:
            return None  # one at a time: what comes back may be enough
        victim = growth_that_yields(offer.ask, self._leases)
        if victim is None:
            return None
        self._yields_growth = True
        grant = replace(offer.from_node(victim.source), ask=offer.ask)
        reason = "an elastic lease that has grown less takes its turn"
        return Preemption((victim,), (grant,), reason, False, self._now, {victim.id: victim.units})

    # -- preemption -------------------------------------------------------------------------------------------

    def _claim(self, offer: Offer) -> Claim:
        if self._guarantees is None:
            self._guarantees = Guarantees(self._usage, offer.rules.teams)
        return Claim(offer.ask.team, self._guarantees.count(offer.ask), offer.ask.priority.rank)

    def _sooner(self, offer: Offer, claim: Claim, place: Slot | None) -> tuple[Slot, Preemption] | None:
        """An earlier slot than `place`, if preemption makes one. The victims yield from then on."""
        if place is not None and place.begin <= self._now + SOON:
            return None
        if self._numbers is None or not (claim.is_guaranteed or self._tries):
            return None
        numbers = self._numbers
        if offer.ask.is_cap:  # it reserves nothing, so no work is ended for it
            numbers, claim = replace(numbers, preempts=False), replace(claim, is_guaranteed=False)
        if not any(yields_to(lease, claim, preempts=numbers.preempts) for lease in self._leases):
            return None
        self._tries -= not claim.is_guaranteed
        present, ahead, given_up = self._places.present, self._grants_ahead(), self._given_up
        known = (offer.ask, present, offer.rules, numbers, self._now)
        held = present.usage.without(()) if ahead else None
        with present.trying():
            for grant in ahead:
                present.add(grant)
            plan = plan_preemption(*known, claim=claim, given_up=given_up, held=held)
            if plan is None and (claim.is_guaranteed or self._tries >= MAY_PREEMPT - FORESEEN):
                before = None if place is None else place.begin
                plan = foresee_preemption(*known, claim=claim, given_up=given_up, held=held, before=before)
        if plan is None or (place is not None and place.begin <= plan.back_by):
            return None
        places, parts = self._places, plan.parts
        undo = places.bring_forward(parts, plan.back_by)
        found = places.first(offer, known=plan.sources[0])
        if found is None and not self._placed and not self._promises:
            # It can delay no request ahead. Calendars err towards waiting where an exact answer is expensive.
            begin = max(plan.back_by, self._now + SOON)
            found = Slot.of(offer, tuple(Part(grant.source, grant.ask.units) for grant in plan.grants), begin)
        if found is None or (place is not None and found.begin >= place.begin):
            undo()
            return None
        self._given_up += parts
        self._for_those += offer.from_parts(found.parts)
        return found, plan

    def _grants_ahead(self) -> list[Grant]:
        """The grants of requests ahead from leases that yield to them, and from pending returns."""
        if not self._soon:
            return self._for_those
        back = coming_back(self._leases, self._now)
        until = max((expected_end(lease, self._now) for lease in back), default=self._now)
        return [*self._for_those, *(grant for begin, grant in self._soon if begin <= until)]
