"""Windows in the queue's plan: which occurrences it has to know, and which leases end early so that they begin on time.

Each upcoming occurrence of a window is a request that `claims.ordered` puts ahead of all requests without a better
claim, and that gets a slot which begins when the occurrence does. So no plan grants what would be in its way.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.feasibility import obstacle
from distributed_grid.decide.capacity.returns import coming_back, is_overheld
from distributed_grid.decide.capacity.slots import Slot
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.queue.claims import Claim, hold_ends
from distributed_grid.decide.queue.preemption import Preemption
from distributed_grid.model.endings import ENDING_S
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.requests import Occurrence, Waiting
from distributed_grid.model.windows import Window

GAP: Final = timedelta(days=1)
"""A plan also knows what begins in this time after the longest lease: a request that waits may start after a window."""
FARTHEST: Final = timedelta(days=60)
"""Later occurrences are left out of plans, to keep them quick: windows repeat every week, so a lease that would be in
their way is in the way of an earlier one, too."""
_SPARE: Final = timedelta(seconds=3)
"""How long before a window begins its capacity should be back."""
_SPARE_WITH_PROGRAMS: Final = timedelta(seconds=ENDING_S + _SPARE.total_seconds())
"""The same where programs get a moment to end after the deadline."""


def promised(
    windows: Iterable[Window], now: datetime, until: datetime, requested: Collection[str] = ()
) -> tuple[Waiting, ...]:
    """The occurrences that begin from now on and before `until`, as requests.

    `requested`: the ids of those that are requested already.
    """
    return tuple(
        one
        for window in windows
        for occurrence in window.occurrences(now, until)
        if occurrence.begin > now and (one := window.request(occurrence, now)).id not in requested
    )


def horizon(longest_s: float, now: datetime) -> datetime:
    """Until when a plan has to know windows, if leases in it last up to `longest_s`."""
    return now + min(timedelta(seconds=longest_s) + GAP, FARTHEST)


def due(window: Window, now: datetime) -> Occurrence | None:
    """The occurrence of a window that has begun and was not requested yet."""
    for occurrence in window.occurrences(now, now + timedelta.resolution):
        if occurrence.begin <= now and (window.begun_at is None or window.begun_at < occurrence.begin):
            return occurrence
    return None


def slept_through(window: Window, now: datetime) -> tuple[Occurrence, ...]:
    """The occurrences that are over and were never requested: the controller was away."""
    since = window.created_at if window.begun_at is None else window.begun_at
    found = window.occurrences(max(since, now - FARTHEST), now)
    return tuple(
        each for each in found if each.end <= now and (window.begun_at is None or window.begun_at < each.begin)
    )


def asked_by(lease: Lease, begin: datetime, now: datetime) -> datetime:
    """When a lease is asked for, so that its grace period is over and its capacity back when a window begins.

    A lease that was released, and that its work may keep for as long as it wants, has until just before.
    """
    spare = _SPARE_WITH_PROGRAMS if lease.programs_at(now) else _SPARE
    grace = timedelta() if lease.is_winding_down else timedelta(seconds=lease.grace_s)
    return begin - grace - spare


def over_by(begin: datetime, leases: Iterable[Lease], given_up: Iterable[Lease], claim: Claim) -> tuple[Lease, ...]:
    """The leases that end before a window begins, or have ended and may be held by their work for longer.

    All of them can be back by then: `ending_late` says which have to be asked for. A lease with a better claim than the
    window keeps its time.
    """
    spared = {lease.id for lease in given_up}
    return tuple(
        lease
        for lease in leases
        if lease.id not in spared
        and (
            is_overheld(lease, begin)
            if lease.is_winding_down
            else lease.state is LeaseState.ACTIVE and lease.notice is None and lease.expires_at <= begin
        )
        and (lease.priority.rank <= claim.rank or claim.is_guaranteed)
    )


def ending_late(
    offer: Offer,
    slot: Slot,
    claim: Claim,
    capacity: Snapshot,
    given_up: Collection[Lease],
    begin: datetime,
    now: datetime,
) -> tuple[Lease, ...]:
    """The leases that end before a window begins, but whose work could use them when it does: as few as its slot needs.

    Only those that have to be asked for now.
    """
    mine = [lease for lease in over_by(begin, capacity.leases, given_up, claim) if lease.source in slot.sources]
    late = [lease for lease in mine if lease.is_winding_down or asked_by(lease, begin, now) < lease.expires_at]
    if not any(asked_by(lease, begin, now) <= now for lease in late):
        return ()
    late.sort(key=lambda lease: (not lease.is_winding_down, lease.expires_at, lease.id))

    units = {source: sum(part.units for part in slot.parts if part.source == source) for source in slot.sources}

    def fits() -> bool:
        return all(obstacle(capacity[name], offer.part(most), capacity.usage) is None for name, most in units.items())

    ids = {lease.id for lease in late}
    needed: list[Lease] = []
    with capacity.trying():
        gone = [lease for lease in mine if lease.id not in ids]
        capacity.give_back((*coming_back(capacity.leases, begin), *given_up, *gone))
        for lease in late:
            if fits():
                break
            capacity.give_back((lease,))
            needed.append(lease)
    return tuple(lease for lease in needed if asked_by(lease, begin, now) <= now)


def reclaim_times(victims: Iterable[Lease], begin: datetime, min_hold_s: float, now: datetime) -> dict[str, datetime]:
    """When each lease that yields to a window is asked for: in time for its grace period, after its minimum hold."""
    return {
        lease.id: max(now, hold_ends(lease, min_hold_s), asked_by(lease, begin, now))
        if lease.state is LeaseState.ACTIVE
        else now
        for lease in victims
    }


def with_those_that_end(
    preemption: Preemption | None, late: tuple[Lease, ...], offer: Offer, slot: Slot, now: datetime
) -> Preemption:
    """The preemption with leases that end with their grace period before the window, in addition."""
    if preemption is None:
        return Preemption(late, offer.from_parts(slot.parts), "", False, now, {lease.id: lease.units for lease in late})
    takes = {**preemption.takes, **{lease.id: lease.units for lease in late}}
    each_at = {**preemption.each_at, **{lease.id: now for lease in late}}
    return replace(preemption, victims=(*preemption.victims, *late), takes=takes, each_at=each_at, at=now)
