"""What grid suggests, for people: what, why, how sure, and the command."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from distributed_grid.cli.canvas import Canvas
from distributed_grid.cli.tables import bold

_INDENT = "      "


def suggestion_lines(suggestions: Sequence[Mapping[str, Any]], canvas: Canvas) -> list[str]:
    """A headline and the suggestions, the most urgent first; nothing where there are none."""
    if not suggestions:
        return []
    return [bold("Suggestions:"), *(line for one in suggestions for line in _entry(one, canvas))]


def _entry(one: Mapping[str, Any], canvas: Canvas) -> list[str]:
    by_itself = "; grid does this by itself if it lasts" if one["by_itself"] else ""
    return [
        *canvas.wrapped(one["what"], indent=_INDENT, first="  "),
        *(_dim(line) for line in canvas.wrapped(one["reason"], indent=_INDENT)),
        *(_dim(line) for line in canvas.wrapped(f"{one['how_sure']}{by_itself}", indent=_INDENT)),
        *(click.style(line, fg="cyan") for line in _command(one["command"], canvas)),
    ]


def _command(command: str | None, canvas: Canvas) -> list[str]:
    """On more than one line only so that it can be pasted all the same."""
    if command is None:
        return []
    lines = canvas.wrapped(command, indent=_INDENT)
    if len(lines) == 1:
        return lines
    narrower = Canvas(None if canvas.width is None else canvas.width - 2, canvas.blocks)
    *first, last = narrower.wrapped(command, indent=_INDENT)
    return [*(f"{line} \\" for line in first), last]


def _dim(text: str) -> str:
    return click.style(text, dim=True)
