"""grid roles: whole workloads of actors."""

import sys
from typing import TYPE_CHECKING

import click

from distributed_grid.cli import role_runs
from distributed_grid.cli.output import json_option, say, show

if TYPE_CHECKING:
    from distributed_grid.model.roles.inventory import Inventory
    from distributed_grid.model.roles.plan import DoesNotFit, Placement
    from distributed_grid.model.roles.workload import Workload

_LIVE = "live"


@click.group()
def roles() -> None:
    """Whole workloads of actors: see where each would go, start them, scale them."""


for _command in (role_runs.up, role_runs.status, role_runs.scale, role_runs.down, role_runs.logs):
    roles.add_command(_command)


@roles.command()
@click.argument("file", type=click.Path())
@click.option(
    "--cluster",
    default=_LIVE,
    show_default=True,
    metavar="live|FILE",
    help="The cluster that runs, with what is free in it now; or one as a configuration file describes it, empty.",
)
@json_option
def plan(file: str, cluster: str, as_json: bool) -> None:
    """Where every actor of the workload in FILE would be, or what is missing. Nothing is started."""
    from distributed_grid.cli.canvas import Canvas
    from distributed_grid.cli.roles_answer import plan_dict
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
    show(answer, as_json, lambda told: plan_view(told, Canvas.here()))
    if not answer["fits"]:
        sys.exit(Refused.exit_code)


def _plan_live(workload: "Workload") -> "tuple[Inventory, Placement | DoesNotFit]":
    """On what is free now. Of boosts that would help, those are told that would be granted."""
    from distributed_grid.client import GridClient
    from distributed_grid.client.inventory import live_inventory
    from distributed_grid.decide.roles import plan_workload
    from distributed_grid.errors import NoCluster
    from distributed_grid.model.roles.plan import Placement

    client = GridClient(on_wait=say)
    try:
        inventory = live_inventory(client.nodes(), client.sharing_status())
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


def _described(file: str, workload: "Workload") -> "Inventory":
    from pathlib import Path

    from distributed_grid.config import find_config, load_config
    from distributed_grid.config.inventory import inventory_of, not_said

    loaded = load_config(find_config(file, {}, Path.cwd()))
    kinds = {kind for role in workload.roles for kind in role.needs}
    for line in (*loaded.warnings, *not_said(loaded, kinds)):
        say(f"Warning: {line}")
    return inventory_of(loaded)
