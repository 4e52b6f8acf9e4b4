"""The auditor: compares the ledger, the disk, the nodes, the groups and the work, and reports where they disagree.

The reconciler repairs most problems within a second. So a look that finds something is followed by a second one: what
is gone by then was in transit or has been repaired, and is reported apart from what stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from distributed_grid import threads
from distributed_grid.decide.audit import (
    RepairPlan,
    audit,
    groups_where_work_matters,
    plan_repair,
    where_work_matters,
    why_left,
)
from distributed_grid.execution.capacity import marks_of
from distributed_grid.execution.port import NodeView
from distributed_grid.leases.reconciler import Reconciler
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.audit import AuditedGroup, AuditedNode, AuditFacts, OnDisk
from distributed_grid.model.findings import Finding
from distributed_grid.model.lease_changes import EndForced
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.times import instant

if TYPE_CHECKING:
    from distributed_grid.wire.audit import AuditReport

# The reconciler makes a full turn every second; a view may be half a second old.
_SECOND_LOOK_S: Final = 1.7
_STEADY_TRIES: Final = 5
_REPAIRED_WITHIN: Final = timedelta(seconds=8)
# Two full turns of the reconciler: what they did not change, the next will not either.
_STAYS_AFTER: Final = timedelta(seconds=3)
_LOOK_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of an audit, and the repairs."""

    at: datetime
    nodes: int
    boosts: int
    groups: int
    findings: tuple[Finding, ...]
    settled: tuple[Finding, ...] = ()
    """Found at the first look, and gone at the second."""
    repaired: tuple[Finding, ...] = ()
    did: tuple[str, ...] = ()
    left_because: Mapping[tuple[str, ...], str] | None = None

    @classmethod
    def on(cls, facts: AuditFacts, findings: tuple[Finding, ...]) -> Report:
        return cls(facts.now, len(facts.nodes), len(facts.leases), len(facts.groups), findings)

    def to_dict(self) -> AuditReport:
        because = self.left_because or {}
        return {
            "sound": not self.findings,
            "at": instant(self.at),
            "nodes": self.nodes,
            "boosts": self.boosts,
            "groups": self.groups,
            "findings": [{**f.to_dict(), "left_because": because.get(f.key)} for f in self.findings],
            "settled": [f.to_dict() for f in self.settled],
            "repaired": [f.to_dict() for f in self.repaired],
            "did": list(self.did),
        }


