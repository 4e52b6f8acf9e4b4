"""When what is lent will be back, as far as anybody can know."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeName

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


class LeaseEnds:
    """The same for many; by node or team, only for those that are asked for."""

    def __init__(self, leases: Iterable[Lease], now: datetime) -> None:
        self._holding = [lease for lease in leases if lease.holds_capacity]
        self._now = now

    @property
    def all(self) -> Ends:
        return self._ends(self._holding)

    def on(self, node: NodeName) -> Ends:
        """What comes back to a node, and what was moved to it and leaves."""
        return self._ends(self._by_node.get(node, ()))

    def of(self, team: str) -> Ends:
        return self._ends(self._by_team.get(team, ()))

    def _ends(self, leases: Iterable[Lease]) -> Ends:
        return sorted(
            ((expected_end(lease, self._now), lease) for lease in leases), key=lambda end: (end[0], end[1].id)
        )

    @cached_property
    def _by_node(self) -> Mapping[NodeName, list[Lease]]:
        found: defaultdict[NodeName, list[Lease]] = defaultdict(list)
        for lease in self._holding:
            found[lease.source].append(lease)
            if lease.delivery is Delivery.TRANSFER:
                found[lease.target].append(lease)
        return found

    @cached_property
    def _by_team(self) -> Mapping[str, list[Lease]]:
        found: defaultdict[str, list[Lease]] = defaultdict(list)
        for lease in self._holding:
            found[lease.team].append(lease)
        return found
