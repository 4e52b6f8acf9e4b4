"""grid plan, why and cooldown: what would happen, what happened, and a node that rests."""

from typing import Any

import click

from distributed_grid.cli.asking import ASKING, asks_for_capacity, body_of
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import json_option, show
from distributed_grid.client import GridClient


@click.command(context_settings=ASKING)
@asks_for_capacity
@json_option
@with_client
def plan(client: GridClient, as_json: bool, **asked: Any) -> None:
    """What would happen if AMOUNT of a resource were asked for TARGET now. Nothing is changed."""
    from distributed_grid.cli.answer_view import plan_view
    from distributed_grid.cli.canvas import Canvas

    show(client.plan(body_of(asked)), as_json, lambda answer: plan_view(answer, Canvas.here()))


@click.command()
@click.argument("request_or_boost", metavar="REQUEST_OR_BOOST")
@json_option
@with_client
def why(client: GridClient, request_or_boost: str, as_json: bool) -> None:
    """Why a request waits, or why a boost is lent by the node that lends it: a reason for every node."""
    from distributed_grid.cli.answer_view import why_view
    from distributed_grid.cli.canvas import Canvas

    show(client.why(request_or_boost), as_json, lambda answer: why_view(answer, Canvas.here()))


@click.command()
@click.argument("node")
@click.option("--off", is_flag=True, help="Let it lend and borrow again.")
@click.option("--grace", metavar="SECONDS", help="How long work on what comes home may go on.")
@json_option
@with_client
def cooldown(client: GridClient, node: str, off: bool, grace: str | None, as_json: bool) -> None:
    """Let NODE give everything back and lend nothing until told."""
    from distributed_grid.cli.answer_view import cooldown_view
    from distributed_grid.model.requests import seconds

    grace_s = None if grace is None else seconds("grace period", grace, zero_allowed=True)
    show(client.cooldown(node, on=not off, grace_s=grace_s), as_json, cooldown_view)
