"""The bounds of decisions (rules) and their results (plans, and actions of rebalancing).

Plans and actions are data: nothing has happened yet. Each action states its reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, ResourceVector, scale
from distributed_grid.model.teams import Teams


@dataclass(frozen=True, slots=True)
class Companions:
    """The companions of a reservation, so that a default task can run in it."""

    cpu_per_gpu: int = scale(CPU)
    memory_per_gpu: int = 0
    cpu_otherwise: int = scale(CPU)


@dataclass(frozen=True, slots=True)
class Headroom:
    """The capacity that a lender keeps free for its own work: the largest of these."""

    policy: str = ""
    of_base: float = 0.0
    """This fraction of its base."""
    of_idle: float = 0.0
    """This fraction of what would be idle if nothing were lent."""
    foreseen: Mapping[tuple[NodeName, str], float] = field(default_factory=dict)
    """By node and kind: the fraction that its own work may need before the lease ends."""


NO_HEADROOM: Final = Headroom()


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that apply to one decision."""

    default_delivery: str | None = None
    companions: Companions = field(default_factory=Companions)
    no_transfers_because: str | None = None
    headroom: Headroom = NO_HEADROOM
    teams: Teams = field(default_factory=Teams)
    cordoned: frozenset[NodeName] = frozenset()
    """Nodes that neither lend nor borrow until further notice."""


NO_RULES: Final = Rules()

RulesFor = Callable[[Ask], Rules]
"""The rules that bound one request."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one node cannot lend; shown to users as it stands."""

    node: NodeName
    code: RefusalCode
    detail: str
    could_lend: int = 0
    """How much of the requested kind this node could lend now, in units."""


@dataclass(frozen=True, slots=True)
class TeamLimit:
    """Why a team may not have what it requests, whichever node would lend."""

    code: RefusalCode
    detail: str


@dataclass(frozen=True, slots=True)
class Part:
    """What one node lends of a request."""

    source: NodeName
    units: int
    reason: str = ""
    """Why this node, and why so much."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A request that can be met: by which lender, with what exactly, and by which delivery."""

    ask: Ask
    source: NodeName
    resources: ResourceVector
    delivery: Delivery
    delivery_reason: str
    warnings: tuple[str, ...] = ()
    why_it: str = ""
    """Of a part: why this lender, and why so much."""


@dataclass(frozen=True, slots=True)
class Refused:
    ask: Ask
    refusals: tuple[Refusal, ...]
    team_limit: TeamLimit | None = None


@dataclass(frozen=True, slots=True)
class Borrow:
    """Rebalancing: lend to a node without a request."""

    ask: Ask
    reason: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Rebalancing: extend a lease that grid made, since its cause persists."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class Return:
    """Rebalancing: return what grid borrowed, since its cause is over."""

    lease: Lease
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """Rebalancing: move a lease to another lender. The new lease comes first, then the end of the old one."""

    lease: Lease
    grant: Grant
    reason: str


@dataclass(frozen=True, slots=True)
class Relieve:
    """Rebalancing: reclaim these leases, since a lender needs its own capacity."""

    node: NodeName
    victims: tuple[Lease, ...]
    takes: Mapping[str, int]
    """By lease id: how many of its units are enough."""
    reason: str


Action = Borrow | Renew | Return | Move | Relieve
