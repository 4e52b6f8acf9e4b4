"""What the decision code wants done. A plan is data: nothing has happened yet."""

from dataclasses import dataclass
from enum import StrEnum

from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector


class RefusalCode(StrEnum):
    NO_CAPACITY = "NoCapacity"
    LENDING_LIMIT_REACHED = "LendingLimitReached"
    SHARING_DISABLED = "SharingDisabled"
    IS_TARGET = "IsTarget"
    NOT_THE_SOURCE = "NotTheSource"
    RULED_OUT = "RuledOut"
    NODE_DOWN = "NodeDown"
    STALE = "Stale"
    IS_BORROWING = "IsBorrowing"
    KEPT_FREE = "KeptFree"
    GPU_IN_USE = "GpuInUse"
    COOLING_DOWN = "CoolingDown"
    OTHERS_AHEAD = "OthersAhead"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one node cannot lend; shown to users as it stands."""

    node: NodeName
    code: RefusalCode
    detail: str
    could_lend: int = 0
    """How much of the asked kind this node could lend now, in units."""


@dataclass(frozen=True, slots=True)
class Grant:
    """An ask that can be met: from whom, what exactly, and how it is delivered."""

    ask: Ask
    source: NodeName
    resources: ResourceVector
    delivery: Delivery
    delivery_reason: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    ask: Ask
    refusals: tuple[Refusal, ...]
    team_limit: str | None = None
    """Why its team may not have it, whichever node would lend."""
