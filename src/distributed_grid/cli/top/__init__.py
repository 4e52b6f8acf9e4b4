"""grid top: the cluster full-screen, live."""

import importlib.util

import click

from distributed_grid.cli.commands import Command
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import is_a_terminal
from distributed_grid.client import GridClient
from distributed_grid.errors import ExtraMissing


@click.command(cls=Command, examples=["grid top"])
@with_client
def top(client: GridClient) -> None:
    """Show the cluster full-screen: nodes with their last hour, boosts, events. Press ? for the keys."""
    require_textual()
    if not is_a_terminal():
        raise click.UsageError("grid top needs a terminal. For programs: grid cluster status --json --watch")
    client.cluster_status()  # an error is better shown before the screen is cleared

    from distributed_grid.cli.columns import Canvas
    from distributed_grid.cli.top.app import TopApp

    TopApp(client.home, blocks=Canvas.here().blocks).run()


def require_textual() -> None:
    if importlib.util.find_spec("textual") is None:
        raise ExtraMissing(
            "grid top needs Textual, which is not installed",
            because=["it is an extra of distributed-grid"],
            try_next="pip install 'distributed-grid[top]'; without it: grid cluster status --watch",
        )
