"""Actions of rebalancing. Each is data, and says in words why."""

from collections.abc import Mapping
from dataclasses import dataclass

from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.plans import Grant
from distributed_grid.model.requests import Ask


@dataclass(frozen=True, slots=True)
class Borrow:
    """Lend to a node that did not ask."""

    ask: Ask
    reason: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Extend a lease that grid made: its cause persists."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class Return:
    """Return what grid borrowed: its cause is over."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """Move a lease to another lender: the new lease first, then the end of the old one."""

    lease: Lease
    grant: Grant
    reason: str


@dataclass(frozen=True, slots=True)
class Relieve:
    """A lender needs its own capacity: ask these leases back."""

    node: NodeName
    victims: tuple[Lease, ...]
    takes: Mapping[str, int]
    """By lease id: how many of its units are enough."""
    reason: str


Action = Borrow | Renew | Return | Move | Relieve
