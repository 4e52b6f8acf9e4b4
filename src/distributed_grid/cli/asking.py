"""Arguments of every command that requests capacity, checked before the controller is called."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_WORDS: tuple[Callable[[Any], Any], ...] = (
    click.argument("target"),
    click.argument("resource_type", metavar="cpu|gpu|memory|CUSTOM"),
    click.argument("amount"),
    click.option("--priority", default="normal", show_default=True, help="low, normal, high or critical."),
    click.option("--duration", metavar="SECONDS", help="How long it lasts.  [default: 3600]"),
    click.option("--source", metavar="NODE", help="Who lends; chosen by free capacity if not given."),
    click.option("--delivery", metavar="transfer|reserve|auto", help="How it reaches the target."),
)

# A negative amount looks like an option; it must reach our own check and its message.
ASKING: Final[dict[str, Any]] = {"ignore_unknown_options": True}


def asks_for_capacity(command: F) -> F:
    """TARGET TYPE AMOUNT, and the options that bound it."""
    for word in reversed(_WORDS):
        command = word(command)
    return command


def body_of(asked: Mapping[str, Any]) -> dict[str, Any]:
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
