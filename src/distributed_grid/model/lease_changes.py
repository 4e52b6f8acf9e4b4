"""The legal changes of leases: what may happen to a lease, in which state, and which state it leads to.

Every change to a lease goes through `changed` or `split`. A change names the fields that it sets; `CHANGES` has the
rest. In any order of changes, a release is never undone, and the deadline of a lease with promised capacity never moves
later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.model.endings import EndCause, Ending, OnGraceEnd
from distributed_grid.model.leases import Idle, Lease, LeaseState, Notice, Program, Share
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector


class IllegalTransition(Exception):
    """A bug in grid, never a user's mistake."""


class Change:
    """Its fields are the fields of the lease that it sets."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Delivered(Change):
    """The cluster shows the lease; a reservation has its group."""

    held_by: str | None = None


@dataclass(frozen=True, slots=True)
class Interrupted(Change):
    """No request completes the grant any more."""


@dataclass(frozen=True, slots=True)
class Resumed(Change):
    """The reconciler completes a grant that was cut off."""


@dataclass(frozen=True, slots=True)
class Regrouped(Change):
    """The reservation has a new group, with a bundle for each share that it had when the group was made."""

    held_by: str
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Renewed(Change):
    expires_at: datetime
    duration_s: float


@dataclass(frozen=True, slots=True)
class RenewalUndone(Change):
    """The renewal could not be written."""

    expires_at: datetime
    duration_s: float


@dataclass(frozen=True, slots=True)
class NoticeGiven(Change):
    """The holder gets a notice, and may give something up by itself."""

    notice: Notice
    ending: Ending


@dataclass(frozen=True, slots=True)
class NoticeWithdrawn(Change):
    """A lease that was reclaimed as idle is in use again, so it stays."""

    notice: None = None
    ending: None = None
    idle: None = None


@dataclass(frozen=True, slots=True)
class IdleChanged(Change):
    """Its work has begun, or ceased, to use it."""

    idle: Idle | None


@dataclass(frozen=True, slots=True)
class Grown(Change):
    """An elastic lease has more, or less, beside its least amount."""

    grown: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class Checkpointed(Change):
    checkpointed_at: datetime


@dataclass(frozen=True, slots=True)
class GraceChanged(Change):
    grace_s: float


@dataclass(frozen=True, slots=True)
class ProgramsChanged(Change):
    """A program inside has reported, or has ended."""

    programs: tuple[Program, ...]


@dataclass(frozen=True, slots=True)
class KeyTaken(Change):
    """It replaces another lease: requests with that lease's key now get this one."""

    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class ReleaseAsked(Change):
    release_reason: str
    release_asked_at: datetime
    grace_s: float
    ending: Ending


@dataclass(frozen=True, slots=True)
class Reclaimed(Change):
    """Like `ReleaseAsked`, because the capacity is needed elsewhere."""

    release_reason: str
    release_asked_at: datetime
    grace_s: float
    ending: Ending


