"""What rebalancing wants done. Each is data, and says in words why."""

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
    takes: Mapping[str, int]
    """By victim's id: how many units of it are enough."""
    reason: str


Action = Borrow | Renew | Return | Move | Relieve
