"""Tables as plain text: a thousand rows take milliseconds, and nothing wraps or is cut off when piped."""

from collections.abc import Iterable, Mapping, Sequence

import click


def columns(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    styles: Mapping[str, str] | None = None,
) -> str:
    """Rows under a bold header, each column as wide as its widest cell. `styles`: cell text -> colour."""
    colours = styles or {}
    table = [list(header), *(list(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    to_the_right = {header.index(name) for name in right}
    lines = []
    for number, row in enumerate(table):
        cells = [
            text.rjust(width) if i in to_the_right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        if number == 0:
            lines.append(click.style("  ".join(cells).rstrip(), bold=True))
            continue
        lines.append(
            "  ".join(
                click.style(cell, fg=colours[text]) if text in colours else cell
                for cell, text in zip(cells, row, strict=True)
            ).rstrip()
        )
    return "\n".join(lines)
