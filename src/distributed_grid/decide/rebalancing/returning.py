"""What becomes of the leases that grid made: they go home when their reason is gone, and last while it is there."""

from collections.abc import Iterator

from distributed_grid.decide.rebalancing.observed import Observed, is_own
from distributed_grid.decide.shortage import middle
from distributed_grid.model.actions import Renew, Return
from distributed_grid.model.leases import Cause, Delivery, Lease, LeaseState
from distributed_grid.model.resources import describe

_RENEWED_IN_LAST = 0.25
"""The part of its time that is left when a lease is renewed."""


def returns(seen: Observed, unneeded_for: dict[str, int]) -> Iterator[Return]:
    """What goes home. Of one node's leases of one kind one in a round: the next round sees what that changed."""
    done: set[tuple[str, str]] = set()
    for lease in _own(seen):
        rounds = unneeded_for.get(lease.id, 0)
        key = (lease.target, lease.kind)
        if rounds >= seen.numbers.low_rounds and not seen.is_young(lease) and key not in done:
            done.add(key)
            yield Return(lease, f"{_why_unneeded(seen, lease)}, for {rounds} rounds")


def renewals(seen: Observed) -> Iterator[Renew]:
    """What would end although it is needed: its target would lose it, and get it again some rounds later."""
    for lease in _own(seen):
        left = (lease.expires_at - seen.now).total_seconds()
        if left <= _RENEWED_IN_LAST * lease.duration_s and (why := _why_needed(seen, lease)) is not None:
            yield Renew(lease, why)


def is_unneeded(seen: Observed, lease: Lease) -> bool | None:
    """Whether what grid borrowed is not needed now; None: nobody knows."""
    if lease.cause is Cause.DEMAND:
        target = seen.nodes.get(lease.target)
        idle = target is not None and target.free[lease.kind] >= lease.units
        return idle and lease.target not in seen.waited_for(lease.kind)
    value = seen.value(lease.target, lease.kind)
    if value is None:
        return None
    threshold = seen.thresholds[lease.kind]
    foreseen = seen.foreseen(lease.target, lease.kind)
    return (
        (lease.target, lease.kind) not in seen.pressed
        and value <= threshold.low
        and _use_without(seen, lease, value) <= middle(threshold)
        and (foreseen is None or foreseen <= middle(threshold))
    )


def _use_without(seen: Observed, lease: Lease, value: float) -> float:
    """How pressed the target would be without the lease: where it is measured by what it offers, returning some of
    that makes it busier, and must not bring the pressure back.
    """
    snapshot = seen.snapshots[lease.target]
    total = snapshot.total[lease.kind]
    if lease.delivery is not Delivery.TRANSFER or not snapshot.shares_its_host or total <= lease.units:
        return value
    return value * total / (total - lease.units)


def _own(seen: Observed) -> list[Lease]:
    """The oldest first."""
    own = (lease for lease in seen.leases if is_own(lease) and lease.state is LeaseState.ACTIVE)
    return sorted(own, key=lambda lease: (lease.allocated_at, lease.id))


def _why_unneeded(seen: Observed, lease: Lease) -> str:
    if lease.cause is Cause.DEMAND:
        return f"nothing waits for {lease.target}, and {describe(lease.kind, lease.units)} are idle there"
    value = seen.value(lease.target, lease.kind) or 0.0
    return f"{lease.target}'s {lease.kind} is at {value:.0%}, not above {seen.thresholds[lease.kind].low:.0%}"


def _why_needed(seen: Observed, lease: Lease) -> str | None:
    key = (lease.target, lease.kind)
    if lease.cause is Cause.DEMAND:
        return None if is_unneeded(seen, lease) else f"{lease.target} still uses it, or work still waits for it"
    if key in seen.pressed:
        return f"{lease.target} is still under {lease.kind} pressure"
    return f"{lease.target} is expected to come under {lease.kind} pressure" if seen.will_be_pressed(*key) else None
