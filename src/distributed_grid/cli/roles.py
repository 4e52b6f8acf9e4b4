"""grid roles: whole workloads of actors; their plans as text and as `--json`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from distributed_grid.cli import role_runs
from distributed_grid.cli.commands import Group
from distributed_grid.cli.output import json_option, say, show
from distributed_grid.model.resources import ResourceVector, amount_of, total
from distributed_grid.model.roles.plan import DoesNotFit, Inventory, InventoryNode, Placement, Remedy, Unit
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Workload

if TYPE_CHECKING:
    from distributed_grid.cli.roles_view import (
        PlannedNode,
        PlannedPool,
        PlannedRemedy,
        PlannedRole,
        PlannedUnit,
        RolesPlan,
    )


def plan_dict(workload: Workload, inventory: Inventory, found: Placement | DoesNotFit, cluster: str) -> RolesPlan:
    placement = found if isinstance(found, Placement) else Placement(workload.name, ())
    by_node, counts = placement.by_node, placement.counts
    answer: RolesPlan = {
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


def _role_dict(role: RoleSpec, placed: int, placement: Placement) -> PlannedRole:
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


def _pools(workload: Workload, placement: Placement) -> list[PlannedPool]:
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


def _node_dict(node: InventoryNode, units: tuple[Unit, ...]) -> PlannedNode:
    return {
        "name": node.name,
        "closed": node.closed or None,
        "total": node.total.to_amounts(),
        "free": node.free.to_amounts(),
        "planned": total([unit.resources for unit in units]).to_amounts(),
        "units": [_unit_dict(unit) for unit in units],
    }


def _unit_dict(unit: Unit) -> PlannedUnit:
    return {
        "kind": str(unit.kind),
        "members": [{"role": member.role, "index": member.index} for member in unit.members],
        "resources": unit.resources.to_amounts(),
        "pool": unit.pool,
    }


def _remedy_dict(remedy: Remedy) -> PlannedRemedy:
    return {
        "kind": str(remedy.kind),
        "text": remedy.text,
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


_LIVE = "live"


@click.group(cls=Group)
def roles() -> None:
    """Plan, start and scale whole workloads of actors."""


for _command in (role_runs.up, role_runs.status, role_runs.scale, role_runs.down, role_runs.logs):
    roles.add_command(_command)


@roles.command(examples=["grid roles plan workload.yaml", "grid roles plan workload.yaml --cluster my-cluster.yaml"])
@click.argument("file", type=click.Path())
@click.option(
    "--cluster",
    default=_LIVE,
    show_default=True,
    metavar="live|FILE",
    help="live: the running cluster, with what is free now. FILE: a configured cluster in which everything is free.",
)
@json_option
def plan(file: str, cluster: str, as_json: bool) -> None:
    """Show where every actor of the workload in FILE would run, or what is missing. Nothing starts."""
    from distributed_grid.cli.columns import Canvas
    from distributed_grid.cli.roles_view import plan_view
    from distributed_grid.config.roles_file import load_workload
    from distributed_grid.decide.roles import plan_workload
    from distributed_grid.errors import Refused

    loaded = load_workload(file)
    for warning in loaded.warnings:
        say(f"Warning: {warning}")
    if cluster == _LIVE:
        inventory, found = _plan_live(loaded.workload)
    else:
        inventory = _described(cluster, loaded.workload)
        found = plan_workload(loaded.workload, inventory)
    answer = plan_dict(loaded.workload, inventory, found, cluster)
    show(answer, as_json, lambda answer: plan_view(answer, Canvas.here()))
    if not answer["fits"]:
        sys.exit(Refused.exit_code)


def _plan_live(workload: Workload) -> tuple[Inventory, Placement | DoesNotFit]:
    """Plan on what is free now. Suggests only boosts that would be granted."""
    from distributed_grid.client import GridClient
    from distributed_grid.decide.roles import plan_workload
    from distributed_grid.errors import NoCluster
    from distributed_grid.model.roles.plan import Placement, live_inventory

    client = GridClient(on_wait=say)
    try:
        inventory = live_inventory(client.nodes())
        found = plan_workload(workload, inventory)
        if isinstance(found, Placement):
            return inventory, found
        granted = [all(client.plan(boost.body())["fits"] for boost in remedy.boosts) for remedy in found.remedies]
        return inventory, found.with_remedies(granted)
    except NoCluster as error:
        also = "To plan on a cluster that a file describes: --cluster FILE"
        raise NoCluster(error.message, because=error.because, try_next=f"{error.try_next}. {also}") from None
    finally:
        client.close()


def _described(file: str, workload: Workload) -> Inventory:
    from pathlib import Path

    from distributed_grid.config import find_config, load_config
    from distributed_grid.config.roles_file import inventory_of, not_said

    loaded = load_config(find_config(file, {}, Path.cwd()))
    kinds = {kind for role in workload.roles for kind in role.needs}
    for line in (*loaded.warnings, *not_said(loaded, kinds)):
        say(f"Warning: {line}")
    return inventory_of(loaded)
