"""grid cluster: start and stop the embedded cluster, and show the status of any cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from distributed_grid.cli.commands import Group
from distributed_grid.cli.connection import listening_options, with_client
from distributed_grid.cli.output import adopt_option, config_option, json_option, keep_showing, say, say_notes, show
from distributed_grid.client import GridClient
from distributed_grid.model.listening import Listening

if TYPE_CHECKING:
    from distributed_grid.wire.controller import ClusterUp
    from distributed_grid.wire.nodes import ClusterStatus


@click.group(cls=Group)
def cluster() -> None:
    """Start and stop the embedded cluster; show the status of any cluster."""


@cluster.command(
    examples=["grid cluster start", "grid cluster start --config config/my-cluster-enhanced.yaml --port 8421"]
)
@config_option
@listening_options
@adopt_option
@json_option
def start(config_path: str | None, listening: Listening, adopt: bool, as_json: bool) -> None:
    """Start a raylet for each configured node on this machine, and add grid. Both keep running after this command."""
    from distributed_grid.cluster.embedded import start_embedded
    from distributed_grid.store.home import GridHome

    home = GridHome.find()
    started = start_embedded(home, config_path, progress=say, listening=listening, adopt=adopt)

    def text(found: ClusterUp) -> str:
        return "\n".join(
            [
                f"The cluster {found['cluster']} is up at {found['ray_address']}; grid answers at {found['url']}",
                "  grid cluster status                              show the nodes",
                f"  grid boost request {found['head']} cpu 4".ljust(51) + f"lend 4 CPUs to {found['head']} for an hour",
                f"  RAY_ADDRESS={found['ray_address']} python my_script.py   run a Ray program on it",
                "  grid cluster stop                                stop the cluster",
            ]
        )

    show(started, as_json, text)
    say_notes(started)


@cluster.command(examples=["grid cluster stop"])
@json_option
def stop(as_json: bool) -> None:
    """Stop the embedded cluster: exactly the processes that `grid cluster start` started."""
    from distributed_grid.cluster.embedded import stop_embedded
    from distributed_grid.store.home import GridHome

    stopped = stop_embedded(GridHome.find(), progress=say)
    show(
        stopped,
        as_json,
        lambda found: (
            f"Stopped {', '.join(found['stopped'])}" if found["stopped"] else "No embedded cluster is running here."
        ),
    )


@cluster.command(
    examples=["grid cluster status", "grid cluster status --watch", "grid cluster status --json | jq .nodes"]
)
@click.option("--watch", is_flag=True, help="Keep the output up to date until Ctrl-C.")
@json_option
@with_client
def status(client: GridClient, watch: bool, as_json: bool) -> None:
    """Show every node with its pressure and what is free, lent and borrowed; what waits; which boosts end next."""
    from distributed_grid.cli.cluster_view import cluster_view
    from distributed_grid.cli.columns import Canvas

    def view(found: ClusterStatus) -> str:
        return cluster_view(found, Canvas.here())

    if watch:
        keep_showing(client.cluster_status, as_json, view)
        return
    show(client.cluster_status(), as_json, view)
