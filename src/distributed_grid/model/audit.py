"""What an audit reads, and what it reports. Only data: collecting and deciding happen elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from distributed_grid.model.leases import Lease
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
    """A placement group with a name of grid's."""

    id: str
    name: str
    stands: bool
    node: NodeName | None
    """The node that holds it; None while it has no place, or on a node without a name."""
    resources: ResourceVector
    work: tuple[str, ...] = ()
    """What runs in it, in words."""


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
    in_flight: frozenset[str] = frozenset()
    """Ids of leases that a request is working on at this moment."""
    work: Mapping[tuple[NodeName, str], tuple[str, ...]] = field(default_factory=dict)
    """(node, kind) -> what holds it there, in words; only where that matters."""


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
    """One deviation; shown to people as it stands."""

    kind: FindingKind
    subject: str
    """What it is about: a node, a boost (its id), a group (its name) or a file."""
    detail: str
    what_to_do: str
    node: NodeName | None = None
    boost_id: str | None = None
    resource_type: str | None = None
    off_by: int = 0
    """In units: how much too much there is, or (if negative) too little."""
    is_marked: bool = False
    """Grid's own markers or leases name this kind on this node, so grid corrects it by itself."""
    work: tuple[str, ...] = ()
    group_id: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Equal in two audits if the finding is about the same thing, whatever the amounts."""
        return (self.kind, self.subject, self.resource_type or "", self.boost_id or "", self.group_id or "")
