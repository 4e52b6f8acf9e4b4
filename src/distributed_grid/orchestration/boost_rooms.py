"""What is left in a target's reserved boosts for its tasks."""

from collections.abc import Callable, Mapping
from datetime import datetime

from distributed_grid.decide.scheduling import BoostRoom
from distributed_grid.execution.port import NodeView
from distributed_grid.model.leases import Delivery, Lease, LeaseState, Purpose
from distributed_grid.model.nodes import NodeId, NodeName, NodeTable
from distributed_grid.model.resources import ResourceVector, ray_name
from distributed_grid.orchestration.ledger import Ledger


def carries_tasks(lease: Lease) -> bool:
    """A boost whose group stands, and which nobody asks back."""
    return (
        lease.purpose is Purpose.BOOST
        and lease.delivery is Delivery.RESERVE
        and lease.state is LeaseState.ACTIVE
        and lease.placement_group is not None
        and lease.notice is None
    )


def boost_rooms(
    ledger: Ledger,
    nodes: NodeTable,
    view: Mapping[NodeId, NodeView],
    *,
    target: NodeName,
    may_use: Callable[[Lease], bool],
    until: datetime,
    promised: Callable[[str], ResourceVector],
) -> tuple[BoostRoom, ...]:
    """Of each boost that lasts until then, and that the task's owner may use: what is neither promised to a task nor
    used, as Ray shows it.

    What Ray shows may be used by those tasks themselves: the larger of the two counts, not both.
    """
    found = []
    for lease in ledger:
        if lease.target != target or lease.expires_at < until or not carries_tasks(lease) or not may_use(lease):
            continue
        if lease.source not in nodes or not nodes[lease.source].alive:
            continue
        used, taken = _used(lease, view.get(nodes[lease.source].node_id)), promised(lease.id)
        free = {kind: units - max(used[kind], taken[kind]) for kind, units in lease.resources.items()}
        found.append(BoostRoom(lease.id, lease.source, ResourceVector(free).at_least_zero()))
    return tuple(sorted(found, key=lambda room: room.id))


def _used(lease: Lease, seen: NodeView | None) -> ResourceVector:
    """What work holds in the group; where the node does not show the group, nobody knows, and nothing is counted."""
    if seen is None:
        return ResourceVector()
    held = {}
    for kind in lease.resources:
        name = f"{ray_name(kind)}_group_{lease.placement_group}"
        if name in seen.total:
            held[ray_name(kind)] = seen.total[name] - seen.free.get(name, 0.0)
    return ResourceVector.from_ray(held)
