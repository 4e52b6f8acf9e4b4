"""What a lender's own work uses, without that of others which runs in what they have reserved there."""

from collections.abc import Iterable

from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import CPU, GPU, ResourceVector, scale
from distributed_grid.model.snapshots import NodeSnapshot


def reserved(leases: Iterable[Lease]) -> dict[NodeName, ResourceVector]:
    """By node: what others have on it. What moved away is no longer there, and loads nobody here."""
    found: dict[NodeName, ResourceVector] = {}
    for lease in leases:
        if lease.delivery is Delivery.RESERVE and lease.holds_capacity:
            found[lease.source] = found.get(lease.source, ResourceVector()) + lease.resources
    return found


def own_part(snapshot: NodeSnapshot, kind: str, for_others: int) -> float | None:
    """0..1: the node's own use, of what is left to it; None: not measured.

    What is reserved counts as used by those who reserved it. So a lender is not taken for pressed by the work that it
    was asked to carry, and one whose own work has outgrown its part still shows.
    """
    value = None if snapshot.stale or snapshot.pressure is None else snapshot.pressure.own(kind)
    if value is None or snapshot.measured is None or not for_others:
        return value
    has = _measured_over(snapshot, kind)
    used, left = value * has - for_others, has - for_others
    if left <= 0:
        return 1.0 if used > 0 else 0.0
    return min(1.0, max(0.0, used / left))


def _measured_over(snapshot: NodeSnapshot, kind: str) -> float:
    """What the measured part is a part of, in units; as in `decide/pressure`."""
    measured = snapshot.measured
    if measured is None:
        return float(snapshot.total[kind])
    if kind == GPU:
        return float(len(measured.gpus) * scale(GPU))
    host = measured.host.cpus * scale(CPU) if kind == CPU else float(measured.host.memory_total)
    return min(host, snapshot.total[kind]) if snapshot.shares_its_host else host
