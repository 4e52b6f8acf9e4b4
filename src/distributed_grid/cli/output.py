"""Data on stdout, messages on stderr; the same data as JSON where asked."""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from distributed_grid.errors import GridError
from distributed_grid.model.plain_text import only_styled, plain, plain_data

_LINES = "\n\t"
F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, with the API's schema.")(command)


_FOUND = "Cluster configuration (default: $GRID_CONFIG, config/my-cluster-enhanced.yaml, or the packaged one)."


def config_option(command: F, *, help: str = _FOUND) -> F:
    return click.option("--config", "config_path", type=click.Path(), help=help)(command)


def adopt_option(command: F) -> F:
    return click.option(
        "--adopt",
        is_flag=True,
        help="Take over boosts of another cluster that are in GRID_HOME, where their nodes are here.",
    )(command)


def show(data: Mapping[str, Any], as_json: bool, render: Callable[[Mapping[str, Any]], Any]) -> None:
    """Print `data`: as JSON, or as whatever rich renderable (or text) `render` makes of it.

    What others wrote into the data reaches no terminal as it is: JSON writes it out by itself, and so does this.
    """
    if as_json:
        click.echo(json.dumps(data, indent=2))
        return
    rendered = render(plain_data(data))
    if isinstance(rendered, str):
        click.echo(only_styled(rendered))
        return
    from rich.console import Console

    Console(soft_wrap=True).print(rendered)


def say(text: str) -> None:
    """A message to the person, apart from the data."""
    click.echo(only_styled(text), err=True)


def say_notes(started: Mapping[str, Any]) -> None:
    """What a controller that has just started has to tell; one that was there already has told it."""
    for note in started.get("notes", ()):
        say(click.style("Note: ", fg="yellow") + plain(note))


def explain(error: GridError, as_json: bool) -> None:
    """An error as a person needs it: what happened, why, what to do next."""
    if as_json:
        click.echo(json.dumps({"error": error.to_dict()}, indent=2), err=True)
        return
    say(click.style("Error: ", fg="red", bold=True) + plain(error.message, keep=_LINES))
    for line in error.because:
        say(f"  - {plain(line, keep=_LINES)}")
    if error.try_next:
        say(click.style("Try: ", bold=True) + plain(error.try_next, keep=_LINES))


def is_a_terminal() -> bool:
    return sys.stdout.isatty()
