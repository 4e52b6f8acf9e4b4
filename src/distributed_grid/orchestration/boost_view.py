"""A boost as the API, `--json` and the Python classes show it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from distributed_grid.decide.lending import borrowed_by, lent_by
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.resources import BUILT_IN, ResourceVector, amount_of, total


def boost_dict(lease: Lease, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "boost_id": lease.id,
        "source_node": lease.source,
        "target_node": lease.target,
        "resource_type": lease.kind,
        "amount": amount_of(lease.kind, lease.units),
        "priority": str(lease.priority),
        "delivery": str(lease.delivery),
        "delivery_reason": lease.delivery_reason,
        "state": str(lease.state),
        "allocated_at": instant(lease.allocated_at),
        "expires_at": instant(lease.expires_at),
        "placement_group": lease.placement_group,
        "warnings": [*lease.warnings, *notes],
    }


def status_dict(leases: list[Lease], notes: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Totals per resource type over what is active, then every boost."""
    active = [lease for lease in leases if lease.state is LeaseState.ACTIVE]
    sums = total([ResourceVector({lease.kind: lease.units}) for lease in active])
    return {
        "total_active": len(active),
        "resources": sums.to_amounts(),
        "boosts": [boost_dict(lease, notes.get(lease.id, ())) for lease in leases],
    }


def node_dicts(nodes: NodeTable, leases: tuple[Lease, ...]) -> list[dict[str, Any]]:
    return [
        {
            "name": node.name,
            "node_id": node.node_id,
            "alive": node.alive,
            "is_head": node.is_head,
            "base": node.base.to_amounts(),
            "total": node.total.to_amounts(),
            "free": node.free.at_least_zero().to_amounts(),
            "lent": lent_by(node.name, leases).to_amounts(),
            "borrowed": borrowed_by(node.name, leases).to_amounts(),
        }
        for node in nodes.values()
    ]


def sharing_dict(nodes: NodeTable, leases: tuple[Lease, ...], sharing: Any) -> dict[str, Any]:
    """What `grid resource-sharing status` shows: the policy in force and every node's limits."""
    return {
        "enabled": sharing.enabled,
        "mode": str(sharing.mode),
        "policy": str(sharing.policy),
        "delivery": sharing.delivery or "transfer (reserve for GPUs)",
        "nodes": [
            {
                "name": node.name,
                "alive": node.alive,
                "can_share": node.limits.can_share,
                "limits": {
                    kind: None if (limit := node.limits.limit(kind)) is None else amount_of(kind, limit)
                    for kind in BUILT_IN
                },
                "lent": lent_by(node.name, leases).to_amounts(),
                "borrowed": borrowed_by(node.name, leases).to_amounts(),
                "free": node.free.at_least_zero().to_amounts(),
            }
            for node in nodes.values()
        ],
    }


def instant(at: datetime) -> str:
    """ISO 8601 in UTC, to the millisecond."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
