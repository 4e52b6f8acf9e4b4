"""Reservations against the groups that stand in the cluster: what is missing is made again, what is left over goes."""

from distributed_grid.execution.port import Group
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.orchestration.parts import Parts


async def mend_groups(p: Parts) -> None:
    """Groups nobody knows are removed; a reservation whose group does not stand is made again, or ends."""
    # Noted before the look: a group that is made during it is not listed yet, or does not stand yet; one that is
    # removed during it may still be.
    before = _reserved(p)
    active = [lease for lease in before if lease.state is LeaseState.ACTIVE]
    groups = await p.applier.groups()
    known = {lease.group_name for lease in (*before, *_reserved(p))}
    for name, group in groups.items():
        if name not in known:
            p.journal.note("unknown_group", f"removed the placement group {name}, which belongs to no boost")
            await p.applier.remove_group(group.id)
    standing = {name: group.id for name, group in groups.items() if group.stands}
    for lease in active:
        if standing.get(lease.group_name, lease.placement_group) != lease.placement_group:
            _keep(p, lease, standing[lease.group_name])  # it was made again, and the answer was lost
    fallen = [lease for lease in active if lease.group_name not in standing]
    if fallen:
        await p.look()  # a source may have gone, or come back, since the turn began
    for lease in fallen:
        if _still_active(p, lease) and lease.source in p.observer.naming.raylets:  # else it is not back, or soon lost
            await without_remnant(p, groups.get(lease.group_name))
            await _reserve_again(p, lease)


async def without_remnant(p: Parts, group: Group | None) -> str | None:
    """The id of a group that stands; of one that does not, nothing is left: the next has its name.

    What waits in it is cancelled, as it would wait for ever.
    """
    if group is None:
        return None
    if group.stands:
        return group.id
    await p.applier.remove_group(group.id)
    return None


async def _reserve_again(p: Parts, lease: Lease) -> None:
    group = await p.applier.reserve(lease)
    current = _still_active(p, lease)
    if current is None:
        if group is not None:  # it was released while its group was made
            await p.applier.remove_group(group)
    elif group is not None:
        _keep(p, lease, group)
        p.journal.note("reserved_again", f"{lease.describe()}: its reservation was made again", lease=lease)
    else:
        told = "its reservation vanished"
        lost = current.to(LeaseState.LOST, release_reason=told, placement_group=None, release_asked_at=p.now())
        p.ledger.put(lost)
        p.journal.note("lost", f"{lease.describe()}: {told} and could not be made again", lease=lost)
        p.commit_soon()


def _keep(p: Parts, lease: Lease, group_id: str) -> None:
    """The lease has this group from now on; it may have been renewed meanwhile."""
    if (current := _still_active(p, lease)) is not None:
        p.ledger.put(current.to(LeaseState.ACTIVE, placement_group=group_id))
        p.commit_soon()


def _still_active(p: Parts, lease: Lease) -> Lease | None:
    current = p.ledger.get(lease.id)
    return current if current is not None and current.state is LeaseState.ACTIVE else None


def _reserved(p: Parts) -> list[Lease]:
    return [lease for lease in p.ledger if lease.delivery is Delivery.RESERVE]
