"""Arguments of every command that requests capacity, checked before the controller is called."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click

from distributed_grid.cli.commands import TIME, Command
from distributed_grid.cli.parameters import DELIVERY, KIND, NODE, PRIORITY
from distributed_grid.model.leases import DeliveryChoice

if TYPE_CHECKING:
    from distributed_grid.model.requests import Ask
    from distributed_grid.wire.boosts import BoostRequest

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
_KEYS: Final = {
    "target": "target_node",
    "source": "source_node",
    "duration": "duration_seconds",
    "grace": "grace_seconds",
}


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


def asked_for(options: Mapping[str, object]) -> tuple[BoostRequest, Ask]:
    """The request that a command's options make, and what it asks for. Invalid input is refused here, without a
    cluster. An option's name is the key of the request, or is in `_KEYS`."""
    from distributed_grid.model.requests import make_ask

    given = {_KEYS.get(name, name): value for name, value in options.items() if value is not None}
    body = cast("BoostRequest", given)
    return body, make_ask(body, fractional_gpus=True)
