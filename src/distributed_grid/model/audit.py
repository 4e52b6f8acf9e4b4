"""What an audit looks at, and what it says. All of it is data: looking happens elsewhere, and so does deciding."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector


@dataclass(frozen=True, slots=True)
class Marks:
    """What grid's own resources on a node say: how far it is from its base, and for which kinds."""

    lent: ResourceVector = field(default_factory=ResourceVector)
    borrowed: ResourceVector = field(default_factory=ResourceVector)
    others: tuple[str, ...] = ()
    """Stamps and gates: they belong to a change that is under way."""

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset({*self.lent, *self.borrowed})


@dataclass(frozen=True, slots=True)
class AuditedNode:
    """A live node: what it says itself, and what the cluster shows of it."""

    name: NodeName
    base: ResourceVector
    said: ResourceVector | None
    """Its totals by its raylet's own word; None if the raylet did not answer."""
    used: ResourceVector
    """How much of them is taken, by the same word."""
    shown: ResourceVector
    """Its totals as the cluster's control service shows them."""
    marks: Marks = field(default_factory=Marks)


@dataclass(frozen=True, slots=True)
class AuditedGroup:
    """A placement group with a name of grid's."""

    id: str
    name: str
    stands: bool
    node: NodeName | None
    """Where it is; None while it has no place, or on a node without a name."""
    resources: ResourceVector
    work: tuple[str, ...] = ()
    """What runs in it, in words."""


@dataclass(frozen=True, slots=True)
class OnDisk:
    """The boost file, read without changing it."""

    leases: tuple[Lease, ...] = ()
    problem: str | None = None
    """Why it says nothing that can be believed."""


@dataclass(frozen=True, slots=True)
class AuditFacts:
    """One look at everything."""

    now: datetime
    leases: tuple[Lease, ...]
    on_disk: OnDisk
    nodes: tuple[AuditedNode, ...]
    groups: tuple[AuditedGroup, ...] = ()
    in_flight: frozenset[str] = frozenset()
    """Ids of leases that a request is working on at this moment."""
    work: Mapping[tuple[NodeName, str], tuple[str, ...]] = field(default_factory=dict)
    """(node, kind) -> who holds it there, in words; only where that matters."""


class FindingKind(StrEnum):
    DRIFTED_TOTAL = "drifted_total"
    VIEW_DIFFERS = "view_differs"
    MARKER_WITHOUT_LEASE = "marker_without_lease"
    MARKER_DIFFERS = "marker_differs"
    UNKNOWN_GROUP = "unknown_group"
    GROUP_MISSING = "group_missing"
    GROUP_FALLEN = "group_fallen"
    GROUP_DIFFERS = "group_differs"
    WORK_OUTSIDE_LEASE = "work_outside_lease"
    STORE_DIFFERS = "store_differs"
    EXPIRED = "expired"
    UNFINISHED_GRANT = "unfinished_grant"
    NODE_GONE = "node_gone"
    NODE_SILENT = "node_silent"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be; shown to people as it stands."""

    kind: FindingKind
    subject: str
    """The node, the boost (its id), the group (its name) or the file that it is about."""
    detail: str
    what_to_do: str
    node: NodeName | None = None
    boost_id: str | None = None
    resource_type: str | None = None
    off_by: int = 0
    """In units: how much too much there is, or (below zero) too little."""
    is_marked: bool = False
    """Grid's own markers or leases name this kind on this node: grid undoes it by itself."""
    work: tuple[str, ...] = ()
    group_id: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The same in two looks if it is about the same thing, whatever the amounts."""
        return (self.kind, self.subject, self.resource_type or "", self.boost_id or "", self.group_id or "")
