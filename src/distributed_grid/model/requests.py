"""User requests, validated once at the edge; and requests in the queue."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from distributed_grid.errors import InvalidAmount, InvalidRequest, SameNode
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import STATED, Cause, Delivery, DeliveryChoice, Elastic, Lease, Purpose, Terms
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import (
    CPU,
    GPU,
    MEMORY,
    amount_of,
    describe,
    in_range,
    kind_of,
    scale,
    unit_label,
    units_requested,
    whole,
)
from distributed_grid.model.teams import DEFAULT_TEAM
from distributed_grid.model.validators import LONGEST_S, grace_period, is_whole, one_of, seconds

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostOptions, BoostRequest, RequestedBoost, RequestedLayout
    from distributed_grid.wire.values import Amount

DEFAULT_DURATION_S: Final = 3600.0
MOST_SOURCES: Final = 64
"""The most lenders of one boost."""
MOST_MEMBERS: Final = 1000
"""The most members of one request."""


class Layout(StrEnum):
    """How the members of a request are laid out on nodes, in the words of Ray's placement groups."""

    PACK = "pack"  # on as few nodes as possible
    SPREAD = "spread"  # on as many nodes as possible
    STRICT_PACK = "strict_pack"  # all on one node
    STRICT_SPREAD = "strict_spread"  # each on a node of its own


