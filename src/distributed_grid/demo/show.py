"""The demo's output, on a terminal and in a pipe: claims, observations, and whether they agree."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector, amount_of

T = TypeVar("T")

_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Checked:
    """One checked claim; all texts are for display."""

    claim: str
    holds: bool
    seen: str
    expected: str


def check(
    claim: str,
    look: Callable[[], T],
    expected: T,
    *,
    within_s: float = 0.0,
    describe: Callable[[T], str] = str,
) -> Checked:
    """Look until the result is as expected or the time is up. Only the last look counts."""
    seen = last_look(look, lambda found: found == expected, within_s)
    return Checked(claim, seen == expected, describe(seen), describe(expected))


def last_look(look: Callable[[], T], good: Callable[[T], bool], within_s: float) -> T:
    """Look repeatedly until `good`, at most for that long. Returns the last result."""
    deadline = time.monotonic() + within_s
    while not good(seen := look()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return seen


_HEADINGS: Final = {CPU: "CPUs", GPU: "GPUs", MEMORY: "memory GB"}


class Show:
    """Prints the story as it happens."""

    def __init__(self, console: Console | None = None) -> None:
        self._out = console or Console(highlight=False)
        ascii_only = self._out.options.ascii_only
        self._marks = ("ok", "NO") if ascii_only else ("✔", "✘")
        self._steps = 0

    def title(self, text: str, below: str) -> None:
        self._out.print(Text(text, style="bold"))
        self._out.print(Text(below, style="dim"), soft_wrap=True)

    def step(self, title: str) -> None:
        self._steps += 1
        self._out.print()
        self._out.print(Text.assemble((f"{self._steps}  ", "bold cyan"), (title, "bold")))

    def say(self, text: str) -> None:
        self._line(Text(text))

    def aside(self, text: str) -> None:
        self._line(Text(text, style="dim"))

    def command(self, *words: str) -> None:
        self._line(Text.assemble(("$ ", "dim"), (f"grid {' '.join(words)}", "cyan")))

    def nodes(self, amounts: Mapping[str, ResourceVector]) -> None:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("node")
        for kind in BUILT_IN:
            table.add_column(_HEADINGS[kind], justify="right")
        for name, has in amounts.items():
            table.add_row(name, *(f"{amount_of(kind, has[kind])}" for kind in BUILT_IN))
        self._out.print(Padding(table, (0, 0, 0, 3), expand=False))

    def checked(self, checked: Checked) -> None:
        """The claim with its mark, and under it what was seen; for a false claim also what was expected."""
        mark, style = (self._marks[0], "green") if checked.holds else (self._marks[1], "bold red")
        self._line(Text.assemble((f"{mark} ", style), (checked.claim, "" if checked.holds else "red")))
        indent = " " * (len(mark) + 1)
        self._line(Text(f"{indent}Ray: {checked.seen}", style="dim" if checked.holds else "red"))
        if not checked.holds:
            self._line(Text(f"{indent}expected: {checked.expected}", style="red"))

    def end(self, text: str, below: str) -> None:
        self._out.print()
        self._out.print(Text(f"{self._marks[0]} {text}", style="bold green"))
        self._out.print(Text(below, style="dim"), soft_wrap=True)

    def stopped(self) -> None:
        self._out.print()
        self._out.print("Stopped.")

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A spinner on a terminal; nothing in a pipe."""
        with self._out.status(Text(text, style="dim")):
            yield

    def _line(self, text: Text) -> None:
        self._out.print(Text("   ") + text, soft_wrap=True)
