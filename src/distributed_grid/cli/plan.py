"""grid plan, why and cooldown: what would happen, what happened, and a node that rests."""

import click

from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import json_option, show
from distributed_grid.client import GridClient


# A negative amount looks like an option; it must reach our own check and its message.
@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("target")
@click.argument("resource_type", metavar="cpu|gpu|memory|CUSTOM")
@click.argument("amount")
@click.option("--priority", default="normal", show_default=True, help="low, normal, high or critical.")
@click.option("--duration", metavar="SECONDS", help="How long it would last.  [default: 3600]")
@click.option("--source", metavar="NODE", help="Who would lend; chosen by free capacity if not given.")
@click.option("--delivery", metavar="transfer|reserve|auto", help="How it would reach the target.")
@json_option
@with_client
def plan(
    client: GridClient,
    target: str,
    resource_type: str,
    amount: str,
    priority: str,
    duration: str | None,
    source: str | None,
    delivery: str | None,
    as_json: bool,
) -> None:
    """What would happen if AMOUNT of a resource were asked for TARGET now. Nothing is changed."""
    from distributed_grid.cli.answer_view import plan_view
    from distributed_grid.cli.canvas import Canvas
    from distributed_grid.model.requests import make_ask

    make_ask(
        target,
        resource_type,
        amount,
        priority=priority,
        duration_s=duration,
        source=source,
        delivery=delivery,
        fractional_gpus=True,
    )
    found = client.plan(
        {
            "target_node": target,
            "resource_type": resource_type,
            "amount": amount,
            "priority": priority,
            "duration_seconds": duration,
            "source_node": source,
            "delivery": delivery,
        }
    )
    show(found, as_json, lambda answer: plan_view(answer, Canvas.here()))


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
