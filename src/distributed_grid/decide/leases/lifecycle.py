"""The life of a lease, from its grant to its return: which change is due, and what it says.

`model/lease_changes.py` has the changes that are legal; `leases/` carries out what is decided here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from distributed_grid.model.endings import ENDING_S, EndCause, Ending, OnGraceEnd
from distributed_grid.model.lease_changes import NoticeGiven, Promised, Reclaimed, ReleaseAsked
from distributed_grid.model.leases import Lease, LeaseState, Notice, Share
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plans import Grant
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import total

_NODE_GRACE: Final = timedelta(seconds=2)
_START_GRACE: Final = timedelta(seconds=30)


def lease_from(
    grants: Sequence[Grant], lease_id: str, now: datetime, *, grace_s: float, on_grace_end: OnGraceEnd
) -> Lease:
    """The lease that a grant becomes, or the grants of all its parts together. `grace_s` and `on_grace_end` apply where
    the request says nothing."""
    first, ask = grants[0], grants[0].ask
    shares = [
        Share(grant.source, grant.ask.units, grant.resources, grant.why_it, number)
        for number, grant in enumerate(grants, start=1)
    ]
    return Lease(
        id=lease_id,
        source=first.source,
        resources=total([grant.resources for grant in grants]),
        delivery=first.delivery,
        delivery_reason=first.delivery_reason,
        state=LeaseState.GRANTING,
        allocated_at=now,
        expires_at=now + timedelta(seconds=ask.duration_s),
        warnings=tuple(dict.fromkeys(warning for grant in grants for warning in grant.warnings)),
        shares=tuple(shares) if len(shares) > 1 else (),
        **ask.terms
        | {
            "units": sum(grant.ask.units for grant in grants),
            "grace_s": grace_s if ask.grace_s is None else ask.grace_s,
            "on_grace_end": ask.on_grace_end or on_grace_end,
        },
    )


# -- what is due -----------------------------------------------------------------------------------------------


def is_expired(lease: Lease, now: datetime) -> bool:
    return lease.state is LeaseState.ACTIVE and lease.expires_at <= now


def is_notice_over(lease: Lease, now: datetime) -> bool:
    """Whether what a notice names is to be taken. Of an idle lease, `decide.leases.idle` says so."""
    return lease.notice is not None and lease.notice.deadline <= now and not lease.is_reclaimed_as_idle


def must_leave(lease: Lease, cordoned: Collection[NodeName]) -> bool:
    """Whether it is still to be reclaimed because a node is cordoned."""
    is_asked = lease.state is not LeaseState.ACTIVE or lease.notice is not None
    return not is_asked and not {*lease.sources, lease.target}.isdisjoint(cordoned)


def is_gone(absent_since: datetime, now: datetime, *, began: datetime, was_seen: bool) -> bool:
    """Whether a node that is absent counts as gone; `began`: when grid started; `was_seen`: seen since then.

    After a restart of the whole cluster, nodes come back one by one: those not seen yet have more time.
    """
    may_still_come = not was_seen and now - began < _START_GRACE
    return now - absent_since >= (_START_GRACE if may_still_come else _NODE_GRACE)


def is_lost_with(lease: Lease, gone: Collection[NodeName]) -> bool:
    """Whether it is lost with these nodes: without its target, or without all of its lenders. A grant in progress
    detects the loss itself."""
    is_settled = lease.state not in (LeaseState.LOST, LeaseState.GRANTING)
    is_homeless = lease.delivery.needs_target and lease.target in gone
    return is_settled and (is_homeless or all(source in gone for source in lease.sources))


def lost_lenders(lease: Lease, gone: Collection[NodeName]) -> tuple[NodeName, ...]:
    """Of several lenders, those whose parts are lost with these nodes while the rest of the lease remains."""
    if lease.state is not LeaseState.ACTIVE or is_lost_with(lease, gone):
        return ()
    return tuple(source for source in lease.sources if source in gone)


def replacement_of(lost: Lease, whole: Lease, now: datetime) -> Ask:
    """The request that replaces the lost part of a lease, for as long as the lease lasts.

    Its own lenders do not lend it more: what they could give was in the grant.
    """
    left_s = max(1.0, (whole.expires_at - now).total_seconds())
    return replace(Ask.again(lost), joins=whole.id, duration_s=left_s, delivery=str(whole.delivery))


def may_join(lease: Lease, whole: Lease | None) -> bool:
    """Whether a lease can become a part of the one that it is for."""
    return lease.state is LeaseState.ACTIVE and whole is not None and whole.state is LeaseState.ACTIVE


# -- release and reclaim ---------------------------------------------------------------------------------------


def release_of(
    lease: Lease,
    reason: str,
    now: datetime,
    *,
    by: str,
    grace_s: float | None = None,
    is_reclaimed: bool | None = None,
    ending: Ending | None = None,
) -> ReleaseAsked | Reclaimed:
    """The change with which a lease begins to wind down.

    `is_reclaimed`: whether the capacity is needed elsewhere; by default, whether the holder has a notice. An answer to
    the notice gains no time: the grace period began with the notice. `ending`: why, by whom and for whom; by default,
    as the notice said, else that `by` released it.
    """
    is_reclaimed = lease.notice is not None if is_reclaimed is None else is_reclaimed
    grace_s = lease.grace_s if grace_s is None else grace_s
    if is_reclaimed and lease.notice is not None:
        spent_s = (now - lease.notice.asked_at).total_seconds()
        grace_s = max(0.0, min(grace_s, lease.grace_s - spent_s))
    change = Reclaimed if is_reclaimed else ReleaseAsked
    return change(reason, now, grace_s, ending or lease.ending or Ending(EndCause.RELEASED, by))


@dataclass(frozen=True, slots=True)
class Take:
    """So much of the lease winds down now, without a notice."""

    units: int


def reclaim_of(
    lease: Lease,
    units: int | None,
    reason: str,
    ending: Ending,
    now: datetime,
    *,
    source: NodeName | None = None,
) -> Take | NoticeGiven | Promised | None:
    """What a reclaim of a lease, or of `units` of it, does. None: nothing that is not done already.

    `source`: of several lenders, the one that needs it.

    A holder with a reclaim hook gets a notice first, and half of its grace period to give the amount up by itself. An
    idle lease always gets one, for the whole grace period: the notice is withdrawn if the lease is used again. A lease
    that winds down anyway keeps its reason and its deadline, and is promised from now on.
    """
    if lease.state is LeaseState.RELEASING:
        before = lease.ending or ending
        return Promised(replace(before, claimant=before.claimant or ending.claimant))
    if lease.state is not LeaseState.ACTIVE:
        return None
    wanted = could_come(lease, units)
    is_idle = ending.cause is EndCause.IDLE
    if not is_idle and (lease.reclaim_hook is None or lease.grace_s <= 0):
        return Take(wanted)
    notice_s = lease.grace_s if is_idle else lease.grace_s / 2
    given = lease.notice or Notice(0, reason, now, now + timedelta(seconds=notice_s))
    notice = replace(given, units=wanted) if source is None else given.also_for(source, wanted)
    if notice.units <= given.units:  # a larger notice gives the holder no more time
        return None
    return NoticeGiven(replace(notice, reason=reason), ending)


def could_come(lease: Lease, units: int | None) -> int:
    """How much of a lease to take when `units` are needed: a placement group cannot shrink."""
    if units is None or not lease.delivery.can_split:
        return lease.units
    return max(1, min(units, lease.units))


def could_split_off(whole: Lease, part: Lease) -> bool:
    """Whether the part of one of several lenders can be reclaimed alone."""
    return whole.delivery.can_split and whole.state is LeaseState.ACTIVE and part.units < whole.units


def may_have_grace(lease: Lease, grace_s: float) -> bool:
    """Whether the grace period may become this long; that of promised capacity only becomes shorter."""
    return grace_s < lease.grace_s or (grace_s > lease.grace_s and not lease.is_promised)


# -- the end of the grace period -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pressure:
    """What is done to work that still uses a transfer which winds down."""

    gates: bool = False
    """No new work starts on the target."""
    kills: bool = False
    """The youngest work ends."""


def pressure_on(lease: Lease, now: datetime) -> Pressure:
    """At the end of its grace period, what the lease says. If it is reclaimed, it is gated from the beginning."""
    is_over = now >= lease.grace_ends(lease.release_asked_at or now)
    then = lease.at_deadline
    return Pressure(gates=lease.is_reclaimed or (is_over and then.gates), kills=is_over and then.ends_work)


class GroupEnd(Enum):
    """Whether the group of a reservation that winds down may be removed."""

    IN_USE = "in use"  # until its deadline
    BEING_ENDED = "being ended"  # the launcher of the program inside ends it
    OVER = "over"


def group_end(lease: Lease, now: datetime, *, is_in_use: bool) -> GroupEnd:
    """`is_in_use`: Ray's tasks or actors run in it."""
    left_s = ((lease.deadline or now) - now).total_seconds()
    if left_s > 0 and (is_in_use or lease.is_inhabited(now)):
        return GroupEnd.IN_USE
    if left_s > -ENDING_S and lease.state is not LeaseState.LOST and lease.programs_at(now):
        return GroupEnd.BEING_ENDED
    return GroupEnd.OVER
