"""Arguments of every command that requests capacity, checked before the controller is called."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from distributed_grid.cli.commands import TIME, Command
from distributed_grid.cli.parameters import DELIVERY, KIND, NODE, PRIORITY

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import AskedTerms

F = TypeVar("F", bound=Callable[..., Any])

_WORDS: tuple[Callable[[Any], Any], ...] = (
    click.argument("target", type=NODE),
    click.argument("resource_type", metavar="cpu|gpu|memory|CUSTOM", type=KIND),
    click.argument("amount"),
    click.option(
        "--priority", type=PRIORITY, default="normal", show_default=True, help="low, normal, high or critical."
    ),
    click.option("--duration", metavar=TIME, help="How long it lasts.  [default: 1h]"),
    click.option("--source", metavar="NODE", type=NODE, help="The lender; chosen by free capacity if not given."),
    click.option("--delivery", metavar="transfer|reserve|auto", type=DELIVERY, help="How it reaches the target."),
)


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


def body_of(asked: Mapping[str, Any]) -> AskedTerms:
    """The request's body. Invalid input is refused here, without a cluster."""
    from distributed_grid.model.requests import make_ask

    make_ask(
        asked["target"],
        asked["resource_type"],
        asked["amount"],
        priority=asked["priority"],
        duration_s=asked["duration"],
        source=asked["source"],
        delivery=asked["delivery"],
        fractional_gpus=True,
    )
    return {
        "target_node": asked["target"],
        "resource_type": asked["resource_type"],
        "amount": asked["amount"],
        "priority": asked["priority"],
        "duration_seconds": asked["duration"],
        "source_node": asked["source"],
        "delivery": asked["delivery"],
    }
