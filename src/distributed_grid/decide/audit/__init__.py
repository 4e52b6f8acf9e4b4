"""Audit: compares the ledger with the cluster, and plans repairs. Pure: facts in, findings out.

A boost that is being granted, or that is being returned within its grace period, may be in either place. That is no
finding. Everything else has one right place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from distributed_grid.decide.audit.leases import about_groups, about_leases, about_the_file, groups_where_work_matters
from distributed_grid.decide.audit.nodes import about_nodes, where_work_matters
from distributed_grid.model.audit import AuditFacts
from distributed_grid.model.findings import Code, Finding
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import GPU

__all__ = ["RepairPlan", "audit", "groups_where_work_matters", "plan_repair", "where_work_matters", "why_left"]


def audit(facts: AuditFacts) -> tuple[Finding, ...]:
    """Everything that is not as it should be; empty for a healthy cluster."""
    return (*about_nodes(facts), *about_groups(facts), *about_leases(facts), *about_the_file(facts))


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The steps of a repair before the next turn of the reconciler, which does the rest."""

    rewrite_file: bool = False
    foreign: Mapping[NodeName, frozenset[str]] = field(default_factory=dict)
    """Kinds that something other than grid changed on a node. Grid marks them, and the next round undoes the change."""
    remove_groups: frozenset[str] = frozenset()
    """Groups with a name of grid's that belong to no boost and in which nothing runs."""
    kill_for: frozenset[str] = frozenset()
    """Boosts past their grace period whose work may be killed."""


def plan_repair(findings: Iterable[Finding], *, may_kill: bool = False) -> RepairPlan:
    findings = tuple(findings)
    foreign: dict[NodeName, frozenset[str]] = {}
    for finding in findings:
        if finding.code is Code.DRIFTED_TOTAL and not finding.is_marked and finding.resource_type != GPU:
            node, kind = finding.node or "", finding.resource_type or ""
            foreign[node] = foreign.get(node, frozenset()) | {kind}
    late = {f.boost_id for f in findings if f.code is Code.WORK_OUTSIDE_LEASE and f.boost_id and f.resource_type}
    return RepairPlan(
        rewrite_file=any(finding.code is Code.STORE_DIFFERS for finding in findings),
        foreign=foreign,
        remove_groups=frozenset(
            f.group_id for f in findings if f.code is Code.UNKNOWN_GROUP and f.group_id and not f.work
        ),
        kill_for=frozenset(late) if may_kill else frozenset(),
    )


def why_left(finding: Finding, *, may_kill: bool = False, no_resizing: str | None = None) -> str:
    """Why a repair did not make a finding go away."""
    match finding.code:
        case Code.DRIFTED_TOTAL if no_resizing:
            return no_resizing
        case Code.DRIFTED_TOTAL if finding.resource_type == GPU:
            return "Ray cannot change how many GPUs a running node has"
        case Code.DRIFTED_TOTAL if finding.off_by > 0:
            return "that much is in use, and a node can give up only idle capacity"
        case Code.DRIFTED_TOTAL:
            return "another node still has too much; no node grows until that is returned"
        case Code.WORK_OUTSIDE_LEASE if may_kill and finding.boost_id:
            return "the work did not end, or was started again"
        case Code.WORK_OUTSIDE_LEASE if finding.boost_id:
            return "it is in use, and nothing is killed without --kill"
        case Code.WORK_OUTSIDE_LEASE:
            return "it belongs to no boost, so grid may not end it"
        case Code.MARKER_WITHOUT_LEASE:
            return "it is removed once the capacity that it marks is returned"
        case Code.NODE_SILENT:
            return "its raylet still does not answer"
        case Code.NODE_GONE:
            return (
                "the node may come back: a boost ends 2 s after Ray reports its node as dead, "
                "or 30 s if the node has not been seen since grid's start"
            )
        case Code.GROUP_DIFFERS | Code.UNKNOWN_GROUP:
            return "it may contain work, which removing it would end"
        case _:
            return "the repair had no effect: see the controller's log, or grid doctor"
