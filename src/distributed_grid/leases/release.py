"""Release: a lease, or a part of it, winds down until its capacity is back.

Release by the user, expiry, preemption and the shutdown of grid all take this path; only the reason differs. To release
a part, grid splits the lease in two, and the second one winds down.
"""

import uuid
from datetime import datetime
from typing import Final

from distributed_grid.decide.leases.lifecycle import GroupEnd, group_end, may_have_grace, release_of
from distributed_grid.errors import InvalidAmount, Refused
from distributed_grid.execution.capacity import Convergence
from distributed_grid.faults import Point, fault_point
from distributed_grid.leases import grant
from distributed_grid.leases.elastic import end_all_growth, is_growth_given_back
from distributed_grid.leases.state import EngineContext
from distributed_grid.leases.view import boost_dict, ending_of
from distributed_grid.model.endings import EndCause, Ending, what_happens_then
from distributed_grid.model.lease_changes import GraceChanged, Returned, as_returned
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import amount_of, describe, units_of
from distributed_grid.model.times import stamp

_PARTS: Final = uuid.UUID("5b0ff39e-5f0c-4c0e-8a52-8f6b0f0f2c51")


def part_id(idempotency_key: str | None) -> str:
    """The id of a part that is given up. A repeated request with the same key gets the same id."""
    return grant.new_id() if idempotency_key is None else str(uuid.uuid5(_PARTS, idempotency_key))


def units_to_give(p: EngineContext, boost_id: str, amount: object) -> int | None:
    """The units of a boost to give up, from an amount as users write it; None means all of it."""
    return None if amount is None else units_of(p.ledger.find(boost_id).kind, amount)


def part_to_give(p: EngineContext, lease: Lease, units: int, given_id: str, *, who: str) -> Lease:
    """The lease to release when `units` of this one are given up: a new one, or this one if that is all of it.

    Raises `InvalidAmount` if the lease has fewer units, and `Refused` if it cannot be divided.
    """
    if units > lease.units:
        raise InvalidAmount(
            f"Boost {lease.id[:8]} has {describe(lease.kind, lease.units)}, fewer than {describe(lease.kind, units)}",
            try_next=f"To release all of it: grid boost release {lease.id[:8]}",
        )
    if units == lease.units:
        return lease
    if not lease.delivery.can_split:
        left = amount_of(lease.kind, lease.units - units)
        raise Refused(
            f"Boost {lease.id[:8]} is reserved, and cannot be released in part",
            because=[f"Ray cannot make a {lease.delivery.held_in} smaller"],
            try_next=f"Release all of it (grid boost release {lease.id[:8]}), and request less: grid boost request "
            f"{lease.target} {lease.kind} {left} --delivery {lease.delivery} --source {lease.source}",
        )
    return split_off(p, lease, units, given_id, who=who)


def split_off(
    p: EngineContext, lease: Lease, units: int, given_id: str, *, who: str, source: NodeName | None = None
) -> Lease:
    """Split `units` off into a new lease, which takes over that much of the notice; the caller lets it wind down.

    The split is atomic on disk: one lease before the next write, two after it.
    """
    _, given = p.ledger.split(lease, units, given_id, source=source)
    fault_point(Point.RELEASE_SPLIT)
    p.journal.note(
        "split",
        f"{describe(lease.kind, units)} of {lease.describe()} are boost {given.id[:8]} now",
        lease=given,
        node=lease.target,
        who=who,
        part_of=lease.id,
    )
    return given


def begin_release(
    p: EngineContext,
    lease: Lease,
    reason: str,
    *,
    grace_s: float | None = None,
    who: str = "grid",
    is_reclaimed: bool | None = None,
    ending: Ending | None = None,
) -> Lease:
    """Mark a lease as winding down, as `release_of` says. The caller commits."""
    change = release_of(lease, reason, p.now(), by=who, grace_s=grace_s, is_reclaimed=is_reclaimed, ending=ending)
    winding = p.ledger.apply(lease, change)
    shown, then = ending_of(winding), ""
    if shown is not None and winding.deadline is not None and winding.grace_s > 0:
        then = f"; {what_happens_then(shown, stamp(winding.deadline))}"
    p.journal.note(
        "release_asked",
        f"{winding.describe()}: {reason}{then}",
        lease=winding,
        node=winding.target,
        who=who,
        ending=shown,
    )
    return winding