@dataclass(frozen=True, slots=True)
class Promised(Change):
    """It winds down already, and now its capacity is needed elsewhere."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class NotDelivered(Change):
    """The source did not have the capacity after all."""

    release_reason: str
    release_asked_at: datetime


@dataclass(frozen=True, slots=True)
class EndForced(Change):
    """Whatever still runs in it is ended now."""

    grace_s: float = 0.0
    on_grace_end: OnGraceEnd = OnGraceEnd.KILL


@dataclass(frozen=True, slots=True)
class NodeLost(Change):
    release_reason: str
    release_asked_at: datetime
    ending: Ending


@dataclass(frozen=True, slots=True)
class Shrunk(Change):
    """The part of a lender is lost; the others' parts stay."""

    source: NodeName
    units: int
    resources: ResourceVector
    shares: tuple[Share, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupLost(Change):
    """The reservation's group vanished and could not be made again."""

    release_reason: str
    release_asked_at: datetime
    held_by: None = None


@dataclass(frozen=True, slots=True)
class Returned(Change):
    """Its capacity is back."""


_GRANTING, _INTERRUPTED, _ACTIVE = LeaseState.GRANTING, LeaseState.INTERRUPTED, LeaseState.ACTIVE
_RELEASING, _RECLAIMING = LeaseState.RELEASING, LeaseState.RECLAIMING
_LOST, _RELEASED = LeaseState.LOST, LeaseState.RELEASED


def _stays(*states: LeaseState) -> dict[LeaseState, LeaseState]:
    return {state: state for state in states}


CHANGES: Final[Mapping[type[Change], Mapping[LeaseState, LeaseState]]] = {
    # A grant that was released while it was under way may still be delivered: it goes on winding down.
    Delivered: {_GRANTING: _ACTIVE} | _stays(_RELEASING, _RECLAIMING),
    NotDelivered: {_GRANTING: _RELEASING},
    Interrupted: {_GRANTING: _INTERRUPTED},
    Resumed: {_INTERRUPTED: _GRANTING},
    Regrouped: _stays(_ACTIVE),
    Renewed: _stays(_ACTIVE),
    RenewalUndone: _stays(_ACTIVE, _RELEASING, _RECLAIMING, _LOST),
    NoticeGiven: _stays(_ACTIVE),
    NoticeWithdrawn: _stays(_ACTIVE),
    IdleChanged: _stays(_ACTIVE),
    Grown: _stays(_ACTIVE, _RELEASING, _RECLAIMING, _LOST),
    Checkpointed: _stays(_GRANTING, _INTERRUPTED, _ACTIVE, _RELEASING, _RECLAIMING, _LOST),
    GraceChanged: _stays(_GRANTING, _INTERRUPTED, _ACTIVE, _RELEASING, _RECLAIMING, _LOST),
    ProgramsChanged: _stays(_ACTIVE, _RELEASING, _RECLAIMING, _LOST),
    KeyTaken: _stays(_ACTIVE),
    ReleaseAsked: dict.fromkeys((_GRANTING, _INTERRUPTED, _ACTIVE), _RELEASING),
    Reclaimed: dict.fromkeys((_GRANTING, _INTERRUPTED, _ACTIVE), _RECLAIMING),
    Promised: {_RELEASING: _RECLAIMING},
    EndForced: _stays(_RELEASING, _RECLAIMING, _LOST),
    NodeLost: dict.fromkeys((_INTERRUPTED, _ACTIVE, _RELEASING, _RECLAIMING), _LOST),
    Shrunk: _stays(_ACTIVE),
    GroupLost: {_ACTIVE: _LOST},
    Returned: dict.fromkeys((_RELEASING, _RECLAIMING, _LOST), _RELEASED),
}
LEGAL: Final[Mapping[LeaseState, frozenset[LeaseState]]] = {
    state: frozenset(steps[state] for steps in CHANGES.values() if state in steps) for state in LeaseState
}
"""The states that each state can lead to, its own included if a change keeps it."""

_SPLITTABLE: Final = (_INTERRUPTED, _ACTIVE)
_ROUNDING: Final = timedelta(milliseconds=1)


def changed(lease: Lease, change: Change) -> Lease:
    """The lease after the change; a change that is not in `CHANGES` is a bug."""
    then = CHANGES[type(change)].get(lease.state)
    if then is None:
        raise IllegalTransition(f"boost {lease.id}: {type(change).__name__} while it is {lease.state}")
    sets: dict[str, object] = {each.name: getattr(change, each.name) for each in fields(change)}  # type: ignore[arg-type]
    if then is not _ACTIVE:
        sets |= {"notice": None, "idle": None}
    if isinstance(change, NoticeWithdrawn) and lease.ending is not None and lease.ending.cause is not EndCause.IDLE:
        raise IllegalTransition(f"boost {lease.id}: its notice ({lease.ending.cause}) cannot be withdrawn")
    after = replace(lease, state=then, **sets)  # type: ignore[arg-type]
    if lease.is_promised and _is_put_off(lease.deadline, after):
        raise IllegalTransition(f"boost {lease.id}: its capacity is promised for {lease.deadline}, not later")
    return after


def _is_put_off(promised: datetime | None, after: Lease) -> bool:
    """A release without a grace period puts nothing off, even if it comes late."""
    if promised is None or after.deadline is None or not after.grace_s:
        return False
    return after.deadline > promised + _ROUNDING


def split(lease: Lease, units: int, given_id: str, *, source: NodeName | None = None) -> tuple[Lease, Lease]:
    """Split off a second lease of `units`; the rest keeps this lease's id. Together they equal the original.

    Of several lenders, `source` gets it back, or if none is given the last ones. The second lease takes over that much
    of the notice. Only for leases whose delivery can be split.
    """
    if not lease.delivery.can_split or not 0 < units < lease.units:
        raise ValueError(f"boost {lease.id}: {units} of {lease.units} units of a {lease.delivery} cannot be split off")
    if lease.state not in _SPLITTABLE:
        raise IllegalTransition(f"boost {lease.id}: split while it is {lease.state}")
    kept, given = lease.divided(units, source)
    given = replace(given, id=given_id, idempotency_key=None, programs=())
    if (notice := lease.notice) is not None:
        left: Notice | None = notice
        for part in given.shares or (given,):
            left = None if left is None else left.without(part.source, part.units)
        taken = notice.units - (0 if left is None else left.units)
        given = replace(given, notice=replace(notice, units=taken, wanted=()) if taken else None)
        given = given if taken else replace(given, ending=None)
        kept = replace(kept, notice=left)
        kept = kept if left is not None else replace(kept, ending=None)
    return kept, given


def joined_by(lease: Lease, other: Lease) -> Lease:
    """The lease with another one as a further part of it: together they hold what both held.

    Only for active leases of one kind whose delivery can be split. What the other's lender gives already grows.
    """
    if lease.state is not _ACTIVE or other.state is not _ACTIVE or other.shares:
        raise IllegalTransition(f"boost {lease.id} ({lease.state}): joined by {other.id} ({other.state})")
    if (lease.target, lease.kind, lease.delivery) != (other.target, other.kind, other.delivery) or (
        not lease.delivery.can_split
    ):
        raise ValueError(f"boost {other.id} cannot be a part of boost {lease.id}")
    return lease.joined_by(other)


def regrouped(lease: Lease, made_for: Lease, group_id: str) -> Regrouped:
    """The change with which a lease gets a group that was made for it, perhaps before it lost a lender."""
    numbers = {share.bundle: number for number, share in enumerate(made_for.shares, start=1)}
    return Regrouped(group_id, tuple(replace(share, bundle=numbers[share.bundle]) for share in lease.shares))


def shrunk(lease: Lease, lost: NodeName, warning: str) -> Shrunk:
    """The change with which a lease loses the part of one of its lenders."""
    left = lease.without(lost)
    return Shrunk(left.source, left.units, left.resources, left.shares, (*lease.warnings, warning))


def as_returned(lease: Lease) -> Lease:
    """The final state of a lease that has left the ledger meanwhile; for answers only."""
    return replace(lease, state=_RELEASED)
