"""How the demo looks: fine on a terminal, and as plain text in a pipe."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from distributed_grid.demo.findings import Finding
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector, amount_of

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

    def told(self, text: str) -> None:
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

    def finding(self, finding: Finding) -> None:
        """The claim with its mark, and under it what was seen; for a false one also what should have been."""
        mark, style = (self._marks[0], "green") if finding.holds else (self._marks[1], "bold red")
        self._line(Text.assemble((f"{mark} ", style), (finding.claim, "" if finding.holds else "red")))
        indent = " " * (len(mark) + 1)
        self._line(Text(f"{indent}Ray: {finding.seen}", style="dim" if finding.holds else "red"))
        if not finding.holds:
            self._line(Text(f"{indent}expected: {finding.expected}", style="red"))

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
