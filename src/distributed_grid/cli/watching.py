"""Showing the same thing again and again."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from distributed_grid.cli.output import is_a_terminal

_EVERY_S = 1.0


def watch(fetch: Callable[[], Mapping[str, Any]], as_json: bool, render: Callable[[Mapping[str, Any]], Any]) -> None:
    """Fetch and show once a second until Ctrl-C; as JSON, one line each time."""
    try:
        if as_json:
            while True:
                click.echo(json.dumps(fetch()))
                time.sleep(_EVERY_S)
        while True:
            shown = render(fetch())
            if is_a_terminal():
                click.clear()
            click.echo(shown)
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:
        return
