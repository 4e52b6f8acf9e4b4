"""Leases: time-bounded grants. `model.lease_changes` has their legal changes."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Final

from distributed_grid.model import validators
from distributed_grid.model.endings import EndCause, Ending, OnGraceEnd
from distributed_grid.model.nodes import NodeName, in_words
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import ResourceVector, amount_of, describe, in_range, scale, total
from distributed_grid.model.teams import DEFAULT_TEAM


class LeaseState(StrEnum):
    GRANTING = "granting"  # on disk, and a request is completing it in the cluster
    INTERRUPTED = "interrupted"  # a grant that was cut off, for example by a crash; the reconciler resumes it
    ACTIVE = "active"
    RELEASING = "releasing"  # draining; stays here while the target still uses it
    RECLAIMING = "reclaiming"  # draining for a request that waits: nothing new starts, and its end is enforced
    RELEASED = "released"
    LOST = "lost"  # its source or target node is gone

    @property
    def shown(self) -> str:
        """The state as users, files and metrics know it: they need not tell all states apart."""
        return str(_SHOWN_AS.get(self, self))


_SHOWN_AS: Final = {
    LeaseState.INTERRUPTED: LeaseState.GRANTING,
    LeaseState.RECLAIMING: LeaseState.RELEASING,
}


PLACEMENT_GROUP: Final = "placement group"


@dataclass(frozen=True, slots=True)
class _Traits:
    moves_totals: bool = False
    held_in: str = ""
    can_split: bool = False
    needs_target: bool = False


class Delivery(StrEnum):
    """How a lease reaches its target, and what that means for the rest of grid."""

    _value_: str
    moves_totals: bool
    """The nodes' totals change: the source has less, the target more, and every Ray program sees it."""
    held_in: str
    """In words, what holds the capacity on the source and contains the work; empty if the totals move."""
    can_split: bool
    """A part of it can be returned."""
    needs_target: bool
    """It ends if its target leaves the cluster; otherwise the target is only a name."""

    def __new__(cls, value: str, traits: _Traits) -> "Delivery":
        self = str.__new__(cls, value)
        self._value_ = value
        for each in fields(traits):
            setattr(self, each.name, getattr(traits, each.name))
        return self

    @classmethod
    def named(cls, name: str) -> "Delivery":
        return next(each for each in cls if each == name)

    # The source's raylet shrinks, the target's grows.
    TRANSFER = "transfer", _Traits(moves_totals=True, can_split=True, needs_target=True)
    # A placement group on the source, for the target's work. Ray cannot make it smaller.
    RESERVE = "reserve", _Traits(held_in=PLACEMENT_GROUP)


class DeliveryChoice(StrEnum):
    """The deliveries that a request or the configuration may name."""

    TRANSFER = Delivery.TRANSFER
    RESERVE = Delivery.RESERVE
    AUTO = "auto"  # by the target's hardware


WATCHED: Final = "watch:"
"""The `reclaim_hook` of a holder that polls for notices."""


class Cause(StrEnum):
    """Why a lease exists."""

    ASKED = "asked"  # a caller requested it
    SCHEDULED = "scheduled"  # the scheduler holds a task's place with it; callers cannot request this
    WINDOW = "window"  # a window began, which a caller created
    PRESSURE = "pressure"  # its target was under pressure
    DEMAND = "demand"  # work waited for its target
    FORECAST = "forecast"  # its target was expected to come under pressure

    @property
    def is_request(self) -> bool:
        """A caller asked for the lease; otherwise grid made it by itself, for as long as the cause lasts."""
        return self in (Cause.ASKED, Cause.SCHEDULED, Cause.WINDOW)


