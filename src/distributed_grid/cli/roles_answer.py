"""A plan as `--json` shows it."""

from typing import Any

from distributed_grid.model.resources import ResourceVector, amount_of, total
from distributed_grid.model.roles.inventory import Inventory, InventoryNode
from distributed_grid.model.roles.plan import DoesNotFit, Placement, Remedy, Unit
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Workload


def plan_dict(workload: Workload, inventory: Inventory, found: Placement | DoesNotFit, cluster: str) -> dict[str, Any]:
    placement = found if isinstance(found, Placement) else Placement(workload.name, ())
    by_node, counts = placement.by_node, placement.counts
    answer: dict[str, Any] = {
        "workload": workload.name,
        "cluster": cluster,
        "fits": isinstance(found, Placement),
        "actors": sum(counts.values()),
        "units": len(placement.units),
        "roles": [_role_dict(role, counts.get(role.name, 0), placement) for role in workload.roles],
        "pools": _pools(workload, placement),
        "nodes": [_node_dict(node, by_node.get(node.name, ())) for node in inventory.values()],
        "certain": True,
        "reasons": [],
        "remedies": [],
    }
    if isinstance(found, DoesNotFit):
        answer["certain"] = found.certain
        answer["reasons"] = [
            {"roles": list(one.roles), "asked": one.asked, "placed": one.placed, "detail": one.detail}
            for one in found.reasons
        ]
        answer["remedies"] = [_remedy_dict(one) for one in found.remedies]
    return answer


def _role_dict(role: RoleSpec, placed: int, placement: Placement) -> dict[str, Any]:
    return {
        "role": role.name,
        "min": role.least,
        "max": role.most,
        "placed": placed,
        "nodes": len(set(placement.nodes_of(role.name))),
        "each": role.needs.to_amounts(),
        "pool": role.pool,
        "colocation_group": role.colocation_group,
        "colocation": None if role.colocation_group is None else str(role.colocation),
    }


def _pools(workload: Workload, placement: Placement) -> list[dict[str, Any]]:
    used = placement.used_by_pool
    return [
        {
            "name": pool.name,
            "quota": {kind: amount_of(kind, units) for kind, units in pool.quota.items()},
            "nodes": pool.where.words(),
            "planned": used.get(pool.name, ResourceVector()).to_amounts(),
        }
        for pool in workload.pools
    ]


def _node_dict(node: InventoryNode, units: tuple[Unit, ...]) -> dict[str, Any]:
    return {
        "name": node.name,
        "closed": node.closed or None,
        "total": node.total.to_amounts(),
        "free": node.free.to_amounts(),
        "planned": total([unit.resources for unit in units]).to_amounts(),
        "units": [_unit_dict(unit) for unit in units],
    }


def _unit_dict(unit: Unit) -> dict[str, Any]:
    return {
        "kind": str(unit.kind),
        "members": [{"role": member.role, "index": member.index} for member in unit.members],
        "resources": unit.resources.to_amounts(),
        "pool": unit.pool,
    }


def _remedy_dict(remedy: Remedy) -> dict[str, Any]:
    return {
        "kind": str(remedy.kind),
        "told": remedy.told,
        "commands": list(remedy.commands),
        "missing": [
            {
                "node": None if one.in_pool else one.where,
                "pool": one.where if one.in_pool else None,
                "resource_type": one.kind,
                "amount": amount_of(one.kind, one.units),
            }
            for one in remedy.missing
        ],
        "counts": dict(remedy.counts),
    }
