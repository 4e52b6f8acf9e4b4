"""Arguments of every command that requests capacity, checked before the controller is called."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import click

from distributed_grid.cli.commands import TIME, Command
from distributed_grid.cli.parameters import DELIVERY, KIND, NODE, PRIORITY
from distributed_grid.model.leases import DeliveryChoice

if TYPE_CHECKING:
    from distributed_grid.model.requests import Ask
    from distributed_grid.wire.boosts import BoostRequest, RequestedTerms

F = TypeVar("F", bound=Callable[..., object])

_DURATION: Callable[[Any], Any] = click.option(
    "--duration", metavar=TIME, help="How long the capacity is lent.  [default: 1h]"
)
_WORDS: tuple[Callable[[Any], Any], ...] = (
    click.argument("target", type=NODE),
    click.argument("resource_type", metavar="cpu|gpu|memory|CUSTOM", type=KIND),
    click.argument("amount"),
    click.option(
        "--priority", type=PRIORITY, default="normal", show_default=True, help="low, normal, high or critical."
    ),
    _DURATION,
    click.option(
        "--source",
        "sources",
        metavar="NODE",
        type=NODE,
        multiple=True,
        help="A node that may lend; may be repeated.  [default: the eligible node with the most left]",
    ),
    click.option(
        "--max-sources",
        metavar="N",
        type=click.IntRange(1),
        help="How many nodes may lend it together if no single node can; 1: only one.  [default: as many as it takes]",
    ),
    click.option(
        "--delivery",
        metavar="|".join(DeliveryChoice),
        type=DELIVERY,
        help="How the target gets the capacity.  [default: as configured]",
    ),
)


class CapacityOptions(TypedDict):
    """The arguments that `with_capacity_options` gives a command."""

    target: str
    resource_type: str
    amount: str
    priority: str
    duration: str | None
    sources: tuple[str, ...]
    max_sources: int | None
    delivery: str | None


class CapacityCommand(Command):
    """Lets a negative amount, which looks like an option, reach grid's own check and its message."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(re.match(r"-[^-h]", word) for word in args)
        return super().parse_args(ctx, args)


def with_capacity_options(command: F) -> F:
    """TARGET TYPE AMOUNT, and the options that bound it."""
    for word in reversed(_WORDS):
        command = word(command)
    return command


def with_window_options(command: F) -> F:
    """The same for capacity that is promised in advance: `--for` is how long each time of a window lasts."""
    for word in reversed(_WORDS):
        if word is not _DURATION:
            command = word(command)
    return command


def requested(options: CapacityOptions, **terms: Unpack[RequestedTerms]) -> tuple[BoostRequest, Ask]:
    """The request of a command, as body and checked. Invalid input is refused here, without a cluster."""
    from distributed_grid.model.requests import make_ask, request_body

    terms = {
        "priority": options["priority"],
        "duration_seconds": options["duration"],
        "source_nodes": list(options["sources"]) or None,
        "max_sources": options["max_sources"],
        "delivery": options["delivery"],
        **terms,
    }
    body = request_body(options["target"], {options["resource_type"]: options["amount"]}, **terms)
    return body, make_ask(body, fractional_gpus=True)
