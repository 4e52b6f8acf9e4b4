"""The facts of an audit. Only data: collecting and deciding happen elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector


@dataclass(frozen=True, slots=True)
class Marks:
    """Grid's own resources on a node: how far the node is from its base, and for which kinds."""

    lent: ResourceVector = field(default_factory=ResourceVector)
    borrowed: ResourceVector = field(default_factory=ResourceVector)
    others: tuple[str, ...] = ()
    """Stamps and gates of a change that is under way."""

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset({*self.lent, *self.borrowed})


@dataclass(frozen=True, slots=True)
class AuditedNode:
    """A live node: what its raylet reports, and what the cluster shows."""

    name: NodeName
    base: ResourceVector
    said: ResourceVector | None
    """Its totals as its raylet reports them; None if the raylet did not answer."""
    used: ResourceVector
    """How much of them is in use, as the raylet reports it."""
    shown: ResourceVector
    """Its totals as the cluster's control service shows them."""
    marks: Marks = field(default_factory=Marks)


@dataclass(frozen=True, slots=True)
class AuditedGroup:
    """Something with a name of grid's that holds capacity on a node, such as a placement group."""

    id: str
    name: str
    delivery: Delivery
    """The kind of lease that it is made for."""
    stands: bool
    node: NodeName | None
    """The node that holds it; None while it has no place, or on a node without a name."""
    resources: ResourceVector
    work: tuple[str, ...] = ()
    """Its work, in words."""


@dataclass(frozen=True, slots=True)
class OnDisk:
    """The boost file, read without changing it."""

    leases: tuple[Lease, ...] = ()
    problem: str | None = None
    """Why its content cannot be trusted."""


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """All facts of one audit."""

    now: datetime
    leases: tuple[Lease, ...]
    on_disk: OnDisk
    nodes: tuple[AuditedNode, ...]
    groups: tuple[AuditedGroup, ...] = ()
    work: Mapping[tuple[NodeName, str], tuple[str, ...]] = field(default_factory=dict)
    """(node, kind) -> what holds it there, in words; only where that matters."""
