"""The output to draw on: its width, and whether its encoding has block characters for bars."""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from shutil import get_terminal_size
from textwrap import wrap

import click

from distributed_grid.cli.output import is_a_terminal

_BLOCKS = "█▏░▁…"
_NARROWEST = 40


@dataclass(frozen=True, slots=True)
class Canvas:
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
