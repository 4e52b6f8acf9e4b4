"""The output to draw on, and tables as plain text.

A thousand rows take milliseconds, and nothing wraps or is cut off when piped. On a terminal, a table drops its least
important columns until its rows fit. In a pipe it always has all of its columns, and "-" in an empty cell,
so that programs can count on both.
"""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from textwrap import wrap

import click

from distributed_grid.cli.output import is_a_terminal

_BLOCKS = "█▏░▁…"
_NARROWEST = 40
GAP = 2
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Canvas:
    """The output: its width, and whether its encoding has block characters for bars."""

    width: int | None = None
    """In columns. None: unlimited, as in a pipe."""
    blocks: bool = True

    @classmethod
    def here(cls) -> "Canvas":
        """The terminal on stdout; a width in $COLUMNS always counts."""
        fixed = is_a_terminal() or os.environ.get("COLUMNS", "").isdecimal()
        return cls(max(_NARROWEST, get_terminal_size().columns) if fixed else None, _has_blocks(sys.stdout.encoding))

    def flow(self, parts: Iterable[str], gap: str = "   ") -> list[str]:
        """The parts in sequence, on as many lines as needed. A part is split only if it is longer than a line."""
        lines: list[str] = []
        for part in parts:
            joined = f"{lines[-1]}{gap}{part}" if lines else part
            if lines and not self._fits(joined):
                lines.append(part)
            else:
                lines[-1:] = [joined]
        return [
            piece for line in lines for piece in ([line] if self._fits(line) else self.wrapped(click.unstyle(line)))
        ]

    def wrapped(self, text: str, indent: str = "", first: str | None = None) -> list[str]:
        """A sentence on as many lines as it needs; `first` precedes the first line, `indent` the others."""
        before = indent if first is None else first
        if self.width is None:
            return [before + text]
        return wrap(text, self.width, initial_indent=before, subsequent_indent=indent) or [before.rstrip()]

    def cut(self, text: str, width: int) -> str:
        """The text, with a mark where it was cut off."""
        if len(text) <= width:
            return text
        mark = "…" if self.blocks else "~"
        return text[: max(0, width - 1)] + mark

    def _fits(self, line: str) -> bool:
        return self.width is None or len(click.unstyle(line)) <= self.width


def _has_blocks(encoding: str | None) -> bool:
    try:
        _BLOCKS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Form:
    """A column's heading and cells, at one width."""

    heading: str
    cells: Sequence[str]

    @property
    def width(self) -> int:
        return max(map(len, (self.heading, *self.cells)))


@dataclass(frozen=True, slots=True)
class Column:
    """One column in several forms, the widest first."""

    forms: tuple[Form, ...]
    right: bool = False
    optional: bool = False
    """On a terminal, omitted if all of its cells are empty."""

    @classmethod
    def of(
        cls, heading: str, cells: Sequence[str], *narrower: Form, right: bool = False, optional: bool = False
    ) -> "Column":
        return cls((Form(heading, cells), *narrower), right, optional)

    @property
    def says_nothing(self) -> bool:
        return {*self.forms[0].cells} <= {"", _NOTHING}


@dataclass(frozen=True, slots=True)
class Fitted:
    """The columns of a table that remain at a given width."""

    columns: Mapping[str, Form]
    right: frozenset[str]
    left_out: tuple[str, ...]
    """The headings of columns that were dropped for lack of room."""

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return list(zip(*(form.cells for form in self.columns.values()), strict=True))


def fit(columns: Mapping[str, Column], give_up: Iterable[str | tuple[str, ...]], canvas: Canvas) -> Fitted:
    """The widest forms that fit. `give_up` lists the columns to narrow, in order; those that are not there are skipped.

    A column past its last form is dropped. Columns in a tuple narrow together. If the table is still too wide, the
    first column is cut.
    """
    form_of = {
        key: 0
        for key, column in columns.items()
        if canvas.width is None or not (column.optional and column.says_nothing)
    }

    def chosen() -> dict[str, Form]:
        return {key: columns[key].forms[number] for key, number in form_of.items() if number < len(columns[key].forms)}

    def too_wide() -> int:
        forms = chosen()
        width = sum(form.width for form in forms.values()) + GAP * (len(forms) - 1)
        return 0 if canvas.width is None else width - canvas.width

    for keys in give_up:
        if too_wide() <= 0:
            break
        for key in form_of.keys() & ({keys} if isinstance(keys, str) else keys):
            form_of[key] += 1
    forms = chosen()
    if (excess := too_wide()) > 0:
        first = next(iter(forms))
        room = max(4, forms[first].width - excess)
        forms[first] = Form(
            canvas.cut(forms[first].heading, room), [canvas.cut(cell, room) for cell in forms[first].cells]
        )
    gone = tuple(columns[key].forms[0].heading for key in form_of if key not in forms)
    return Fitted(forms, frozenset(key for key in forms if columns[key].right), gone)


def fitted_table(fitted: Fitted, styles: Mapping[str, str] | None = None) -> str:
    headings = [form.heading for form in fitted.columns.values()]
    right = [form.heading for key, form in fitted.columns.items() if key in fitted.right]
    return columns(headings, fitted.rows, right=right, styles=styles)


def columns(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    styles: Mapping[str, str] | None = None,
) -> str:
    """Rows under a bold header, each column as wide as its widest cell; "-" is in empty cells.

    `styles` maps cell text to a colour.
    """
    colours = styles or {}
    table = [list(header), *([cell or _NOTHING for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    to_the_right = {header.index(name) for name in right}
    lines = []
    for number, row in enumerate(table):
        cells = [
            text.rjust(width) if i in to_the_right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        if number == 0:
            lines.append(click.style((" " * GAP).join(cells).rstrip(), bold=True))
            continue
        lines.append(
            (" " * GAP)
            .join(
                click.style(cell, fg=colours[text]) if text in colours else cell
                for cell, text in zip(cells, row, strict=True)
            )
            .rstrip()
        )
    return "\n".join(lines)
