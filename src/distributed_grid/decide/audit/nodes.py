"""Audit of nodes: the bounds within which each node's totals must be, against what its raylet reports."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.capacity.totals import moved
from distributed_grid.model.audit import AuditedNode, AuditFacts
from distributed_grid.model.findings import Code, Finding
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import describe, scale

# The reconciler runs once a second: give it a chance before anything counts as late.
LATE: Final = timedelta(seconds=3)

# Ray truncates amounts to four digits, in both directions.
LAST_DIGIT: Final = 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much of one kind a node may have, in units."""

    low: int
    high: int
    entitled: int
    """The amount that its work may use. Less than `high` if leases are past their grace period."""
    late: tuple[Lease, ...]
    """The leases that are past their grace period."""

    def off(self, has: int) -> int:
        """How far an amount is outside the bounds."""
        if has > self.high + LAST_DIGIT:
            return has - self.high
        return min(0, has - self.low) if has < self.low - LAST_DIGIT else 0


class Standing:
    """The leases that move capacity, by node and kind. Of several lenders, each has its own part."""

    def __init__(self, facts: AuditFacts) -> None:
        self._now = facts.now
        self._there = {node.name for node in facts.nodes}
        self._by_place: dict[tuple[NodeName, str], list[Lease]] = defaultdict(list)
        for lease in moved(part for whole in facts.leases for part in whole.parts):
            for node in {lease.source, lease.target}:
                self._by_place[node, lease.kind].append(lease)

    def leases_at(self, node: NodeName, kind: str) -> tuple[Lease, ...]:
        return tuple(self._by_place.get((node, kind), ()))

    def kinds_at(self, node: NodeName) -> set[str]:
        return {kind for name, kind in self._by_place if name == node}

    def is_quiet(self, node: NodeName, kind: str) -> bool:
        """True if no lease here is being granted or returned."""
        return all(self._is_settled(lease) for lease in self.leases_at(node, kind))

    def bounds(self, node: NodeName, kind: str, base: int) -> Bounds:
        low = high = entitled = base
        late: list[Lease] = []
        for lease in self.leases_at(node, kind):
            settled = self._is_settled(lease)
            if lease.source == node:
                low -= lease.units
                high -= lease.units if settled else 0
                entitled -= lease.units if settled else 0
            else:
                low += lease.units if settled else 0
                high += lease.units
                if is_late(lease, self._now):
                    late.append(lease)
                else:
                    entitled += lease.units
        return Bounds(max(0, low), max(0, high), max(0, entitled), tuple(late))

    def _is_settled(self, lease: Lease) -> bool:
        return lease.state is LeaseState.ACTIVE and {lease.source, lease.target} <= self._there


def is_late(lease: Lease, now: datetime) -> bool:
    """True if work in a lease should have ended by now: the lease and its grace period are over."""
    if not lease.is_winding_down:
        return False
    return now >= lease.grace_ends(lease.release_asked_at or now) + LATE


def short_ids(leases: Iterable[Lease]) -> str:
    return ", ".join(lease.id[:8] for lease in leases)


_BY_ITSELF = "No action needed: grid corrects it within seconds, or with grid audit --repair."


def about_nodes(facts: AuditFacts) -> Iterator[Finding]:
    standing = Standing(facts)
    for node in facts.nodes:
        if node.said is None:
            yield Finding(
                Code.NODE_SILENT,
                node.name,
                "its raylet does not answer, so its totals are unknown",
                "Check that this machine is reachable and not overloaded, then audit again.",
                node=node.name,
            )
            continue
        for kind in sorted({*node.base, *node.said, *node.marks.kinds, *standing.kinds_at(node.name)}):
            yield from _about_one_kind(facts, standing, node, kind)
        yield from _leftovers(facts, node)


def where_work_matters(facts: AuditFacts) -> frozenset[tuple[NodeName, str]]:
    """The (node, kind) pairs where work uses more than it may; only there the audit looks up what uses it."""
    standing = Standing(facts)
    return frozenset(
        (node.name, kind)
        for node in facts.nodes
        if node.said is not None
        for kind in node.used
        if _too_much_used(node, kind, standing.bounds(node.name, kind, node.base[kind]))
    )


