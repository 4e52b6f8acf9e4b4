"""What rebalancing wants done. Each is data, and says in words why."""

from dataclasses import dataclass

from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plans import Grant
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector


@dataclass(frozen=True, slots=True)
class Borrow:
    """Lend to a node that did not ask."""

    ask: Ask
    reason: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Let a lease that grid made last longer: what it was made for is still so."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class Return:
    """Give back what grid borrowed: what it was made for is over."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """Let another node lend it: first the new loan, then the end of the old one."""

    lease: Lease
    grant: Grant
    reason: str


@dataclass(frozen=True, slots=True)
class Relieve:
    """A lender needs its own: these are asked back."""

    node: NodeName
    victims: tuple[Lease, ...]
    needed: ResourceVector
    """What would do: the last of them may keep a part."""
    reason: str

    def parts(self) -> tuple[tuple[Lease, int], ...]:
        """How many units of each victim are needed."""
        found: list[tuple[Lease, int]] = []
        left = self.needed
        for lease in self.victims:
            # For what came along with it a lease is taken back whole.
            only = left[lease.kind] if all(kind == lease.kind or left[kind] <= 0 for kind in lease.resources) else 0
            found.append((lease, min(lease.units, only) if only > 0 else lease.units))
            left = left - lease.resources
        return tuple(found)


Action = Borrow | Renew | Return | Move | Relieve
