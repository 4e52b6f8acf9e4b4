"""grid node: one line for each node, or everything about one."""

import click

from distributed_grid.cli.commands import TIME, Group
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import json_option, show
from distributed_grid.cli.parameters import NODE
from distributed_grid.client import GridClient


@click.group(cls=Group)
def node() -> None:
    """Show what each node has and uses, and what is forecast for it."""


@node.command(examples=["grid node ls"])
@json_option
@with_client
def ls(client: GridClient, as_json: bool) -> None:
    """List all nodes, one line each: state, pressure, what is free, lent and borrowed."""
    from distributed_grid.cli.columns import Canvas
    from distributed_grid.cli.node_view import nodes_view

    show(client.nodes(), as_json, lambda found: nodes_view(found["nodes"], Canvas.here()))


@node.command(name="show", examples=["grid node show gpu1", "grid node show gpu1 --horizon 2h"])
@click.argument("name", metavar="NODE", type=NODE)
@click.option("--horizon", metavar=TIME, default="15m", show_default=True, help="How far ahead to forecast.")
@json_option
@with_client
def show_one(client: GridClient, name: str, horizon: str, as_json: bool) -> None:
    """Show everything about NODE: Ray's counts, measured use, its last hour, and a forecast."""
    from distributed_grid.cli.columns import Canvas
    from distributed_grid.cli.node_view import node_view
    from distributed_grid.model.validators import seconds

    ahead_s = seconds("horizon", horizon)
    show(client.node(name, ahead_s), as_json, lambda found: node_view(found, Canvas.here()))
