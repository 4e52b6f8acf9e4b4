"""grid resource-sharing: who may lend what, and what is lent."""

import click

from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import json_option, show
from distributed_grid.client import GridClient


@click.group("resource-sharing")
def resource_sharing() -> None:
    """Who may lend what, and what is lent."""


@resource_sharing.command()
@json_option
@with_client
def status(client: GridClient, as_json: bool) -> None:
    """The sharing settings in force, and every node's limits."""
    from distributed_grid.cli.tables import sharing_view

    show(client.sharing_status(), as_json, sharing_view)
