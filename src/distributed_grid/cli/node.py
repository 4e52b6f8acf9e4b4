"""grid node: one line for each node, or everything about one."""

import click

from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import json_option, show
from distributed_grid.client import GridClient


@click.group()
def node() -> None:
    """What each node has, does and will do."""


@node.command()
@json_option
@with_client
def ls(client: GridClient, as_json: bool) -> None:
    """All nodes, a line each: state, pressure, what is free, lent and borrowed."""
    from distributed_grid.cli.canvas import Canvas
    from distributed_grid.cli.node_view import nodes_view

    show(client.nodes(), as_json, lambda found: nodes_view(found["nodes"], Canvas.here()))


@node.command(name="show")
@click.argument("name", metavar="NODE")
@click.option(
    "--horizon", metavar="TIME", default="15m", show_default=True, help="How far to look ahead: 90s, 15m, 2h."
)
@json_option
@with_client
def show_one(client: GridClient, name: str, horizon: str, as_json: bool) -> None:
    """Everything about NODE: what Ray counts and what was measured, its last hour, and what is expected."""
    from distributed_grid.cli.canvas import Canvas
    from distributed_grid.cli.node_view import node_view
    from distributed_grid.model.requests import length_of_time

    ahead_s = length_of_time("horizon", horizon)
    show(client.node(name, ahead_s), as_json, lambda found: node_view(found, Canvas.here()))
