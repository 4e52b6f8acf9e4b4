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
    from distributed_grid.wire.boosts import AskedTerms, BoostRequest

F = TypeVar("F", bound=Callable[..., object])

_WORDS: tuple[Callable[[Any], Any], ...] = (
    click.argument("target", type=NODE),
    click.argument("resource_type", metavar="cpu|gpu|memory|CUSTOM", type=KIND),
    click.argument("amount"),
    click.option(
        "--priority", type=PRIORITY, default="normal", show_default=True, help="low, normal, high or critical."
    ),
    click.option("--duration", metavar=TIME, help="How long the capacity is lent.  [default: 1h]"),
    click.option(
        "--source", metavar="NODE", type=NODE, help="The lender.  [default: the eligible node with the most left]"
    ),
    click.option(
        "--delivery",
        metavar="|".join(DeliveryChoice),
        type=DELIVERY,
        help="How the target gets the capacity.  [default: as configured]",
    ),
)


class Asked(TypedDict):
    """What `asks_for_capacity` gives a command."""

    target: str
    resource_type: str
    amount: str
    priority: str
    duration: str | None
    source: str | None
    delivery: str | None


class Asking(Command):
    """A negative amount looks like an option; it must reach our own check and its message."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.ignore_unknown_options = any(re.match(r"-[^-h]", word) for word in args)
        return super().parse_args(ctx, args)


def asks_for_capacity(command: F) -> F:
    """TARGET TYPE AMOUNT, and the options that bound it."""
    for word in reversed(_WORDS):
        command = word(command)
    return command


def asked_for(asked: Asked, **terms: Unpack[AskedTerms]) -> tuple[BoostRequest, Ask]:
    """The request that a command makes, and what it asks for. Invalid input is refused here, without a cluster."""
    from distributed_grid.model.requests import make_ask, request_body

    terms = {
        "priority": asked["priority"],
        "duration_seconds": asked["duration"],
        "source_node": asked["source"],
        "delivery": asked["delivery"],
        **terms,
    }
    body = request_body(asked["target"], {asked["resource_type"]: asked["amount"]}, **terms)
    return body, make_ask(body, fractional_gpus=True)
