"""When what is lent will be back, as far as anybody can know."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.model.leases import Lease

Ends = Sequence[tuple[datetime, Lease]]
"""Leases with the time at which each will be back, the first first."""

SOON: Final = timedelta(seconds=10)
"""For what should be back already: its work ends any moment, or is being ended."""


def expected_end(lease: Lease, now: datetime) -> datetime:
    """When it expires; if it is being given back, when its grace is over; if its holder must, at the deadline."""
    if lease.is_winding_down:
        end = (lease.release_asked_at or now) + timedelta(seconds=lease.grace_s)
    elif lease.notice is not None and lease.notice.units >= lease.units:
        end = min(lease.expires_at, lease.notice.deadline)
    else:
        end = lease.expires_at
    return max(end, now + SOON)