class Auditor:
    """Looks by its own means, and acts through the reconciler."""

    def __init__(self, parts: EngineContext, reconciler: Reconciler) -> None:
        self._p = parts
        self._reconciler = reconciler

    async def audit(self) -> Report:
        """Look, and look again if something was found. Changes nothing."""
        facts = await self._look()
        first = audit(facts)
        if not first:
            return Report.on(facts, ())
        await asyncio.sleep(_SECOND_LOOK_S)
        facts = await self._look()
        both, gone = _compared(first, audit(facts))
        return replace(Report.on(facts, both), settled=gone)

    async def repair(self, *, may_kill: bool = False, who: str = "") -> Report:
        """Repair what is safe to repair; then report what is left, and why."""
        p = self._p
        facts = await self._look()
        first = audit(facts)
        did = [] if not first else await self._carry_out(plan_repair(first, may_kill=may_kill), facts)
        facts = await self._look_until_repaired()
        left, gone = _compared(first, audit(facts), all_of_now=True)
        no_resizing = p.cluster.why_no_transfers()
        because = {f.key: why_left(f, may_kill=may_kill, no_resizing=no_resizing) for f in left}
        if first:
            summary = f"{len(gone)} of {len(first)} findings repaired; {len(left)} left"
            p.journal.note("audit_repair", "; ".join([summary, *did]), who=who, left=[f.detail for f in left])
        return replace(Report.on(facts, left), repaired=gone, did=tuple(did), left_because=because)

    async def _look_until_repaired(self) -> AuditFacts:
        """The facts once no finding is left, or the rest no longer changes."""
        p = self._p
        deadline, unchanged_since = p.now() + _REPAIRED_WITHIN, p.now()
        facts = await self._look()
        left = {finding.key for finding in audit(facts)}
        while left and p.now() < deadline and p.now() - unchanged_since < _STAYS_AFTER:
            await asyncio.sleep(_LOOK_AGAIN_S)
            facts = await self._look()
            now_left = {finding.key for finding in audit(facts)}
            if now_left != left:
                left, unchanged_since = now_left, p.now()
        return facts

    async def _carry_out(self, plan: RepairPlan, facts: AuditFacts) -> list[str]:
        p = self._p
        did = []
        if plan.rewrite_file:
            p.file.mistrust()
            await p.commit()
            did.append(f"rewrote {p.file.path.name} from the ledger")
        if p.cluster.why_no_transfers() is None:
            for node, kinds in plan.foreign.items():
                if await p.applier.take_over(node, kinds):
                    did.append(f"marked the change of {', '.join(sorted(kinds))} on {node} to be undone")
        idle = (group for group in facts.groups if group.id in plan.remove_groups)
        for group in sorted(idle, key=lambda group: group.id):
            await p.applier.remove_group(group.delivery, group.id, in_use=False)
            did.append(f"removed the {group.delivery.held_in} {group.id}, in which nothing ran")
        for lease_id in plan.kill_for:
            if (lease := p.ledger.get(lease_id)) is not None and lease.is_winding_down:
                p.ledger.apply(lease, EndForced())
                did.append(f"allowed grid to end the work that still holds boost {lease.id[:8]}")
        if plan.kill_for:
            await p.commit()
        turned = await self._reconciler.turn_fully()
        p.something_changed()  # the reconciler goes on with what still drains
        did.append(
            "ran a full round of the reconciler"
            if turned
            else "a round of the reconciler failed: see the controller's log"
        )
        return did

    # -- looking -------------------------------------------------------------------------------------------

    async def _look(self) -> AuditFacts:
        """A consistent look: repeated if boosts changed meanwhile, but not for ever on a busy cluster."""
        for _ in range(_STEADY_TRIES):
            await self._p.flush()
            before = self._p.ledger.snapshot()
            facts = await self._look_once()
            if before == facts.leases:
                break
        return await self._with_work(facts)

    async def _with_work(self, facts: AuditFacts) -> AuditFacts:
        """Add the work, only where there should be none: each such question goes to every worker of a node."""
        applier = self._p.applier
        empty = groups_where_work_matters(facts)
        groups = [
            replace(group, work=await applier.work_in(group.delivery, group.id, group.node))
            if group.node and group.id in empty
            else group
            for group in facts.groups
        ]
        work = {(node, kind): await applier.work_on(node, kind) for node, kind in where_work_matters(facts)}
        return replace(facts, groups=tuple(groups), work=work)

    async def _look_once(self) -> AuditFacts:
        p = self._p
        nodes = await p.look()
        said = await p.applier.ask_nodes()
        raylets = p.observer.naming.raylets
        names = {raylet.node_id: name for name, raylet in raylets.items()}
        groups = [
            AuditedGroup(g.id, g.name, g.delivery, any(g.bundles), names.get(g.node_id or ""), g.resources)
            for g in await p.applier.groups_afresh()
        ]
        stored = await threads.AUDITS.run(p.file.look)
        return AuditFacts(
            now=p.now(),
            leases=p.ledger.snapshot(),
            on_disk=OnDisk(stored.leases, "; ".join(stored.problems) or None),
            nodes=tuple(_audited(node.name, node.base, said.get(node.name), node.total) for node in nodes.alive),
            groups=tuple(groups),
        )


def _audited(name: NodeName, base: ResourceVector, said: NodeView | None, shown: ResourceVector) -> AuditedNode:
    if said is None:
        return AuditedNode(name, base, None, ResourceVector(), shown)
    total, free = ResourceVector.from_ray(said.total), ResourceVector.from_ray(said.free)
    return AuditedNode(name, base, total, total - free, shown, marks_of(said.total))


def _compared(
    first: tuple[Finding, ...], now: tuple[Finding, ...], *, all_of_now: bool = False
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """The findings that stay (or all current ones), as they are now, and those that are gone."""
    known = {finding.key for finding in first}
    there = {finding.key for finding in now}
    stays = tuple(finding for finding in now if all_of_now or finding.key in known)
    return stays, tuple(finding for finding in first if finding.key not in there)
