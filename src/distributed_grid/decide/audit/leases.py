"""Audit of leases: overdue ones, reservations against placement groups, the ledger against the file on disk."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from distributed_grid.decide.audit.nodes import LATE, is_late
from distributed_grid.model.audit import AuditedGroup, AuditFacts
from distributed_grid.model.findings import Code, Finding
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeName

_BY_ITSELF = (
    "No action needed: grid repairs it within seconds, or with grid audit --repair. "
    "If it stays: see the controller's log."
)


def about_leases(facts: AuditFacts) -> Iterator[Finding]:
    there = {node.name for node in facts.nodes}
    for lease in facts.leases:
        if lease.state is LeaseState.GRANTING:
            continue
        if lease.state is LeaseState.ACTIVE and facts.now > lease.expires_at + LATE:
            over = (facts.now - lease.expires_at).total_seconds()
            yield _finding(Code.EXPIRED, lease, f"it expired {over:.0f} s ago, and its return has not begun")
        if lease.state is LeaseState.INTERRUPTED:
            cut_off = "its grant was interrupted, and neither completed nor undone"
            yield _finding(Code.UNFINISHED_GRANT, lease, cut_off)
        gone = sorted(lease.needed_nodes - there)
        if gone and lease.state is not LeaseState.LOST:
            yield _finding(
                Code.NODE_GONE, lease, f"{' and '.join(gone)} left the cluster, and the boost has not ended", gone[0]
            )


def _finding(kind: Code, lease: Lease, detail: str, node: NodeName | None = None) -> Finding:
    return Finding(
        kind,
        lease.id,
        f"{lease.describe()}: {detail}",
        _BY_ITSELF,
        node=node or lease.target,
        boost_id=lease.id,
    )


_MADE_AGAIN = "No action needed: grid recreates it within seconds, or with grid audit --repair, or ends the boost."
_REMOVED = "No action needed: within seconds, or with grid audit --repair, grid cancels its work and removes it."


def about_groups(facts: AuditFacts) -> Iterator[Finding]:
    reserved = _reserved(facts)
    for group in facts.groups:
        lease = reserved.get(group.name)
        if lease is None or _is_another(group, lease, facts.groups):
            yield from _unknown(group, lease)
        elif group.work and is_late(lease, facts.now):
            yield _outside(group, f"boost {lease.id[:8]} is over, and so is its grace period", lease)
    by_name: dict[str, list[AuditedGroup]] = defaultdict(list)
    for group in facts.groups:
        by_name[group.name].append(group)
    for name, lease in reserved.items():
        if lease.state is LeaseState.ACTIVE:
            yield from _about_its_group(lease, by_name[name])


def groups_where_work_matters(facts: AuditFacts) -> frozenset[str]:
    """The ids of the groups in which nothing should run."""
    reserved = _reserved(facts)
    return frozenset(
        group.id
        for group in facts.groups
        if (lease := reserved.get(group.name)) is None or is_late(lease, facts.now) or group.id != lease.held_by
    )


def _reserved(facts: AuditFacts) -> dict[str, Lease]:
    return {lease.group_name: lease for lease in facts.leases if not lease.delivery.moves_totals}


def _is_another(group: AuditedGroup, lease: Lease, groups: tuple[AuditedGroup, ...]) -> bool:
    """True if the group only shares the name, and the boost's own group exists as well."""
    return group.id != lease.held_by and any(other.id == lease.held_by for other in groups)


def _unknown(group: AuditedGroup, lease: Lease | None) -> Iterator[Finding]:
    problem = (
        f"no boost has this {group.delivery.held_in}"
        if lease is None
        else f"a second {group.delivery.held_in} with the name of boost {lease.id[:8]}'s"
    )
    yield Finding(
        Code.UNKNOWN_GROUP,
        group.name,
        f"{problem}; it holds {group.resources.describe()}{_on(group)}",
        _REMOVED if lease is None else "Remove it, with Ray or (if nothing runs in it) with grid audit --repair.",
        node=group.node,
        work=group.work,
        group_id=group.id,
    )
    if group.work:
        yield _outside(group, "it belongs to no boost", None)


def _about_its_group(lease: Lease, named: list[AuditedGroup]) -> Iterator[Finding]:
    own = next((group for group in named if group.id == lease.held_by), None) or next(iter(named), None)
    short, what = lease.id[:8], lease.delivery.held_in
    if own is None:
        kind, detail, to_do = Code.GROUP_MISSING, f"{lease.describe()}: its {what} is gone", _MADE_AGAIN
    elif not own.stands:
        kind = Code.GROUP_FALLEN
        detail, to_do = f"{lease.describe()}: its {what} is not placed on any node", _MADE_AGAIN
    elif own.id != lease.held_by:
        kind, to_do = Code.GROUP_DIFFERS, "No action needed: grid records the present one within seconds."
        detail = f"{lease.describe()}: a different {what} than the one in the ledger has its name"
    elif own.resources != lease.resources or own.node not in (None, *lease.sources):
        kind = Code.GROUP_DIFFERS
        detail = f"{lease.describe()}: its {what} holds {own.resources.describe()}{_on(own)}"
        to_do = f"Release it and request it again: grid boost release {short}"
    else:
        return
    yield Finding(kind, lease.id, detail, to_do, node=lease.source, boost_id=lease.id)


def _outside(group: AuditedGroup, why: str, lease: Lease | None) -> Finding:
    return Finding(
        Code.WORK_OUTSIDE_LEASE,
        group.name,
        f"work runs in this reservation, and {why}",
        _REMOVED,
        node=group.node,
        boost_id=lease.id if lease else None,
        work=group.work,
        group_id=group.id,
    )


def _on(group: AuditedGroup) -> str:
    return f" on {group.node}" if group.node else ""


FILE: Final = "resource_boosts.json"
_WRITE = "grid audit --repair writes what grid knows; the file as it is now is kept beside it."


def about_the_file(facts: AuditFacts) -> Iterator[Finding]:
    """Boosts that a restart would lose or bring back, except those that a request is changing right now."""
    if facts.on_disk.problem is not None:
        yield Finding(Code.STORE_DIFFERS, FILE, facts.on_disk.problem, _WRITE)
        return
    in_flux = {lease.id for lease in facts.leases if lease.state is LeaseState.GRANTING}
    known = {lease.id: lease for lease in facts.leases if lease.id not in in_flux}
    stored = {lease.id: lease for lease in facts.on_disk.leases if lease.id not in in_flux}
    for lease in known.values():
        if lease.id not in stored:
            yield _store_finding(lease, "is not in the file: a restart would lose it")
        elif stored[lease.id] != lease:
            yield _store_finding(lease, f"differs in the file: {_differences(lease, stored[lease.id])}")
    for lease in stored.values():
        if lease.id not in known:
            yield _store_finding(lease, "is in the file, and grid does not know it: a restart would bring it back")


def _store_finding(lease: Lease, detail: str) -> Finding:
    problem = f"boost {lease.id[:8]} ({lease.describe()}) {detail}"
    return Finding(Code.STORE_DIFFERS, FILE, problem, _WRITE, boost_id=lease.id)


def _differences(known: Lease, stored: Lease) -> str:
    found = [
        f"{field.name} is {_shown(getattr(stored, field.name))}, not {_shown(getattr(known, field.name))}"
        for field in fields(Lease)
        if getattr(known, field.name) != getattr(stored, field.name)
    ]
    return "; ".join(found)


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)
