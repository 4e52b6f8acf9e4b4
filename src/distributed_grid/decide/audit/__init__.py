"""Audit: compares the books with the cluster. Pure: facts in, findings out.

A boost that is being granted, or that is being returned within its grace period, may be in either place. That is no
finding. Everything else has one right place.
"""

from distributed_grid.decide.audit.leases import about_groups, about_leases, about_the_file, groups_where_work_matters
from distributed_grid.decide.audit.nodes import about_nodes, where_work_matters
from distributed_grid.decide.audit.repair import RepairPlan, plan_repair, why_left
from distributed_grid.model.audit import AuditFacts
from distributed_grid.model.findings import Finding

__all__ = ["RepairPlan", "audit", "groups_where_work_matters", "plan_repair", "where_work_matters", "why_left"]


def audit(facts: AuditFacts) -> tuple[Finding, ...]:
    """Everything that is not as it should be; empty for a healthy cluster."""
    return (*about_nodes(facts), *about_groups(facts), *about_leases(facts), *about_the_file(facts))
