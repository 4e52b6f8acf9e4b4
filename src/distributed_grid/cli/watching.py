"""Showing a view repeatedly."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from distributed_grid.cli.output import is_a_terminal, readable
from distributed_grid.model.plain_text import only_styled

_EVERY_S = 1.0
T = TypeVar("T")


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ctrl-C ends the block cleanly at any point."""
    try:
        yield
    except KeyboardInterrupt:
        return


def watch(fetch: Callable[[], T], as_json: bool, render: Callable[[T], Any]) -> None:
    """Fetch and show once a second until Ctrl-C; as JSON, one line each time."""
    with until_interrupted():
        while True:
            if as_json:
                click.echo(json.dumps(fetch()))
            else:
                shown = only_styled(render(readable(fetch())))
                if is_a_terminal():
                    click.clear()
                click.echo(shown)
            time.sleep(_EVERY_S)