@dataclass(frozen=True, slots=True)
class Ask(Terms):
    """A request with fields that are each valid on their own."""

    target: NodeName
    kind: str
    units: int
    priority: AllocationPriority = AllocationPriority.NORMAL
    duration_s: float = DEFAULT_DURATION_S
    sources: tuple[NodeName, ...] = ()
    """The only nodes that may lend it; empty: any."""
    max_sources: int = 1
    """How many nodes may lend it together, each a part of it, if no single node can lend all of it."""
    members: int = 1
    """It consists of so many equal members: each is whole on one node, and all of them are granted or none. Amounts are
    those of all members together."""
    layout: Layout = Layout.PACK
    """Where the members go."""
    places: tuple[NodeName, ...] = ()
    """The preferred node of each member. If these have no room, the layout decides."""
    delivery: str | None = None
    grace_s: float | None = None
    on_grace_end: OnGraceEnd | None = None
    along: tuple[tuple[str, int], ...] = ()
    """Further kinds from the same lender; with these, the lease is always reserved."""
    own_too: bool = False
    """If no other node lends it, the target may set it aside from its own capacity; that is reserved, too."""
    nodes: tuple[NodeName, ...] | None = None
    """The only nodes that may lend it, the preferred ones first; None: any. With `own_too`, also limits the target."""

    @property
    def source(self) -> NodeName | None:
        """The node that must lend it, if there is only one."""
        return self.sources[0] if len(self.sources) == 1 else None

    @property
    def asked(self) -> tuple[tuple[str, int], ...]:
        """Every requested amount, by kind; companions of a reservation are not included."""
        return ((self.kind, self.units), *self.along)

    @property
    def may_be_divided(self) -> bool:
        """Whether several nodes may lend it together."""
        return self.members > 1 or self.max_sources > 1

    @property
    def is_cap(self) -> bool:
        """It reserves nothing, and so takes nothing from others."""
        return self.elastic is not None and self.units == 1

    @property
    def shares_bundles(self) -> bool:
        """Its members on the same node share one bundle: a program places its work by itself, and a larger bundle has
        room for larger tasks."""
        return self.purpose is Purpose.RUN

    @property
    def member(self) -> "Ask":
        """The request of one of its members."""
        return self if self.members == 1 else self.part(self.units // self.members)

    def part(self, units: int) -> "Ask":
        """The request for a part of it, from one node. What comes along is divided in proportion."""
        along = tuple((kind, -(-amount * units // self.units)) for kind, amount in self.along)
        whole = {"max_sources": 1, "members": 1, "layout": Layout.PACK, "places": (), "elastic": None}
        return replace(self, units=units, along=along, **whole)  # type: ignore[arg-type]

    @classmethod
    def again(cls, lease: Lease) -> "Ask":
        """The request for the same lease from any lender: everything that a request says and a lease keeps."""
        return cls(**{name: getattr(lease, name) for name in _KEPT_BY_A_LEASE})

    @property
    def terms(self) -> dict[str, Any]:
        """The terms that its lease takes over, by field."""
        return {name: getattr(self, name) for name in (*_KEPT_BY_A_LEASE, "idempotency_key")}

    def times(self, count: int, layout: Layout, places: tuple[NodeName, ...] = ()) -> "Ask":
        """The request for so many members that are each like this request."""
        if count == 1:
            return self
        along = tuple((kind, count * units) for kind, units in self.along)
        return replace(self, units=count * self.units, along=along, members=count, layout=layout, places=places)

    def describe(self) -> str:
        return f"{self.amounts} for {self.target}"

    @property
    def amounts(self) -> str:
        """ "2 CPUs, 1 GPU", "3 times 2 CPUs, 1 GPU"."""
        if self.elastic is not None:
            first = in_range(self.kind, self.units, self.elastic.most)
            return ", ".join([first, *(describe(kind, units) for kind, units in self.along)])
        each = ", ".join(describe(kind, units) for kind, units in self.member.asked)
        return each if self.members == 1 else f"{self.members} times {each}"


_KEPT_BY_A_LEASE: Final = sorted(
    {field.name for field in fields(Ask)}
    & {field.name for field in fields(Lease)} - {"source", "delivery", "idempotency_key"}
)


def request_body(target: NodeName, amounts: "Mapping[str, Amount]", **terms: "Unpack[BoostOptions]") -> "BoostRequest":
    """The request for these amounts for a target, as the API takes it: the first kind leads, the others come along.

    An amount may be a range: "2..16" has 2 and grows up to 16, "..16" has nothing of its own. Terms that are None are
    left open, and are not sent.
    """
    (kind, amount), *along = amounts.items()
    if ranges := [other for other, more in along if _is_range(more)]:
        raise InvalidRequest(
            f"A range of {unit_label(ranges[0])} does not go with {unit_label(kind)}",
            because=["an elastic lease grows by CPUs, and what comes along with them"],
            try_next="Ask for fixed amounts, or for a range of CPUs without GPUs.",
        )
    if _is_range(amount):
        if (given := _RANGE.fullmatch(str(amount))) is None:
            raise InvalidAmount(f"{amount!r} is not a range", try_next="Give one such as 2..16, or ..16 for a limit.")
        amount, terms = given["least"] or "0", {**terms, "at_most": given["most"]}
    body: BoostRequest = {"target_node": target, "resource_type": kind, "amount": amount, **terms}
    if along:
        body["along"] = dict(along)
    return cast("BoostRequest", {key: value for key, value in body.items() if value is not None})


_RANGE: Final = re.compile(r"\s*(?P<least>[^.\s]+(\.[^.\s]+)?)?\s*\.\.\s*(?P<most>[^.\s]+(\.[^.\s]+)?)\s*")


def _is_range(amount: object) -> bool:
    return isinstance(amount, str) and ".." in amount


def reservation(target: NodeName, amounts: "Mapping[str, Amount]", **terms: "Unpack[BoostOptions]") -> "BoostRequest":
    """The request for a reservation that programs run in: the scarcest kind leads, and it may be on the target itself.

    Programs run in it, and are ended with it.
    """
    scarcest_first = sorted(amounts, key=lambda kind: (kind != GPU, kind != CPU, kind))
    body = request_body(target, {kind: amounts[kind] for kind in scarcest_first}, **terms)
    return {**body, "delivery": Delivery.RESERVE, "on_grace_end": OnGraceEnd.KILL, "own_too": True}


def on_nodes(
    amounts: "Mapping[str, Amount]", nodes: int | None, *, spread: bool
) -> "tuple[dict[str, Amount], RequestedLayout]":
    """The amounts of one member of a request for several nodes, and the terms that say where its members go.

    `nodes`: so many nodes, with these amounts on each of them. `spread`: these amounts together, on as many nodes as
    possible, in single GPUs, or else CPUs. With neither, as few nodes as possible divide them.
    """
    if (nodes is not None or spread) and any(map(_is_range, amounts.values())):
        raise InvalidRequest(
            "A range (MIN..MAX) goes with neither --nodes nor --spread",
            because=["an elastic lease grows on any node"],
        )
    if not spread:
        return dict(amounts), {} if nodes is None else {"members": nodes, "layout": str(Layout.STRICT_SPREAD)}
    if nodes is not None:
        raise InvalidRequest("--nodes puts each part on a node of its own, so --spread has nothing to spread")
    lead = GPU if GPU in amounts else CPU
    units = units_requested(lead, amounts[lead]) if lead in amounts else 0
    members = units // scale(lead)
    if not members or units % scale(lead) or members > MOST_MEMBERS:
        raise InvalidRequest(
            "--spread divides whole GPUs or CPUs among nodes",
            because=[f"asked for {describe(lead, units)}"],
            try_next=f"Ask for a whole number of GPUs or CPUs, from 1 to {MOST_MEMBERS}.",
        )
    each = {kind: amount_of(kind, -(-units_requested(kind, amount) // members)) for kind, amount in amounts.items()}
    return dict(each), {"members": members, "layout": str(Layout.SPREAD)}


def command(ask: Ask, *, queued: bool = False) -> str | None:
    """The command that makes the same request, with the options that differ from their defaults; None: there is none.

    It does not repeat how its holder wants to be notified: that may have a password in its URL. `queued`: the command
    that leaves the request in the queue; it has no options for the end of the boost.
    """
    if queued and ask.purpose is not Purpose.BOOST:
        return None
    match ask.purpose:
        case Purpose.BOOST if not ask.along:
            verb = "grid resource-sharing request" if queued else "grid boost request"
            what = f"{verb} {ask.target} {ask.kind} {_amount(ask, ask.kind, ask.units)}"
            is_usual = ask.duration_s == DEFAULT_DURATION_S
        case Purpose.RUN if all(kind in _RUN_OPTIONS for kind, _ in ask.asked) and (how := _laid_out(ask)) is not None:
            each = ask.member if ask.layout is Layout.STRICT_SPREAD else ask
            amounts = (f" {_RUN_OPTIONS[kind]} {_amount(ask, kind, units)}" for kind, units in each.asked)
            what = f"grid run{how}{''.join(amounts)}"
            is_usual = True  # the run renews its lease
        case _:
            return None
    is_boost = ask.purpose is Purpose.BOOST
    options = {
        "--max-sources": ask.max_sources if is_boost and ask.max_sources < (len(ask.sources) or MOST_SOURCES) else None,
        "--priority": None if ask.priority is AllocationPriority.NORMAL else ask.priority,
        "--duration": None if is_usual else f"{ask.duration_s:g}",
        "--delivery": ask.delivery if is_boost else None,
        "--grace": None if queued or ask.grace_s is None else f"{ask.grace_s:g}",
        "--idle-after": None
        if queued or ask.idle_after is None
        else f"{ask.idle_after:g}"
        if ask.idle_after
        else "never",
        "--on-grace-end": None if queued or not is_boost else ask.on_grace_end,
    }
    named = [("--source", source) for source in ask.sources]
    given = [f"{option} {value}" for option, value in (*named, *options.items()) if value is not None]
    return " ".join([what, *given])


def _amount(ask: Ask, kind: str, units: int) -> str:
    """ "2", "2..16", "..16", as commands take it."""
    if ask.elastic is None or kind != ask.kind:
        return str(amount_of(kind, units))
    return f"{'' if ask.is_cap else amount_of(kind, units)}..{amount_of(kind, ask.elastic.most)}"


def _laid_out(ask: Ask) -> str | None:
    """The options of `grid run` that say on how many nodes; None: it has no such options."""
    if ask.members == 1:
        return " --nodes 1" if ask.max_sources == 1 and ask.source is None else ""
    match ask.layout:
        case Layout.STRICT_SPREAD:
            return f" --nodes {ask.members}"
        case Layout.SPREAD if ask.units == ask.members * scale(ask.kind):
            return " --spread"
    return None


_RUN_OPTIONS: Final = {CPU: "--cpus", GPU: "--gpus", MEMORY: "--memory"}
"""The options of `grid run` that say how much."""


def make_ask(
    body: "RequestedBoost",
    *,
    requester: str = "",
    team: str = "",
    idempotency_key: str | None = None,
    reclaim_hook: str | None = None,
    fractional_gpus: bool = False,
    longest_grace_s: float = LONGEST_S,
) -> Ask:
    """The only way from a request's body to an `Ask`: checks every field, or raises the `InvalidRequest` that names the
    wrong one. A hook is checked by the controller, which knows the nodes' addresses."""
    target, sources, said = body["target_node"], _sources(body), body.get("delivery")
    delivery = None if said is None else str(one_of("delivery", DeliveryChoice, said))
    kind = kind_of(body["resource_type"])
    units, most = _units_and_most(kind, body)
    own_too = body.get("own_too", False)
    is_own = own_too and sources == (target,)  # a node's own part of a device is not lent to another node
    if kind == GPU and not fractional_gpus and not is_own and not whole(kind, units):
        raise InvalidAmount(
            f"{body['amount']} GPUs: GPUs are lent as whole devices",
            try_next="Request 1, or allow parts with resource_sharing.fractional_gpus: true.",
        )
    more = _along(kind, body.get("along") or {})
    moves_totals = any(delivery == each and each.moves_totals for each in Delivery)
    members = _members(body)
    if members > 1 and moves_totals:
        raise InvalidRequest(
            "A request with several members cannot be transferred",
            because=["each member is a bundle of one placement group"],
            try_next="Use --delivery reserve, or leave out the members.",
        )
    if more and moves_totals:
        raise InvalidRequest(
            "Several kinds together cannot be transferred",
            try_next="Use --delivery reserve, or request each kind separately.",
        )
    if most:
        _check_elastic(body, kind, units, moves_totals=moves_totals, has_along=bool(more))
    if target in sources and not own_too:
        raise SameNode(f"{target} cannot lend to itself", try_next="Leave --source out, or name another node.")
    if moves_totals and kind == GPU:
        raise InvalidRequest(
            "Ray cannot transfer GPUs between nodes",
            because=["a running raylet's GPUs are fixed: Ray refuses to resize them"],
            try_next="Use --delivery reserve (the default for GPUs): the work then runs on the lender.",
        )
    duration, grace, on_grace_end = (body.get(key) for key in ("duration_seconds", "grace_seconds", "on_grace_end"))
    ask = Ask(
        target=target,
        kind=kind,
        units=units,
        priority=AllocationPriority.parse(body.get("priority", AllocationPriority.NORMAL)),
        duration_s=DEFAULT_DURATION_S if duration is None else seconds("duration", duration),
        sources=sources,
        max_sources=_max_sources(body, sources, has_along=bool(more)),
        delivery=delivery,
        grace_s=None if grace is None else grace_period(grace, longest_grace_s),
        on_grace_end=None if on_grace_end is None else one_of("--on-grace-end", OnGraceEnd, on_grace_end),
        along=more,
        own_too=own_too,
        requester=requester,
        team=team or DEFAULT_TEAM,
        idempotency_key=idempotency_key,
        reclaim_hook=reclaim_hook,
        elastic=Elastic(most, sources, own_too) if most else None,
        **_stated(body),
    )
    return ask.times(members, one_of("layout", Layout, body.get("layout") or Layout.PACK))


def _units_and_most(kind: str, body: "RequestedBoost") -> tuple[int, int]:
    """The units of a request, and the most that it may grow to; zero: it does not grow."""
    amount, at_most = body["amount"], body.get("at_most")
    if at_most is None:
        return units_requested(kind, amount), 0
    most = units_requested(kind, at_most)
    is_cap = amount in (0, "0")
    units = 1 if is_cap else units_requested(kind, amount)
    if most <= units:
        raise InvalidAmount(
            f"A range must end above its beginning: {amount}..{at_most}",
            try_next=f"Give a range such as 2..16, or {at_most} alone for an amount that does not change.",
        )
    return units, most


def _check_elastic(body: "RequestedBoost", kind: str, units: int, *, moves_totals: bool, has_along: bool) -> None:
    """Raise if a lease like this cannot grow."""
    if kind != CPU:
        raise InvalidRequest(
            f"A range is for CPUs, not for {unit_label(kind)}",
            because=["Ray cannot add GPUs to a placement group"] if kind == GPU else [],
            try_next="Ask for a fixed amount, and for a range of CPUs in a request without GPUs.",
        )
    if moves_totals or body.get("delivery") == DeliveryChoice.AUTO:
        raise InvalidRequest(
            "A range is for reservations",
            because=["the work of an elastic lease runs where the capacity is"],
            try_next="Use --delivery reserve.",
        )
    if body.get("members") is not None:
        raise InvalidRequest("A range is for one lease, not for one on each of several nodes: it may grow on any node")
    if has_along and units == 1:
        raise InvalidRequest("A limit without a reservation (..N) is for one kind; nothing comes along with it")


def _members(body: "RequestedBoost") -> int:
    """How many members the request has; amounts are those of one member."""
    given = body.get("members")
    if given is None:
        return 1
    if not is_whole(given, 1, MOST_MEMBERS):
        raise InvalidRequest(f"The number of members must be a whole number from 1 to {MOST_MEMBERS}, not {given!r}")
    if given > 1 and body.get("max_sources") is not None:
        raise InvalidRequest(
            "A request has either members or a largest number of lenders",
            because=["a member is whole on one node, so no amount is divided"],
            try_next="Leave out one of the two.",
        )
    return int(given)


def _stated(body: Mapping[str, object]) -> dict[str, Any]:
    """The terms that a request states, by field; a term that is not given, or null, has its default."""
    return {name: check(body[name]) for name, check in STATED.items() if body.get(name) is not None}


def _sources(body: "RequestedBoost") -> tuple[NodeName, ...]:
    """The nodes that may lend, as the request names them, each once."""
    one = body.get("source_node")
    return tuple(dict.fromkeys((*([] if one is None else [one]), *(body.get("source_nodes") or ()))))


def _max_sources(body: "RequestedBoost", sources: tuple[NodeName, ...], *, has_along: bool) -> int:
    """How many lenders may divide the amounts. A boost of several kinds, a task and a member come from one."""
    given = body.get("max_sources")
    if given is not None and not is_whole(given, 1, MOST_SOURCES):
        raise InvalidRequest(f"The number of lenders must be a whole number from 1 to {MOST_SOURCES}, not {given!r}")
    purpose = body.get("purpose") or Purpose.BOOST
    is_divided = purpose == Purpose.RUN or (purpose == Purpose.BOOST and not has_along)
    if body.get("members") is not None or not is_divided:
        return 1
    return min(MOST_SOURCES if given is None else int(given), len(sources) or MOST_SOURCES)


def _along(kind: str, given: Mapping[str, object]) -> tuple[tuple[str, int], ...]:
    found = {kind_of(name): amount for name, amount in given.items()}
    if kind in found or len(found) < len(given):
        raise InvalidRequest(f"A resource kind is given twice: {', '.join((kind, *given))}")
    return tuple(sorted((other, units_requested(other, amount)) for other, amount in found.items()))


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One time of a window (`model/windows.py`): its capacity is promised from `begin` to `end`."""

    window: str
    begin: datetime
    end: datetime
    promised_at: datetime
    """When the window was created. Of equal claims, the earlier promise is kept."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request in the queue. The lease that it becomes has the same id."""

    id: str
    ask: Ask
    since: datetime
    until: datetime | None = None
    """When the request expires; None: it waits until it is met or cancelled."""
    is_durable: bool = False
    """The request waits across restarts, without a connected caller."""
    occurrence: Occurrence | None = None
    """The time of a window that it is for. Until that begins, it is a promise: it takes its capacity in every plan, and
    is not granted."""

    def is_promise(self, now: datetime) -> bool:
        return self.occurrence is not None and now < self.occurrence.begin

    def is_over(self, now: datetime) -> bool:
        return self.until is not None and now >= self.until

    @property
    def is_for_a_task(self) -> bool:
        """Whether it waits for a task rather than a caller: the scheduler then holds the lease."""
        return self.is_durable and self.ask.cause is Cause.SCHEDULED
