"""Leases that should have moved on by now."""

from collections.abc import Iterator

from distributed_grid.decide.audit.standing import LATE
from distributed_grid.model.audit import AuditFacts, Finding, FindingKind
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.nodes import NodeName

_BY_ITSELF = "Nothing: grid does it within seconds, or with grid audit --repair. If it stays, see the controller's log."


def about_leases(facts: AuditFacts) -> Iterator[Finding]:
    there = {node.name for node in facts.nodes}
    for lease in facts.leases:
        if lease.id in facts.in_flight:
            continue
        if lease.state is LeaseState.ACTIVE and facts.now > lease.expires_at + LATE:
            over = (facts.now - lease.expires_at).total_seconds()
            yield _finding(FindingKind.EXPIRED, lease, f"it expired {over:.0f} s ago, and has not begun to go home")
        if lease.state is LeaseState.GRANTING:
            cut_off = "its grant was cut off, and neither completed nor undone"
            yield _finding(FindingKind.UNFINISHED_GRANT, lease, cut_off)
        gone = sorted(_needed(lease) - there)
        if gone and lease.state is not LeaseState.LOST:
            yield _finding(
                FindingKind.NODE_GONE, lease, f"{' and '.join(gone)} left the cluster, and it has not ended", gone[0]
            )


def _needed(lease: Lease) -> set[NodeName]:
    """The nodes without which a lease is none: a reservation lives on its source."""
    return {lease.source} if lease.delivery is Delivery.RESERVE else {lease.source, lease.target}


def _finding(kind: FindingKind, lease: Lease, detail: str, node: NodeName | None = None) -> Finding:
    return Finding(
        kind,
        lease.id,
        f"{lease.describe()}: {detail}",
        _BY_ITSELF,
        node=node or lease.target,
        boost_id=lease.id,
    )
