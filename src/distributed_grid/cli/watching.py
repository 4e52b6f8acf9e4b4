"""Showing the same thing again and again."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

_EVERY_S = 1.0


def watch(fetch: Callable[[], Mapping[str, Any]], as_json: bool, render: Callable[[Mapping[str, Any]], Any]) -> None:
    """Fetch and show once a second until Ctrl-C; as JSON, one line each time."""
    try:
        if as_json:
            while True:
                click.echo(json.dumps(fetch()))
                time.sleep(_EVERY_S)
        from rich.live import Live

        with Live(render(fetch()), auto_refresh=False) as live:
            while True:
                time.sleep(_EVERY_S)
                live.update(render(fetch()), refresh=True)
    except KeyboardInterrupt:
        return
