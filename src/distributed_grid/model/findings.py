"""Findings: what a check of `grid doctor` or an audit reports. One shape, one table of codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import amount_of

if TYPE_CHECKING:
    from distributed_grid.wire.audit import AuditFinding


class Severity(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    """It could not be checked."""


class Code(StrEnum):
    # Checks of `grid doctor`
    PYTHON = "python"
    RAY = "ray"
    HOME = "home"
    HOME_FILESYSTEM = "home_filesystem"
    SECRETS = "secrets"
    KEPT_ASIDE = "kept_aside"
    DISK_SPACE = "disk_space"
    CONTROLLER = "controller"
    MEASURED_USE = "measured_use"
    RAY_CLUSTER = "ray_cluster"
    NODES = "nodes"
    GPUS = "gpus"
    RESIZE = "resize"
    RESERVATIONS = "reservations"
    AUTHENTICATION = "authentication"
    AUTOSCALER = "autoscaler"
    KUBERAY = "kuberay"
    VIEW_LAG = "view_lag"
    # Deviations that an audit finds
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


class _About(NamedTuple):
    meaning: str
    fixable: bool = False
    """`grid audit --repair` may do something about it."""


_CHECKED_ANYWHERE: Final = {
    Code.PYTHON: "this machine's Python is new enough",
    Code.RAY: "this machine's Ray can change a running node's resources",
    Code.HOME: "GRID_HOME is writable, for its owner alone",
    Code.HOME_FILESYSTEM: "GRID_HOME is on a local disk",
    Code.SECRETS: "only their owner can read tokens and keys",
    Code.KEPT_ASIDE: "no files in GRID_HOME wait for a decision",
    Code.DISK_SPACE: "there is room for grid's files",
    Code.CONTROLLER: "the controller answers, and is the one in the cluster",
    Code.MEASURED_USE: "no machine is too busy, and no GPU is in use outside Ray",
    Code.RAY_CLUSTER: "the Ray cluster answers",
}
_CHECKED_INSIDE: Final = {
    Code.NODES: "a node answers and matches the head",
    Code.GPUS: "each GPU device belongs to one node",
    Code.RESIZE: "a running node's resources can be changed",
    Code.RESERVATIONS: "a placement group can be made on a chosen node",
    Code.AUTHENTICATION: "Ray requires a token",
    Code.AUTOSCALER: "no autoscaler removes nodes that lend",
    Code.KUBERAY: "no KubeRay resizes nodes",
    Code.VIEW_LAG: "the cluster's view shows a resize in time",
}
"""Checks that need a cluster which was reached."""
_DEVIATIONS: Final = {
    Code.DRIFTED_TOTAL: _About(
        "a node has more or less than it started with, less what it lent, plus what it borrowed", True
    ),
    Code.VIEW_DIFFERS: _About("Ray's control service shows a total that differs from the node's own report", True),
    Code.MARKER_WITHOUT_LEASE: _About("a node is marked as lending or borrowing, and no boost explains it", True),
    Code.MARKER_DIFFERS: _About("a node's markers do not match its distance from its base", True),
    Code.UNKNOWN_GROUP: _About("a placement group has a name like grid's, and belongs to no boost", True),
    Code.GROUP_MISSING: _About("a reserved boost has no placement group: nothing is reserved", True),
    Code.GROUP_FALLEN: _About("a reserved boost's placement group lost its node: nothing is reserved", True),
    Code.GROUP_DIFFERS: _About("a reserved boost's placement group differs from the one in the ledger"),
    Code.WORK_OUTSIDE_LEASE: _About("work uses capacity that no boost lends to it any longer", True),
    Code.STORE_DIFFERS: _About("the boost file differs from the ledger: a restart would lose or restore boosts", True),
    Code.EXPIRED: _About("a boost has expired and its return has not begun", True),
    Code.UNFINISHED_GRANT: _About("a boost is half granted, and no request is working on it", True),
    Code.NODE_GONE: _About("a boost is on a node that is not in the cluster"),
    Code.NODE_SILENT: _About("a node did not answer, so its part is not audited"),
}
CHECKS_INSIDE: Final = tuple(_CHECKED_INSIDE)
CHECKS: Final = (*_CHECKED_ANYWHERE, *CHECKS_INSIDE)
_ABOUT: Final = {code: _About(text) for code, text in (_CHECKED_ANYWHERE | _CHECKED_INSIDE).items()} | _DEVIATIONS


def meaning(code: Code) -> str:
    """What a check ensures, or what a deviation means."""
    return _ABOUT[code].meaning


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, or one deviation; shown to people as it stands."""

    code: Code
    subject: str
    """The subject: a node, a boost (its id), a group (its name) or a file; empty for the whole installation."""
    detail: str
    what_to_do: str = ""
    severity: Severity = Severity.FAIL
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
        return (self.code, self.subject, self.resource_type or "", self.boost_id or "", self.group_id or "")

    def to_dict(self) -> AuditFinding:
        kind = self.resource_type
        return {
            "code": str(self.code),
            "severity": str(self.severity),
            "subject": self.subject,
            "detail": self.detail,
            "meaning": meaning(self.code),
            "what_to_do": self.what_to_do,
            "fixable": _ABOUT[self.code].fixable,
            "node": self.node,
            "boost_id": self.boost_id,
            "resource_type": kind,
            "off_by": amount_of(kind, self.off_by) if kind else None,
            "placement_group": self.group_id,
            "work": list(self.work),
        }


def ok(code: Code, detail: str) -> Finding:
    return Finding(code, "", detail, severity=Severity.OK)


def warn(code: Code, detail: str, what_to_do: str = "") -> Finding:
    return Finding(code, "", detail, what_to_do, Severity.WARN)


def fail(code: Code, detail: str, what_to_do: str) -> Finding:
    """A failed check always says what to do."""
    return Finding(code, "", detail, what_to_do)


def skip(code: Code, detail: str, what_to_do: str = "") -> Finding:
    return Finding(code, "", detail, what_to_do, Severity.SKIP)