class Purpose(StrEnum):
    """The purpose of a lease."""

    BOOST = "boost"  # its target; people may use it by hand
    RUN = "run"  # one program that runs inside it; the lease ends with the program
    TASK = "task"  # one task of an executor
    ROLES = "roles"  # members of a workload of roles


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much one of several lenders needs back."""

    source: NodeName
    units: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Asks the holder of a lease to give something up by itself; at the deadline, grid takes it."""

    units: int
    """How much is enough."""
    reason: str
    asked_at: datetime
    deadline: datetime
    wanted: tuple[Wanted, ...] = ()
    """How much each of several lenders needs; empty: any part of the lease will do."""

    @property
    def sources(self) -> tuple[NodeName, ...]:
        return tuple(one.source for one in self.wanted)

    def also_for(self, source: NodeName, units: int) -> "Notice":
        """The notice that asks for this much of one of several lenders, too; it gives the holder no more time."""
        others = tuple(one for one in self.wanted if one.source != source)
        most = max((one.units for one in self.wanted if one.source == source), default=0)
        return self._for((*others, Wanted(source, max(most, units))))

    def without(self, source: NodeName, units: int) -> "Notice | None":
        """What it still asks for once a lender has this much back; None: nothing."""
        if not self.wanted:
            return replace(self, units=self.units - units) if self.units > units else None
        left = [replace(one, units=one.units - units) if one.source == source else one for one in self.wanted]
        return self._for(still) if (still := tuple(one for one in left if one.units > 0)) else None

    def of_lender(self, source: NodeName, units: int) -> "Notice | None":
        """What it asks of the part of one of several lenders, which is so large."""
        if not self.wanted:
            return replace(self, units=min(self.units, units))
        mine = min(units, sum(one.units for one in self.wanted if one.source == source))
        return replace(self, units=mine, wanted=()) if mine else None

    def _for(self, wanted: tuple[Wanted, ...]) -> "Notice":
        return replace(self, wanted=wanted, units=sum(one.units for one in wanted))

    def is_of(self, other: "Notice | None") -> bool:
        """Whether it is the same notice, even if it now asks for more or less."""
        return other is not None and other.asked_at == self.asked_at


@dataclass(frozen=True, slots=True)
class Idle:
    """A lease that its work does not use."""

    since: datetime
    """No measurement has shown any use since then."""
    yields: bool
    """It yields to any request that waits for its capacity."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program inside a reservation that reports regularly. Its place is kept even while it runs no task."""

    id: str
    label: str
    until: datetime
    """When it counts as gone unless it reports again."""


RENEWED_AFTER: Final = 1 / 3
"""The part of its length after which a lease that its holder keeps alive is renewed: early, since the holder may not
reach the controller for a while."""
RENEWED_FOR_ITS_CAUSE_AFTER: Final = 3 / 4
"""The same for a lease that grid made by itself: late, since it is held until its end though its cause may have passed,
and since a renewal takes the place of another change in its round. The controller renews it, so it need not be early.
"""


@dataclass(frozen=True, slots=True)
class Elastic:
    """A lease that grows while capacity is idle, by further leases (`Terms.grows`), and shrinks for other requests."""

    most: int
    """The most units, growth included."""
    sources: tuple[NodeName, ...] = ()
    """The only nodes that may lend the growth; empty: any."""
    own_too: bool = False
    """The target may set it aside from its own capacity."""


MOST_STEPS: Final = 64
"""An elastic lease grows in at most so many steps, each a lease that can be returned alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms that a request and its lease have in common.

    The request's constructor, the files and the answers follow these fields. To let users state another term, add a
    field here with its check in `STATED`, and a key to the API's request.
    """

    requester: str = ""
    idempotency_key: str | None = None
    team: str = DEFAULT_TEAM
    cause: Cause = Cause.ASKED
    reclaim_hook: str | None = None
    """How its holder wants to be notified before a reclaim: a URL, or `WATCHED`. None: no notice."""
    purpose: Purpose = Purpose.BOOST
    label: str = ""
    """The holder's name for the work in it."""
    ends_with: str | None = None
    """The id of a Ray worker or driver: when Ray reports that this process is gone, the lease ends."""
    joins: str = ""
    """The id of the lease that it becomes a part of, to replace a part that was lost."""
    elastic: Elastic | None = None
    grows: str = ""
    """The id of the elastic lease that it adds to. It yields to every request, and ends with that lease."""
    idle_after: float | None = None
    """For how many seconds its work must not use it before it is idle, or `NEVER_S`. None: as configured."""


