"""Is what the books say what the cluster is? A pure comparison: facts in, findings out.

What is on its way (a boost that is being granted, or goes home within its grace period) may be here or there: that
is no finding. Everything else has one right place.
"""

from distributed_grid.decide.audit.leases import about_groups, about_leases, about_the_file, groups_where_work_matters
from distributed_grid.decide.audit.nodes import about_nodes, where_work_matters
from distributed_grid.decide.audit.repair import RepairPlan, plan_repair, why_left
from distributed_grid.model.audit import AuditFacts, Finding

__all__ = ["RepairPlan", "audit", "groups_where_work_matters", "plan_repair", "where_work_matters", "why_left"]


def audit(facts: AuditFacts) -> tuple[Finding, ...]:
    """Everything that is not as it should be; nothing for a sound cluster."""
    return (*about_nodes(facts), *about_groups(facts), *about_leases(facts), *about_the_file(facts))
