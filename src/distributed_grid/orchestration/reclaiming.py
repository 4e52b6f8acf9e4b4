"""Leases that are taken back for somebody else.

A holder that said how (`Lease.reclaim_hook`) is asked first, and has half of the grace period to save its work and to
give up what is asked by itself; what it does not give by then is taken. Either way the capacity is back at the end of
the grace period, whatever the lease says about that: who waits for it was promised so.
"""

from dataclasses import replace
from datetime import timedelta

from distributed_grid.faults import Point, fault_point
from distributed_grid.model.endings import Claimant, EndCause, Ending
from distributed_grid.model.leases import Delivery, Lease, LeaseState, Notice
from distributed_grid.model.notices import Reply
from distributed_grid.model.resources import describe
from distributed_grid.model.waiting import Waiting
from distributed_grid.orchestration.boost_view import ending_of
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.returning import begin_release
from distributed_grid.orchestration.splitting import part_id, part_to_give, split_off


def preempted_by(waiting: Waiting) -> Ending:
    """For leases that yield to a request."""
    ask = waiting.ask
    claimant = Claimant(waiting.id, ask.requester, ask.team, ask.priority, ask.describe())
    return Ending(EndCause.PREEMPTED, ask.requester or "grid", claimant)


def by_policy(p: Parts, cause: EndCause) -> Ending:
    """For what grid does by itself."""
    return Ending(cause, f"grid, policy {p.sharing.policy}")


def ask_back(p: Parts, lease: Lease, reason: str, ending: Ending, *, units: int | None = None) -> Lease:
    """Take a lease back, or `units` of it, for somebody who needs it. It is not on disk yet: the caller commits.

    `ending` says who asks, and for whom: the holder is told.

    Returns the lease with its notice, if its holder is asked first; else the lease that winds down: this one, or, if
    part of it is enough, a new one with that part. A reservation comes back whole. One that is still being granted, or
    has ended, is returned as it is.

    Where nobody is asked first, each call takes `units` more: who calls counts what is `coming_back` already.
    """
    current = p.ledger.get(lease.id)
    if current is None:
        return replace(lease, state=LeaseState.RELEASED)
    if current.state is LeaseState.RELEASING and not current.wanted_back:
        # On its way already; now somebody waits for it. Why it goes, and by when, stays.
        before = current.ending or ending
        waited_for = p.ledger.put(
            replace(current, wanted_back=True, ending=replace(before, claimant=before.claimant or ending.claimant))
        )
        _tell(p, f"{current.describe()}: {reason}", waited_for, ending.by)
        p.something_changed()
        return waited_for
    if current.state is not LeaseState.ACTIVE or current.id in p.in_flight:
        return current
    wanted = _can_come(current, units)
    told = f"{describe(current.kind, wanted)} of {current.describe()}"
    if current.reclaim_hook is None or current.grace_s <= 0:
        winding = take(p, current, wanted, reason, ending)
        _tell(p, f"{told}: {reason}", winding, ending.by)
        return winding
    if current.notice is not None and current.notice.units >= wanted:
        return current
    now = p.now()
    notice = Notice(wanted, reason, now, now + timedelta(seconds=current.grace_s / 2))
    if current.notice is not None:  # asked for more than before: that buys no time
        notice = replace(current.notice, units=wanted, reason=reason)
    asked = p.ledger.put(current.to(LeaseState.ACTIVE, notice=notice, ending=ending))
    fault_point(Point.NOTICE_GIVEN)
    until = f"{notice.deadline:%H:%M:%S} UTC"
    _tell(p, f"{told}: {reason}; taken at {until} if not given", asked, ending.by)
    p.something_changed()
    return asked


def _tell(p: Parts, told: str, lease: Lease, by: str) -> None:
    p.journal.note("reclaim_asked", told, lease=lease, node=lease.target, who=by, ending=ending_of(lease))


def take(p: Parts, lease: Lease, units: int, reason: str, ending: Ending | None = None) -> Lease:
    """Let `units` of an active lease, or all of it, wind down for somebody who waits. The caller commits."""
    ending = ending or lease.ending
    who = "grid" if ending is None else ending.by
    part = lease if units >= lease.units else split_off(p, lease, units, part_id(None), who=who)
    winding = begin_release(p, part, reason, who=who, wanted_back=True, ending=ending)
    p.something_changed()
    return winding


def take_what_is_due(p: Parts) -> bool:
    """Notices whose time is over: what was not given is taken. True: something was, and is not on disk yet."""
    now = p.now()
    due = [lease for lease in p.ledger if lease.notice is not None and lease.notice.deadline <= now]
    for lease in due:
        assert lease.notice is not None
        if lease.state is LeaseState.ACTIVE:
            take(p, lease, _can_come(lease, lease.notice.units), lease.notice.reason)
        else:
            p.ledger.put(replace(lease, notice=None))  # it goes already, and nobody need be asked for it
    return bool(due)


async def take_reply(p: Parts, asked: Lease, reply: Reply, *, who: str) -> None:
    """Carry out what the holder of a lease answered to its notice; raises `Refused` if it cannot be done.

    An answer that comes when the notice is over gives nothing up: what was asked is taken, or given, by then.
    """
    lease = p.ledger.get(asked.id)
    if lease is None or reply == Reply():
        return
    if reply.checkpointed:
        lease = note_checkpoint(p, lease, who=who)
    try:
        if (reply.release or reply.give_up) and lease.notice and lease.notice.is_of(asked.notice):
            units = lease.units if reply.release else min(reply.give_up, lease.units)
            part = part_to_give(p, lease, units, part_id(None), who=who)
            # A program inside whose hook gives the lease up is done: it is ended now, not at the deadline.
            grace_s = 0.0 if reply.release and lease.programs_at(p.now()) else None
            begin_release(p, part, lease.notice.reason, who=who, grace_s=grace_s)
    finally:
        await p.try_commit()
        p.something_changed()


def note_checkpoint(p: Parts, lease: Lease, *, who: str) -> Lease:
    """The holder has saved its work: if somebody must yield, this one loses little. The caller commits."""
    saved = p.ledger.put(replace(lease, checkpointed_at=p.now()))
    p.journal.note("checkpointed", f"{saved.describe()}: its work is saved", lease=saved, node=saved.target, who=who)
    return saved


def _can_come(lease: Lease, units: int | None) -> int:
    """What can be taken of a lease for somebody who wants `units`: a placement group cannot shrink."""
    if units is None or lease.delivery is not Delivery.TRANSFER:
        return lease.units
    return max(1, min(units, lease.units))