def change_grace(p: EngineContext, lease: Lease, grace_s: float, *, who: str) -> Lease:
    """Change the grace period of a lease. The caller commits.

    A lease that another request waits for keeps its deadline or gets an earlier one, never a later one.
    """
    if not may_have_grace(lease, grace_s):
        return lease
    if lease.is_winding_down:
        message = f"{lease.describe()}: the grace period is {grace_s:g} s, not {lease.grace_s:g} s"
        p.journal.note("grace_changed", message, lease=lease, node=lease.target, who=who)
    return p.ledger.apply(lease, GraceChanged(grace_s))


async def try_finish(
    p: EngineContext, lease: Lease, convergence: Convergence | None = None, *, idle: bool = False
) -> Lease:
    """Try once to finish a winding-down lease; it stays as it is while its capacity is in use. The caller commits.

    `convergence`: a round that began after the lease started to wind down. `idle`: its group was seen idle since then.
    """
    if lease.delivery.moves_totals:
        is_back = (convergence or await p.applier.converge()).returned(lease)
    else:
        is_back = await _reservation_gone(p, lease, idle=idle)
    current = p.ledger.get(lease.id)
    if current is None:  # it was finished elsewhere meanwhile
        return as_returned(lease)
    if not is_back:
        return current
    done = p.ledger.apply(current, Returned())
    p.last_return = p.now()
    fault_point(Point.RELEASE_HOME)
    p.notes.pop(lease.id, None)
    p.inside.pop(lease.id, None)
    p.journal.note(
        "returned",
        f"{done.describe()}: capacity is back ({done.release_reason})",
        lease=done,
        node=done.source,
        boost=boost_dict(done),
    )
    return done


async def _reservation_gone(p: EngineContext, lease: Lease, *, idle: bool) -> bool:
    if lease.elastic is not None and not await end_all_growth(p, lease):
        return False
    if lease.held_by is None:
        return True
    if lease.grows:
        if is_back := await is_growth_given_back(p, lease):
            await p.applier.remove_group(lease.delivery, lease.held_by, in_use=False)
        return is_back
    now = p.now()
    holders = () if idle or lease.state is LeaseState.LOST else await p.applier.holders(lease)
    group, lease = lease.held_by, p.ledger.get(lease.id) or lease  # a program may have entered meanwhile
    match group_end(lease, now, is_in_use=bool(holders)):
        case GroupEnd.IN_USE:
            left_s = ((lease.deadline or now) - now).total_seconds()
            who = holders[0].describe() if holders else _who_is_inside(lease, now)
            p.notes[lease.id] = (f"in use: {who}; terminated in {left_s:.0f} s",)
            return False
        case GroupEnd.BEING_ENDED:
            p.notes[lease.id] = (f"{_who_is_inside(lease, now)} is being ended",)
            return False
        case GroupEnd.OVER:
            await p.applier.remove_group(lease.delivery, group, in_use=bool(holders))
            return True


def _who_is_inside(lease: Lease, now: datetime) -> str:
    return ", ".join(program.label for program in lease.programs_at(now)) or lease.label or "its program"


async def end_all_if_file_was_removed(p: EngineContext) -> None:
    """End all boosts if their state file was removed. Users may delete it at any time."""
    if not p.file.was_removed():
        return
    live = [lease for lease in p.ledger if lease.state in (LeaseState.INTERRUPTED, LeaseState.ACTIVE)]
    if p.unwritten is None or live:  # the file stays missing until a write succeeds
        p.journal.note("state_file_removed", f"{p.file.path.name} was removed: {len(live)} boosts end")
    for lease in live:
        removed = Ending(EndCause.FILE_REMOVED, "grid")
        begin_release(p, lease, "the state file was removed", grace_s=0.0, is_reclaimed=False, ending=removed)
    await p.try_commit()
    p.something_changed()
