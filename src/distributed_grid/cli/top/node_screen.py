"""Everything about one node, kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from distributed_grid.cli.canvas import Canvas
from distributed_grid.cli.node_view import node_view
from distributed_grid.cli.top.dialogs import told
from distributed_grid.cli.top.feed import EVERY_S, in_background
from distributed_grid.client import GridClient
from distributed_grid.errors import GridError

if TYPE_CHECKING:
    from distributed_grid.wire.nodes import OneNode


class NodeScreen(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "dismiss", "Back"),
        Binding("b", "app.boost", "Boost"),
    ]

    def __init__(self, name: str, client: GridClient, blocks: bool) -> None:
        super().__init__()
        self.node = name
        self._client = client
        self._blocks = blocks
        self._asking = False
        self._found: OneNode | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(f"{self.node} ...", id="node", markup=False)
        yield Static("", id="node-trouble", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.set_interval(EVERY_S, self._ask)
        self._ask()

    def on_resize(self) -> None:
        self._draw()

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking = True
        in_background(
            lambda: self._client.node(self.node), lambda found: self.app.call_from_thread(self._answered, found)
        )

    def _answered(self, found: OneNode | GridError) -> None:
        self._asking = False
        if not self.is_attached:
            return
        trouble = self.query_one("#node-trouble", Static)
        trouble.display = isinstance(found, GridError)
        if isinstance(found, GridError):
            trouble.update(told(found))
        else:
            self._found = found
            self._draw()

    def _draw(self) -> None:
        if self._found is not None:
            canvas = Canvas(max(40, self.size.width - 4), self._blocks)
            self.query_one("#node", Static).update(Text.from_ansi(node_view(self._found, canvas)))
