"""Reclaim: takes leases back for a waiting request, for their lender, or from a cordoned node.

A holder with a reclaim hook (`Lease.reclaim_hook`) gets a notice first. It has half of the grace period to save its
work and to give up the amount itself; what it does not give up by then is taken. In any case the capacity is back at
the end of the grace period, as the waiting request was promised.

`leases/notices.py` delivers the notices.
"""

from datetime import datetime

from distributed_grid.decide.leases.lifecycle import (
    Take,
    could_come,
    could_split_off,
    is_notice_over,
    must_leave,
    reclaim_of,
)
from distributed_grid.faults import Point, fault_point
from distributed_grid.leases.release import begin_release, change_grace, part_id, part_to_give, split_off
from distributed_grid.leases.state import EngineContext
from distributed_grid.leases.view import ending_of
from distributed_grid.model.endings import Claimant, EndCause, Ending
from distributed_grid.model.lease_changes import Checkpointed, NoticeGiven, Promised, as_returned
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeName, node_named
from distributed_grid.model.notices import Reply
from distributed_grid.model.requests import Waiting
from distributed_grid.model.resources import describe
from distributed_grid.model.times import span, stamp
from distributed_grid.model.validators import grace_period


def why_it_yields(victim: Lease, waiting: Waiting, reason: str, now: datetime) -> tuple[str, Ending]:
    """The reason for the reclaim of a lease that yields to a request, and its ending."""
    ask = waiting.ask
    wants, is_for_window = ask.describe(), False
    if waiting.occurrence is not None:
        wants += f" (window {waiting.occurrence.window})"
        # It yields even if it is used again: any such lease would.
        ends_before = victim.expires_at <= waiting.occurrence.begin
        is_for_window = victim.priority.rank < ask.priority.rank + ends_before
    claimant = Claimant(waiting.id, ask.requester, ask.team, ask.priority, wants)
    if victim.idle is not None and victim.yields_as_idle and not victim.grows and not is_for_window:
        unused = f"it has not been used for {span((now - victim.idle.since).total_seconds())}"
        return unused, Ending(EndCause.IDLE, ask.requester or "grid", claimant)
    return reason, Ending(EndCause.PREEMPTED, ask.requester or "grid", claimant)


def by_policy(p: EngineContext, cause: EndCause) -> Ending:
    """The ending of leases that grid ends by itself."""
    return Ending(cause, f"grid, policy {p.sharing.policy}")


def reclaim(p: EngineContext, lease: Lease, reason: str, ending: Ending, *, units: int | None = None) -> Lease:
    """Take a lease back, or `units` of it, because the capacity is needed elsewhere. The caller commits.

    The lease may be the part of one of several lenders.

    `ending` names who reclaims it and for which request; the holder's notice repeats this.

    If the holder gets a notice first, returns the lease with that notice. Otherwise returns the lease that winds down:
    this one, or, if a part is enough, a new one with that part. A reservation comes back whole. A lease that is still
    being granted, or has ended, is returned as it is.

    Without a notice, each call takes `units` more: the caller counts what is `coming_back` already.
    """
    current = p.ledger.get(lease.whole_id)
    if current is None:
        return as_returned(lease)
    source = lease.source if lease.id != current.id and could_split_off(current, lease) else None
    if source is not None:
        units = lease.units if units is None else min(units, lease.units)
    match reclaim_of(current, units, reason, ending, p.now(), source=source):
        case None:
            return current
        case Promised() as change:
            asked, message = p.ledger.apply(current, change), f"{current.describe()}: {reason}"
        case Take(wanted):
            asked = take(p, current, wanted, reason, ending, source=source)
            message = f"{_part(current, wanted)}: {reason}"
        case NoticeGiven(notice) as change:
            asked = p.ledger.apply(current, change)
            fault_point(Point.NOTICE_GIVEN)
            until = stamp(notice.deadline)
            unless = "used or released" if ending.cause is EndCause.IDLE else "released"
            message = f"{_part(current, notice.units)}: {reason}; taken back at {until} unless {unless}"
    p.journal.note("reclaim_asked", message, lease=asked, node=asked.target, who=ending.by, ending=ending_of(asked))
    p.something_changed()
    return asked


def _part(lease: Lease, units: int) -> str:
    return f"{'' if units == lease.units else f'{describe(lease.kind, units)} of '}{lease.describe()}"


def take(
    p: EngineContext,
    lease: Lease,
    units: int,
    reason: str,
    ending: Ending | None = None,
    *,
    source: NodeName | None = None,
    is_idle: bool = False,
) -> Lease:
    """Let `units` of an active lease, or all of it, wind down because the capacity is needed. The caller commits.

    `source`: of several lenders, the one that gets it back. `is_idle`: work that begins to use an idle transfer at this
    moment is not ended for the request.
    """
    ending = ending or lease.ending
    who = "grid" if ending is None else ending.by
    part = lease if units >= lease.units else split_off(p, lease, units, part_id(None), who=who, source=source)
    spares_work = is_idle and lease.delivery.moves_totals
    grace_s = 0.0 if is_idle else None
    winding = begin_release(p, part, reason, grace_s=grace_s, who=who, is_reclaimed=not spares_work, ending=ending)
    p.something_changed()
    return winding


