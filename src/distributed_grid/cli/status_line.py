"""A line at the bottom of the terminal that stays there while a program writes above it."""

import shutil
import sys
from types import TracebackType
from typing import Self

from distributed_grid.run.monitor import is_ours, is_read_by_key

_SAVE, _RESTORE = "\x1b7", "\x1b8"


class StatusLine:
    """The terminal scrolls only above the last line. Nothing is written without a terminal or in the background."""

    def __init__(self) -> None:
        self._size: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wipe()

    def wipe(self) -> None:
        """Restore the terminal, for example when the program is stopped; the next `show` starts again."""
        if self._size is not None:
            # The whole screen scrolls again, and the line is gone.
            self._write(f"{_SAVE}\x1b[r\x1b[{self._size[1]};1H\x1b[2K{_RESTORE}")
            self._size = None

    def show(self, text: str) -> None:
        if not is_ours():
            return
        if is_read_by_key():  # the program may write anywhere on the screen
            self.wipe()
            return
        size = shutil.get_terminal_size()
        columns, rows = size.columns, size.lines
        if self._size != (columns, rows):
            # A new line first, so that the last line scrolls up and is not overwritten.
            self._write(f"\n{_SAVE}\x1b[1;{rows - 1}r{_RESTORE}\x1b[1A")
            self._size = (columns, rows)
        self._write(f"{_SAVE}\x1b[{rows};1H\x1b[2K\x1b[7m{text[:columns]}\x1b[0m{_RESTORE}")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
