"""What every node should have, between which bounds, while some leases are on their way."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.totals import moved
from distributed_grid.model.audit import AuditFacts
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeName

# Upkeep comes by once a second: what is due is not late before it had a chance.
LATE: Final = timedelta(seconds=3)

# Ray cuts amounts off after four digits, on the way there and on the way back.
LAST_DIGIT: Final = 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one node may have of one kind, in units."""

    low: int
    high: int
    entitled: int
    """What its work may use: less than `high` if leases are past their grace period."""
    late: tuple[Lease, ...]
    """Those leases."""

    def off(self, has: int) -> int:
        """How far outside of the bounds an amount is."""
        if has > self.high + LAST_DIGIT:
            return has - self.high
        return min(0, has - self.low) if has < self.low - LAST_DIGIT else 0


class Standing:
    """The leases that move capacity, sorted by where they should show."""

    def __init__(self, facts: AuditFacts) -> None:
        self._now = facts.now
        self._there = {node.name for node in facts.nodes}
        self._by_place: dict[tuple[NodeName, str], list[Lease]] = defaultdict(list)
        for lease in moved(facts.leases):
            for node in {lease.source, lease.target}:
                self._by_place[node, lease.kind].append(lease)

    def leases_at(self, node: NodeName, kind: str) -> tuple[Lease, ...]:
        return tuple(self._by_place.get((node, kind), ()))

    def kinds_at(self, node: NodeName) -> set[str]:
        return {kind for name, kind in self._by_place if name == node}

    def is_quiet(self, node: NodeName, kind: str) -> bool:
        """True if nothing is on its way here."""
        return all(self._is_settled(lease) for lease in self.leases_at(node, kind))

    def bounds(self, node: NodeName, kind: str, base: int) -> Bounds:
        low = high = entitled = base
        late: list[Lease] = []
        for lease in self.leases_at(node, kind):
            settled = self._is_settled(lease)
            if lease.source == node:
                low -= lease.units
                high -= lease.units if settled else 0
                entitled -= lease.units if settled else 0
            else:
                low += lease.units if settled else 0
                high += lease.units
                if is_late(lease, self._now):
                    late.append(lease)
                else:
                    entitled += lease.units
        return Bounds(max(0, low), max(0, high), max(0, entitled), tuple(late))

    def _is_settled(self, lease: Lease) -> bool:
        return lease.state is LeaseState.ACTIVE and {lease.source, lease.target} <= self._there


def is_late(lease: Lease, now: datetime) -> bool:
    """True if work in a lease should have ended by now: it is over, and so is its grace period."""
    if not lease.is_winding_down:
        return False
    return now >= (lease.release_asked_at or now) + timedelta(seconds=lease.grace_s) + LATE


def short_ids(leases: Iterable[Lease]) -> str:
    return ", ".join(lease.id[:8] for lease in leases)
