"""Data on stdout, as text or JSON, once or until Ctrl-C; messages on stderr; times and amounts in readable form."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import click

from distributed_grid.errors import GridError
from distributed_grid.model import times
from distributed_grid.model.plain_text import only_styled, plain, plain_data
from distributed_grid.model.resources import CPU, GPU, describe, scale, unit_label
from distributed_grid.model.times import parse_instant, span

if TYPE_CHECKING:
    from distributed_grid.wire.controller import ControllerUp


def clock(at: str) -> str:
    """ "14:05:09 CEST", with the date if it is not today."""
    return times.clock(parse_instant(at), now=datetime.now(UTC))


def distance(at: str, now: datetime | None = None) -> str:
    """ "in 29 min", "12 s ago"."""
    left = (parse_instant(at) - (now or datetime.now(UTC))).total_seconds()
    return f"in {span(left)}" if left >= 0 else f"{span(-left)} ago"


def quantity(kind: str, amount: float) -> str:
    """ "4 GB of memory": for sentences."""
    return describe(kind, round(amount * scale(kind)))


def short(amount: float) -> str:
    """ "7.5"; without tenths above a hundred."""
    return f"{amount:.0f}" if abs(amount) >= 100 else f"{amount:.1f}".removesuffix(".0")


def labelled(kind: str, amount: float) -> str:
    """ "4 CPUs", "1 GPU", "7.5 GB"."""
    label = unit_label(kind)
    return f"{short(amount)} {label[:-1] if amount == 1 and kind in (CPU, GPU) else label}"


def listed(amounts: Mapping[str, float]) -> str:
    """ "4 CPUs, 2 GB"; "-" for nothing."""
    return ", ".join(labelled(kind, amount) for kind, amount in amounts.items() if amount) or "-"


def first_of(amounts: Mapping[str, float]) -> str:
    """ "4 CPUs +1": the first, and how many more kinds there are."""
    there = [labelled(kind, amount) for kind, amount in amounts.items() if amount]
    more = f" +{len(there) - 1}" if len(there) > 1 else ""
    return f"{there[0]}{more}" if there else "-"


_LINES = "\n\t"
F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, in the API's format.")(command)


_FOUND = "Cluster configuration (default: $GRID_CONFIG, config/my-cluster-enhanced.yaml, or the packaged one)."


def config_option(command: F, *, help: str = _FOUND) -> F:
    return click.option("--config", "config_path", type=click.Path(), help=help)(command)


def adopt_option(command: F) -> F:
    return click.option(
        "--adopt",
        is_flag=True,
        help="Adopt boosts that another cluster left in GRID_HOME, if their nodes are in this cluster.",
    )(command)


T = TypeVar("T")
_AS_WRITTEN = frozenset({"command", "label", "cwd", "output"})
"""Fields with text that users wrote: times in them stay as they are."""


def readable(data: T) -> T:
    """Data for a person: no control characters, and sentences with times in the reader's zone."""
    return cast(T, _local(plain_data(data), datetime.now(UTC)))


def _local(data: object, now: datetime) -> object:
    if isinstance(data, str):
        return times.local_times(data, now=now)
    if isinstance(data, dict):
        return {key: value if key in _AS_WRITTEN else _local(value, now) for key, value in data.items()}
    return [_local(each, now) for each in data] if isinstance(data, list) else data


def show(data: T, as_json: bool, render: Callable[[T], str]) -> None:
    """Print `data` as JSON, or as the text that `render` returns.

    Control characters in the data never reach a terminal: JSON escapes them, and so does this function.
    """
    if as_json:
        click.echo(json.dumps(data, indent=2))
        return
    click.echo(only_styled(render(readable(data))))


def say(text: str) -> None:
    """Print a message for the user, apart from the data."""
    click.echo(only_styled(times.local_times(text, now=datetime.now(UTC))), err=True)


def say_notes(started: "ControllerUp") -> None:
    """Print the notes of a controller that has just started; one that was already running has shown them."""
    for note in started["notes"]:
        say(click.style("Note: ", fg="yellow") + plain(note))


def explain(error: GridError, as_json: bool) -> None:
    """Print an error: what happened, why, and what to do next."""
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


_EVERY_S = 1.0
_FOLLOW_S = 0.2


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ctrl-C ends the block cleanly at any point."""
    try:
        yield
    except KeyboardInterrupt:
        return


def show_output(path: Path, is_over: Callable[[], bool], *, follow: bool) -> None:
    """Show what a program wrote to a file, as it is; with `follow`, until the program is over, or Ctrl-C."""
    with until_interrupted(), path.open("rb") as output:
        while True:
            ends_here = not follow or is_over()
            while piece := output.read(65536):
                sys.stdout.buffer.write(piece)
            sys.stdout.flush()
            if ends_here:
                return
            time.sleep(_FOLLOW_S)


def keep_showing(fetch: Callable[[], T], as_json: bool, render: Callable[[T], str]) -> None:
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


_SAVE, _RESTORE = "\x1b7", "\x1b8"


class StatusLine:
    """A line at the bottom of the terminal that stays there while a program writes above it.

    The terminal scrolls only above it. Nothing is written without a terminal or in the background.
    """

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
        from distributed_grid.run.monitor import is_read_by_key

        if not _is_in_front():
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


def _is_in_front() -> bool:
    """Whether this process is in the terminal's foreground; a run that was sent to the background is not."""
    try:
        return os.isatty(1) and os.tcgetpgrp(2) == os.getpgrp()
    except OSError:  # not a terminal, or not this session's
        return False