def _about_one_kind(facts: AuditFacts, standing: Standing, node: AuditedNode, kind: str) -> Iterator[Finding]:
    assert node.said is not None
    bounds = standing.bounds(node.name, kind, node.base[kind])
    has = node.said[kind]
    if off := bounds.off(has):
        yield _drifted(standing, node, kind, off)
    elif abs(node.shown[kind] - has) > LAST_DIGIT:
        yield Finding(
            Code.VIEW_DIFFERS,
            node.name,
            f"it reports {describe(kind, has)}, but the cluster shows {describe(kind, node.shown[kind])}",
            "Wait: raylets report what they have every 100 ms. If it persists, check the head's load.",
            node=node.name,
            resource_type=kind,
            off_by=node.shown[kind] - has,
        )
    if too_much := _too_much_used(node, kind, bounds):
        yield _outside(facts, node, kind, bounds, too_much)
    if kind in node.marks.kinds and not standing.leases_at(node.name, kind):
        yield Finding(
            Code.MARKER_WITHOUT_LEASE,
            node.name,
            f"it is marked as {_marked(node, kind)}, but no boost explains that",
            _BY_ITSELF,
            node=node.name,
            resource_type=kind,
            is_marked=True,
        )
    elif not off and standing.is_quiet(node.name, kind) and not _marked_right(node, kind, standing):
        yield Finding(
            Code.MARKER_DIFFERS,
            node.name,
            f"it is marked as {_marked(node, kind)}, but has {describe(kind, has)} "
            f"and started with {describe(kind, node.base[kind])}",
            _BY_ITSELF,
            node=node.name,
            resource_type=kind,
            is_marked=True,
        )


def _drifted(standing: Standing, node: AuditedNode, kind: str, off: int) -> Finding:
    assert node.said is not None
    has, leases = node.said[kind], standing.leases_at(node.name, kind)
    by_marks = node.base[kind] - node.marks.lent[kind] + node.marks.borrowed[kind]
    if kind not in node.marks.kinds:
        why = "no marker explains that: another program changed it"
    elif abs(by_marks - has) * 10_000 <= 2 * scale(kind):
        why = "its markers match: a boost that is missing from the ledger moved it"
    else:
        why = f"its markers ({_marked(node, kind)}) do not explain that"
    is_grids = bool(leases) or kind in node.marks.kinds
    boosts = f"boosts: {short_ids(leases)}" if leases else "no boosts"
    return Finding(
        Code.DRIFTED_TOTAL,
        node.name,
        f"it has {describe(kind, has)} and should have {describe(kind, has - off)} "
        f"({describe(kind, node.base[kind])} at its start, {boosts}); {why}",
        _BY_ITSELF
        if is_grids
        else "If this was not intended, undo it with grid audit --repair; grid does not do so automatically.",
        node=node.name,
        resource_type=kind,
        off_by=off,
        is_marked=is_grids,
    )


def _too_much_used(node: AuditedNode, kind: str, bounds: Bounds) -> int:
    """How much more work uses than it may. Only what the node has counts, so oversubscription by Ray is no finding."""
    if node.said is None:
        return 0
    units = min(node.said[kind], node.used[kind]) - bounds.entitled
    return units if units > LAST_DIGIT else 0


def _outside(facts: AuditFacts, node: AuditedNode, kind: str, bounds: Bounds, units: int) -> Finding:
    work = facts.work.get((node.name, kind), ())
    if bounds.late:
        over = f"the boosts that lent it are over, and so is their grace period: {short_ids(bounds.late)}"
        to_do = "Let that work end, or end it; grid audit --repair --kill ends the youngest that covers it."
    else:
        over = "no boost lends it to this node"
        to_do = "Let that work end, or end it; the total then recovers, or grid audit --repair restores it."
    return Finding(
        Code.WORK_OUTSIDE_LEASE,
        node.name,
        f"work there uses {describe(kind, units)} more than it may: {over}",
        to_do,
        node=node.name,
        boost_id=bounds.late[0].whole_id if bounds.late else None,
        resource_type=kind,
        off_by=units,
        work=work,
    )


def _marked_right(node: AuditedNode, kind: str, standing: Standing) -> bool:
    if kind not in node.marks.kinds and not standing.leases_at(node.name, kind):
        return True
    assert node.said is not None
    distance = node.said[kind] - node.base[kind]
    wanted = {"lent": max(0, -distance), "borrowed": max(0, distance)}
    has = {"lent": node.marks.lent[kind], "borrowed": node.marks.borrowed[kind]}
    # A marker counts in ten-thousandths of a core, a device or a GB, for memory too.
    return all(abs(wanted[part] - has[part]) * 10_000 <= 2 * scale(kind) for part in wanted)


def _marked(node: AuditedNode, kind: str) -> str:
    marks = (("lent", node.marks.lent[kind]), ("borrowed", node.marks.borrowed[kind]))
    parts = [f"having {word} {describe(kind, units)}" for word, units in marks if units]
    return " and ".join(parts) or f"having lent or borrowed no {kind}"


def _leftovers(facts: AuditFacts, node: AuditedNode) -> Iterator[Finding]:
    """Stamps and gates on a node without boosts: the change that they belonged to is over."""
    if node.marks.others and not any(node.name in (*lease.sources, lease.target) for lease in facts.leases):
        yield Finding(
            Code.MARKER_WITHOUT_LEASE,
            node.name,
            f"it still has {', '.join(node.marks.others)}, but no boost is in progress there",
            _BY_ITSELF,
            node=node.name,
            is_marked=True,
        )
