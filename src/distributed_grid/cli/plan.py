"""grid plan, why and cooldown: what would happen, what happened, and cordoned nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Unpack

import click

from distributed_grid.cli.capacity_options import CapacityCommand, CapacityOptions, requested, with_capacity_options
from distributed_grid.cli.columns import Canvas
from distributed_grid.cli.commands import TIME, Command
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import clock, distance, json_option, quantity, show
from distributed_grid.cli.parameters import NODE, REQUEST
from distributed_grid.cli.tables import bold, part_lines
from distributed_grid.client import GridClient
from distributed_grid.errors import BoostNotFound, GridError, Refused, RequestNotFound

if TYPE_CHECKING:
    from distributed_grid.wire.queue import NodeVerdict, Plan, Why
    from distributed_grid.wire.sharing import Cooldown

_MOST: Final = 50
_COLOURS: Final = {"chosen": "green", "could lend": "green"}


def plan_view(plan: Plan, canvas: Canvas) -> str:
    """Whether it fits, the lender, the leases that would yield, the expected start, what fits now; then every node."""
    later = ("not now", "yellow") if ": not now" in plan["summary"] else ("no", "red")
    word, colour = ("yes", "green") if plan["fits"] else later
    lines = canvas.wrapped(plan["summary"], indent="  ", first=f"Fits: {word}   ")
    lines[0] = lines[0].replace(f"Fits: {word}", f"{bold('Fits:')} {click.style(word, fg=colour)}", 1)
    if plan["fits"]:
        lines += [f"  {line}" for line in part_lines(plan)]
        lines.append(f"  delivery: {plan['delivery']} ({plan['delivery_reason']})")
    else:
        lines += [f"  {line}" for line in _otherwise(plan)]
    lines += [click.style(f"  Warning: {line}", fg="yellow") for line in plan["warnings"]]
    return "\n".join([*lines, "", *_nodes(plan["nodes"], canvas)])


def _otherwise(plan: Plan) -> list[str]:
    lines = []
    for victim in (plan["preemption"] or {"victims": []})["victims"]:
        what = quantity(victim["resource_type"], victim["takes"])
        owner = f"priority {victim['priority']}, team {victim['team']}"
        lines.append(f"would yield: {victim['boost_id'][:8]}, {what} that {victim['target_node']} has ({owner})")
    if plan["team_limit"]:
        lines.append(plan["team_limit"])
    if plan["ahead"]:
        lines.append(f"{plan['ahead']} waiting {'request is' if plan['ahead'] == 1 else 'requests are'} ahead of it")
    if (start := plan["expected_start"]) is not None:
        lines.append(f"expected start, if it waits: {clock(start)} ({distance(start)})")
    most = plan["largest_now"]
    if most["source_node"] is not None:
        what = quantity(plan["resource_type"], most["amount"])
        lines.append(f"the most that fits now: {what} of {most['source_node']}")
    return lines


def why_view(answer: Why, canvas: Canvas) -> str:
    head = f"{bold(answer['kind'].capitalize())} {answer['id']}  {answer['state']}"
    lines = [head, *canvas.wrapped(answer["summary"], indent="  ")]
    lines += [line for fact in answer["facts"] for line in canvas.wrapped(fact, indent="    ", first="  ")]
    if (start := answer["expected_start"]) is not None:
        lines.append(f"  expected start: {clock(start)} ({distance(start)})")
    if answer["nodes"]:
        lines += ["", *_nodes(answer["nodes"], canvas)]
    return "\n".join(lines)


@contextmanager
def what_became_of(client: GridClient, prefix: str) -> Iterator[None]:
    """An error about an unknown boost or request says what became of it, if grid knows: it waits, or it has ended."""
    try:
        yield
    except (BoostNotFound, RequestNotFound) as error:
        raise _what_it_is(client, prefix, error) from None


def _what_it_is(
    client: GridClient, prefix: str, error: BoostNotFound | RequestNotFound
) -> BoostNotFound | RequestNotFound:
    from distributed_grid.model.times import parse_instant, stamp

    try:
        known = client.why(prefix)
    except GridError:
        return error
    short = known["id"][:8]
    if known["state"] == "waiting":
        return BoostNotFound(
            f"{short} is a request that waits in the queue",
            try_next=f"To withdraw it: grid resource-sharing release {short}",
        )
    if known["ended_at"] is None:
        return error
    when = stamp(parse_instant(known["ended_at"]))
    return type(error)(
        f"{known['kind'].capitalize()} {short} has ended: "
        f"it was {known['state']} at {when}, {distance(known['ended_at'])}",
        because=[known["summary"]],
    )


def cooldown_view(answer: Cooldown) -> str:
    node, count = answer["node"], len(answer["returning"])
    if not answer["cordoned"]:
        return f"{node} lends and borrows again"
    boosts = {0: "no boost has to end", 1: "1 boost is returned"}.get(count, f"{count} boosts are returned")
    return f"{node} is cordoned: {boosts}\nTo let it share again: grid cooldown {node} --off"


def _nodes(nodes: Sequence[NodeVerdict], canvas: Canvas) -> list[str]:
    width = max((len(node["node"]) for node in nodes), default=0)
    lines: list[str] = []
    for node in nodes[:_MOST]:
        word = node["verdict"]
        text = f"{node['node'].ljust(width)}  {word}: {node['detail']}"
        shown = canvas.wrapped(text, indent=" " * (width + 4), first="  ")
        coloured = click.style(word, fg=_COLOURS.get(word, "yellow"))
        lines += [shown[0].replace(word, coloured, 1) if word in shown[0] else shown[0], *shown[1:]]
    if len(nodes) > _MOST:
        lines.append(click.style(f"  and {len(nodes) - _MOST} more nodes: see --json", dim=True))
    return lines


@click.command(
    cls=CapacityCommand,
    examples=["grid plan gpu-master cpu 8", "grid plan gpu-master gpu 1 --priority high --duration 2h"],
)
@with_capacity_options
@json_option
@with_client
def plan(client: GridClient, as_json: bool, **options: Unpack[CapacityOptions]) -> None:
    """Predict what would happen to a request for AMOUNT of a resource for TARGET now. Nothing changes.

    The exit code is 0 if the request fits now, otherwise 4.
    """
    from distributed_grid.cli.columns import Canvas

    found = client.plan(requested(options)[0])
    show(found, as_json, lambda answer: plan_view(answer, Canvas.here()))
    if not found["fits"]:
        sys.exit(Refused.exit_code)


@click.command(cls=Command, examples=["grid why 3f2a91c0"])
@click.argument("request_or_boost", metavar="REQUEST_OR_BOOST", type=REQUEST)
@json_option
@with_client
def why(client: GridClient, request_or_boost: str, as_json: bool) -> None:
    """Explain why a request is waiting, or why a boost has its lender: a reason for every node."""
    from distributed_grid.cli.columns import Canvas

    show(client.why(request_or_boost), as_json, lambda answer: why_view(answer, Canvas.here()))


@click.command(cls=Command, examples=["grid cooldown gpu1 --grace 5m", "grid cooldown gpu1 --off"])
@click.argument("node", type=NODE)
@click.option("--off", is_flag=True, help="Let the node lend and borrow again.")
@click.option("--grace", metavar=TIME, help="How long work may keep using the capacity that is returned.")
@json_option
@with_client
def cooldown(client: GridClient, node: str, off: bool, grace: str | None, as_json: bool) -> None:
    """Cordon NODE: it returns everything, and lends and borrows nothing until --off."""
    from distributed_grid.model.validators import seconds

    grace_s = None if grace is None else seconds("grace period", grace, zero_allowed=True)
    show(client.cooldown(node, on=not off, grace_s=grace_s), as_json, cooldown_view)