STATED: Final[Mapping[str, Callable[[Any], object]]] = {
    "purpose": partial(validators.one_of, "purpose", Purpose),
    "label": validators.label,
    "ends_with": validators.ray_process,
    "idle_after": partial(validators.seconds_or_never, "idle time"),
}
"""The terms that a request states under the field's name, with their checks."""
SHOWN: Final = ("requester", "team", "cause", "purpose", "label")
"""The terms that answers show. A reclaim hook may have a password in its URL."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one of several lenders lends of a lease; or one of its members, of which a lender may have several."""

    source: NodeName
    units: int
    resources: ResourceVector
    reason: str = ""
    """Why this lender, and why so much."""
    bundle: int = 1
    """The number of its bundle in the group of a reservation, from 1 on."""

    def of_units(self, kind: str, units: int) -> "Share":
        """The share for so many units only; not for a delivery that cannot be split."""
        return self if units == self.units else replace(self, units=units, resources=ResourceVector({kind: units}))


@dataclass(frozen=True, slots=True)
class Lease(Terms):
    """Part of the capacity of one or more lenders, granted to the target until `expires_at`."""

    id: str
    source: NodeName
    """The lender; of several, the first."""
    target: NodeName
    kind: str
    units: int
    resources: ResourceVector
    """Everything that is lent: what was requested, and its companions."""
    priority: AllocationPriority
    delivery: Delivery
    delivery_reason: str
    state: LeaseState
    allocated_at: datetime
    expires_at: datetime
    duration_s: float
    grace_s: float = 30.0
    on_grace_end: OnGraceEnd = OnGraceEnd.HOLD
    held_by: str | None = None
    """The id of what holds it on the source, if its totals do not move."""
    release_reason: str | None = None
    release_asked_at: datetime | None = None
    warnings: tuple[str, ...] = field(default=())
    notice: Notice | None = None
    """The notice that its holder has now; only an active lease has one."""
    checkpointed_at: datetime | None = None
    """The holder's last checkpoint: a recent one means that a reclaim loses little."""
    ending: Ending | None = None
    """Who releases or reclaims it, and for which request, while it is being returned or its holder has a notice."""
    programs: tuple[Program, ...] = ()
    """The programs inside: each is notified, and keeps its place until the deadline."""
    shares: tuple[Share, ...] = ()
    """What each lender lends, if there are several, or were."""
    grown: tuple[Share, ...] = ()
    """What an elastic lease has grown by, for each lender. Only in memory: the leases that add to it are on disk."""
    idle: Idle | None = None
    """Set while its work does not use it. Only in memory: after a restart, grid measures anew."""

    @property
    def yields_as_idle(self) -> bool:
        return self.idle is not None and self.idle.yields

    @property
    def yields_to_all(self) -> bool:
        """Whether any claim takes it: its work does not use it, or it is the growth of an elastic lease."""
        return self.yields_as_idle or bool(self.grows)

    @property
    def capacity(self) -> ResourceVector:
        """What its work has now, with what an elastic lease has grown by."""
        own = ResourceVector() if self.is_cap else self.resources
        return total([own, *(share.resources for share in self.grown)])

    @property
    def is_cap(self) -> bool:
        """It reserves nothing: all that its work gets is growth."""
        return self.elastic is not None and self.units == 1

    @property
    def step(self) -> int:
        """How many units an elastic lease grows by at a time."""
        if self.elastic is None:
            return 0
        one = scale(self.kind)
        return max(one, -(-(self.elastic.most - self.units) // (MOST_STEPS * one)) * one)

    @property
    def sources(self) -> tuple[NodeName, ...]:
        """The lenders."""
        return tuple(dict.fromkeys(share.source for share in self.shares)) or (self.source,)

    @property
    def parts(self) -> "tuple[Lease, ...]":
        """The lease as one lease for each share; with a single lender, itself. Decisions about capacity use these."""
        several = len(self.shares) > len(self.sources)
        return tuple(self._part(share, several) for share in self.shares) or (self,)

    def _part(self, share: Share, several: bool) -> "Lease":
        """`several`: a lender may have several shares."""
        notice = None if self.notice is None else self.notice.of_lender(share.source, share.units)
        part_id = f"{self.id}/{share.source}" + (f"#{share.bundle}" if several else "")
        return replace(self._of_shares((share,)), id=part_id, shares=(), notice=notice)

    @property
    def whole_id(self) -> str:
        """The id of the lease that it is a part of."""
        return self.id.partition("/")[0]

    def _of_shares(self, shares: tuple[Share, ...]) -> "Lease":
        """The same lease from these lenders only."""
        return replace(
            self,
            source=shares[0].source,
            units=sum(share.units for share in shares),
            resources=total([share.resources for share in shares]),
            shares=shares,
        )

    @property
    def asked_at(self) -> datetime | None:
        """When its release or reclaim began. The grace period starts then."""
        return self.notice.asked_at if self.notice is not None else self.release_asked_at

    @property
    def deadline(self) -> datetime | None:
        """When its grace period ends and what still runs in it is ended; None until its release or reclaim begins."""
        if self.asked_at is None or self.state is LeaseState.LOST:
            return None
        return self.grace_ends(self.asked_at)

    def grace_ends(self, asked_at: datetime) -> datetime:
        """When its grace period ends if its release or reclaim began then."""
        return asked_at + timedelta(seconds=self.grace_s)

    @property
    def at_deadline(self) -> OnGraceEnd:
        """What happens then to work that still uses it.

        A reservation ends with its grace period. A request that waits for the capacity was promised it: then, too, the
        work is ended, whatever the holder asked for.
        """
        is_ended = not self.delivery.moves_totals or self.is_promised
        return OnGraceEnd.KILL if is_ended else self.on_grace_end

    def programs_at(self, now: datetime) -> tuple[Program, ...]:
        """The programs that still report."""
        return tuple(program for program in self.programs if program.until > now)

    def is_inhabited(self, now: datetime) -> bool:
        """Whether a program is inside, even between two of its tasks. The holder of a run's lease renews it."""
        is_run = self.purpose is Purpose.RUN and self.expires_at > now
        return self.state is not LeaseState.LOST and (is_run or bool(self.programs_at(now)))

    @property
    def holds_capacity(self) -> bool:
        """True until the capacity is known to be returned."""
        return self.state is not LeaseState.RELEASED

    @property
    def is_granting(self) -> bool:
        """Its grant is not complete."""
        return self.state in (LeaseState.GRANTING, LeaseState.INTERRUPTED)

    @property
    def is_winding_down(self) -> bool:
        return self.state in (LeaseState.RELEASING, LeaseState.RECLAIMING, LeaseState.LOST)

    @property
    def is_reclaimed(self) -> bool:
        """A request waits for it: while it winds down nothing new starts on it, and after its grace period it is
        taken."""
        return self.state is LeaseState.RECLAIMING

    @property
    def is_promised(self) -> bool:
        """Its capacity is promised to another: its deadline can only become earlier."""
        return self.is_reclaimed or self.notice is not None

    @property
    def is_reclaimed_as_idle(self) -> bool:
        """Its holder has a notice that is withdrawn if the lease is used again."""
        return self.notice is not None and self.ending is not None and self.ending.cause is EndCause.IDLE

    @property
    def all_nodes(self) -> frozenset[NodeName]:
        """The nodes that it concerns: its target, its lenders, and those of what it has grown by."""
        return frozenset((self.target, *self.sources, *(share.source for share in self.grown)))

    @property
    def needed_nodes(self) -> frozenset[NodeName]:
        """The nodes that it cannot exist without."""
        return frozenset((*self.sources, self.target) if self.delivery.needs_target else self.sources)

    @property
    def coming_back(self) -> int:
        """The pending return: how much is being returned, or will be when its notice is over."""
        if self.is_winding_down:
            return self.units
        return 0 if self.notice is None else self.notice.units

    @property
    def next_due(self) -> datetime:
        """When the lease next needs action without a request; what happens to idle leases depends on measurements."""
        if self.notice is None or self.is_reclaimed_as_idle:
            return self.expires_at
        return min(self.expires_at, self.notice.deadline)

    @property
    def placement_group(self) -> str | None:
        """The id of its placement group, in which Ray's tasks and actors can run; None without one."""
        return self.held_by if self.delivery.held_in == PLACEMENT_GROUP else None

    @property
    def group_name(self) -> str:
        return f"grid-boost-{self.id}"

    @property
    def renewal_due(self) -> datetime:
        """When it is renewed, if it is still needed then."""
        after = RENEWED_AFTER if self.cause.is_request else RENEWED_FOR_ITS_CAUSE_AFTER
        return self.expires_at - timedelta(seconds=self.duration_s * (1 - after))

    def of_units(self, units: int) -> "Lease":
        """The lease for so many units only; not for a delivery that cannot be split. The last lenders give less."""
        if units >= self.units:
            return self
        return self.divided(self.units - units)[0]

    def divided(self, units: int, source: NodeName | None = None) -> "tuple[Lease, Lease]":
        """The lease without some of its units, and those units alone.

        `source`: the lender that gives less; by default those that the notice names, and then from the last one on.
        """
        if not self.shares:
            return self._of_own(self.units - units), self._of_own(units)
        needing = () if self.notice is None else self.notice.sources
        left, gives = units, dict.fromkeys(self.sources, 0)
        last_first = self.shares[::-1]
        for share in sorted(last_first, key=lambda share: share.source not in needing):
            if source in (None, share.source):
                gives[share.source] = min(left, share.units)
                left -= gives[share.source]
        given = [share.of_units(self.kind, some) for share in self.shares if (some := gives[share.source])]
        kept = [share.of_units(self.kind, left) for share in self.shares if (left := share.units - gives[share.source])]
        return self._of_shares(tuple(kept)), self._of_shares(tuple(given))

    def _of_own(self, units: int) -> "Lease":
        return replace(self, units=units, resources=ResourceVector({self.kind: units}))

    def without(self, source: NodeName) -> "Lease":
        """The lease without the part of one of its lenders."""
        return self._of_shares(tuple(share for share in self.shares if share.source != source))

    def joined_by(self, other: "Lease") -> "Lease":
        """The lease with the capacity of another one, of the same kind and target, in addition."""
        own = self.shares or (Share(self.source, self.units, self.resources, self.delivery_reason),)
        more = Share(other.source, other.units, other.resources, other.delivery_reason)
        same = next((share for share in own if share.source == more.source), None)
        if same is None:
            return self._of_shares((*own, more))
        grown = replace(same, units=same.units + more.units, resources=same.resources + more.resources)
        return self._of_shares(tuple(grown if share is same else share for share in own))

    @property
    def amount(self) -> str:
        """ "2 CPUs", "2 to 16 CPUs", "up to 16 CPUs"."""
        if self.elastic is None:
            return describe(self.kind, self.units)
        return in_range(self.kind, self.units, self.elastic.most)

    def describe(self) -> str:
        what = self.amount
        if len(self.shares) > 1:
            by_lender = Counter[NodeName]()
            for share in self.shares:
                by_lender[share.source] += share.units
            each = [f"{source} ({amount_of(self.kind, units)})" for source, units in by_lender.items()]
            return f"{what} from {in_words(each)} to {self.target}"
        return (
            f"{what} from {self.source} to {self.target}" if self.source != self.target else f"{what} on {self.source}"
        )
