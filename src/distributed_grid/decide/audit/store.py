"""The ledger in memory against the file on disk."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from distributed_grid.model.audit import AuditFacts, Finding, FindingKind
from distributed_grid.model.leases import Lease

FILE: Final = "resource_boosts.json"
_WRITE = "grid audit --repair writes what grid knows; the file as it is now is kept beside it."


def about_the_file(facts: AuditFacts) -> Iterator[Finding]:
    """What a restart would lose, or bring back. Boosts that a request is working on are being written just now."""
    if facts.on_disk.problem is not None:
        yield Finding(FindingKind.STORE_DIFFERS, FILE, facts.on_disk.problem, _WRITE)
        return
    known = {lease.id: lease for lease in facts.leases if lease.id not in facts.in_flight}
    stored = {lease.id: lease for lease in facts.on_disk.leases if lease.id not in facts.in_flight}
    for lease in known.values():
        if lease.id not in stored:
            yield _finding(lease, "is not in the file: a restart would lose it")
        elif stored[lease.id] != lease:
            yield _finding(lease, f"is another in the file: {_differences(lease, stored[lease.id])}")
    for lease in stored.values():
        if lease.id not in known:
            yield _finding(lease, "is in the file, and grid does not know it: a restart would bring it back")


def _finding(lease: Lease, detail: str) -> Finding:
    told = f"boost {lease.id[:8]} ({lease.describe()}) {detail}"
    return Finding(FindingKind.STORE_DIFFERS, FILE, told, _WRITE, boost_id=lease.id)


def _differences(known: Lease, stored: Lease) -> str:
    found = [
        f"{field.name} is {_shown(getattr(stored, field.name))}, not {_shown(getattr(known, field.name))}"
        for field in fields(Lease)
        if getattr(known, field.name) != getattr(stored, field.name)
    ]
    return "; ".join(found)


def _shown(value: object) -> str:
    return "nothing" if value is None else str(value)