def take_what_is_due(p: EngineContext) -> bool:
    """Take what holders have not given up by the end of their notices. True: the ledger changed; the caller commits."""
    due = [lease for lease in p.ledger if is_notice_over(lease, p.now())]
    for lease in due:
        take_what_is_noticed(p, lease)
    return bool(due)


def take_what_is_noticed(p: EngineContext, lease: Lease, *, is_idle: bool = False) -> None:
    """Take what the notice of a lease names. The caller commits."""
    assert lease.notice is not None
    for one in lease.notice.wanted:
        if (left := p.ledger.active(lease)) is not None:
            take(p, left, one.units, lease.notice.reason, lease.ending, source=one.source, is_idle=is_idle)
    left = p.ledger.active(lease)
    if left is not None and left.notice is not None:
        take(p, left, could_come(left, left.notice.units), left.notice.reason, is_idle=is_idle)


async def take_reply(p: EngineContext, noticed: Lease, reply: Reply, *, who: str) -> None:
    """Carry out the holder's answer to its notice, or to the report that its lease is idle; raises `Refused` if it
    cannot be done.

    An answer that arrives after the notice is over gives nothing up: the amount has been taken, or given, by then.
    """
    lease = p.ledger.get(noticed.id)
    if lease is None or reply == Reply():
        return
    if reply.checkpointed:
        lease = note_checkpoint(p, lease, who=who)
    try:
        is_open = lease.state is LeaseState.ACTIVE and noticed.notice is None
        if lease.notice is not None:
            is_open = lease.notice.is_of(noticed.notice)
        if (reply.release or reply.give_up) and is_open:
            units = lease.units if reply.release else min(reply.give_up, lease.units)
            part = part_to_give(p, lease, units, part_id(None), who=who)
            # A program inside whose hook gives the lease up is done: it ends now, not at the deadline.
            grace_s = 0.0 if reply.release and lease.programs_at(p.now()) else None
            reason = "its work does not use it" if lease.notice is None else lease.notice.reason
            begin_release(p, part, reason, who=who, grace_s=grace_s)
    finally:
        await p.try_commit()
        p.something_changed()


def note_checkpoint(p: EngineContext, lease: Lease, *, who: str) -> Lease:
    """Record that the holder has saved its work: if a lease must yield, this one loses little. The caller commits."""
    saved = p.ledger.apply(lease, Checkpointed(p.now()))
    p.journal.note("checkpointed", f"{saved.describe()}: its work is saved", lease=saved, node=saved.target, who=who)
    return saved


async def cordon(p: EngineContext, name: NodeName, *, grace_s: object = None, who: str = "grid") -> list[Lease]:
    """Take the node out of sharing; returns the leases that are reclaimed because of it."""
    grace = None if grace_s is None else grace_period(grace_s, p.longest_grace_s)
    await _check(p, name)
    if name not in p.sharing.cordoned:
        p.sharing.cordoned.add(name)
        p.journal.note(
            "cordoned", f"{name} is cordoned: it returns everything and shares nothing from now on", node=name, who=who
        )
    await p.commit_sharing()  # on disk before any lease is reclaimed: after a crash the reconciler does the rest
    leases = [lease for lease in p.ledger if name in (*lease.sources, lease.target)]
    if grace is not None:
        leases = [change_grace(p, lease, grace, who=who) for lease in leases]
    reclaimed = [_reclaim_from(p, name, lease, who) for lease in leases]
    await p.try_commit()
    p.something_changed()
    return reclaimed


def reclaim_from_cordoned(p: EngineContext) -> bool:
    """Reclaim what cordoned nodes still lend or borrow; normally `cordon` has done so. True: the caller commits."""
    reclaimed = [
        _reclaim_from(p, name, lease, "grid")
        for name in sorted(p.sharing.cordoned)
        for lease in p.ledger
        if must_leave(lease, (name,))
    ]
    return bool(reclaimed)


def _reclaim_from(p: EngineContext, node: NodeName, lease: Lease, who: str) -> Lease:
    """Of several lenders, only the cordoned one gets its part back."""
    part = next((part for part in lease.parts if part.source == node and lease.target != node), lease)
    return reclaim(p, part, f"{node} is cordoned", Ending(EndCause.COOLDOWN, who))


async def uncordon(p: EngineContext, name: NodeName, *, who: str = "grid") -> None:
    """Let the node share again."""
    await _check(p, name)
    if name in p.sharing.cordoned:
        p.sharing.cordoned.discard(name)
        p.journal.note("uncordoned", f"{name} lends and borrows again", node=name, who=who)
    await p.commit_sharing()
    p.something_changed()


async def _check(p: EngineContext, name: NodeName) -> None:
    nodes = await p.look()
    if name not in p.sharing.cordoned:
        node_named(nodes, name)
