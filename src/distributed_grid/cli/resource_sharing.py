"""grid resource-sharing: who may lend what, who waits, and by which policy."""

from typing import Any

import click

from distributed_grid.cli.asking import ASKING, asks_for_capacity, body_of
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import json_option, say, show
from distributed_grid.client import GridClient


@click.group("resource-sharing")
def resource_sharing() -> None:
    """Who may lend what, who waits, and by which policy."""


@resource_sharing.command()
@json_option
@with_client
def status(client: GridClient, as_json: bool) -> None:
    """The policy in force, every node's limits, every team's part, and who waits."""
    from distributed_grid.cli.canvas import Canvas
    from distributed_grid.cli.sharing_view import sharing_view

    show(client.sharing_status(), as_json, lambda found: sharing_view(found, Canvas.here()))


@resource_sharing.command(context_settings=ASKING)
@asks_for_capacity
@click.option("--wait", metavar="SECONDS", help="Give up after this long.  [default: wait until it is met]")
@json_option
@with_client
def request(client: GridClient, wait: str | None, as_json: bool, **asked: Any) -> None:
    """Ask for AMOUNT of a resource for TARGET, and leave the request in the queue if it has to wait."""
    from distributed_grid.cli.canvas import Canvas
    from distributed_grid.cli.sharing_view import allocation_card
    from distributed_grid.model.requests import seconds

    body = body_of(asked) | {"wait_seconds": None if wait is None else seconds("wait", wait, zero_allowed=True)}
    show(client.request_allocation(body), as_json, lambda one: allocation_card(one, Canvas.here()))


@resource_sharing.command()
@click.argument("request_id")
@json_option
@with_client
def release(client: GridClient, request_id: str, as_json: bool) -> None:
    """Give an allocation back, or wait for it no longer. REQUEST_ID may be shortened."""
    from distributed_grid.cli.sharing_view import released_line

    show(client.release_allocation(request_id), as_json, released_line)


@resource_sharing.command()
@click.option("--watch", is_flag=True, help="Keep showing it until Ctrl-C.")
@json_option
@with_client
def queue(client: GridClient, watch: bool, as_json: bool) -> None:
    """Who waits: position, reason and expected start."""
    from distributed_grid.cli.canvas import Canvas
    from distributed_grid.cli.sharing_view import queue_view

    if watch:
        from distributed_grid.cli.watching import watch as keep_showing

        keep_showing(client.queue, as_json, lambda found: queue_view(found, Canvas.here()))
        return
    show(client.queue(), as_json, lambda found: queue_view(found, Canvas.here()))


@resource_sharing.group()
def policy() -> None:
    """How readily capacity moves, and what may happen at all."""


@policy.command(name="show")
@json_option
@with_client
def show_policy(client: GridClient, as_json: bool) -> None:
    """The policy and mode in force, with their numbers."""
    from distributed_grid.cli.sharing_view import policy_view

    keys = ("policy", "mode", "configured_policy", "configured_mode", "numbers")
    found = client.sharing_status()
    show({key: found[key] for key in keys}, as_json, policy_view)


@policy.command(name="set")
@click.argument("name", metavar="[POLICY]", required=False)
@click.option("--mode", help="offload_only, share_and_offload or dynamic_balancing.")
@json_option
@with_client
def set_policy(client: GridClient, name: str | None, mode: str | None, as_json: bool) -> None:
    """Share by POLICY from now on: conservative, balanced, aggressive or predictive.

    It stays in force over restarts; `configured` goes back to what the configuration says.
    """
    from distributed_grid.cli.sharing_view import policy_view
    from distributed_grid.model.policies import check_change

    check_change(name, mode)  # what makes no sense needs no cluster to say so
    show(client.set_policy(policy=name, mode=mode), as_json, policy_view)
    if not as_json:
        say("In force now, also after restarts. Back to the file's: grid resource-sharing policy set configured")
