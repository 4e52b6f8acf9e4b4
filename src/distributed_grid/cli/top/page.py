"""A screen of text over the overview, kept up to date: a node, a boost, the queue, the teams, the workloads."""

from collections.abc import Callable
from typing import ClassVar, Generic, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from distributed_grid.cli.columns import Canvas
from distributed_grid.cli.output import readable
from distributed_grid.cli.top.dialogs import error_text
from distributed_grid.cli.top.feed import EVERY_S, in_background
from distributed_grid.errors import GridError

T = TypeVar("T")


class Page(Screen[None], Generic[T]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "dismiss", "Back"),
        Binding("b", "app.boost", "Boost"),
    ]

    def __init__(
        self,
        title: str,
        fetch: Callable[[], T],
        render: Callable[[T, Canvas], str],
        *,
        blocks: bool,
        node: str | None = None,
    ) -> None:
        """`node`: the node that the page is about, for a boost from here."""
        super().__init__()
        self.node = node
        self._called = title
        self._fetch = fetch
        self._show = render
        self._blocks = blocks
        self._asking = False
        self._found: T | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield Static(f"{self._called} ...", id="page", markup=False)
        yield Static("", id="page-trouble", markup=False)
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
        in_background(self._fetch, lambda found: self.app.call_from_thread(self._answered, found))

    def _answered(self, found: T | GridError) -> None:
        self._asking = False
        if not self.is_attached:
            return
        trouble = self.query_one("#page-trouble", Static)
        trouble.display = isinstance(found, GridError)
        if isinstance(found, GridError):
            trouble.update(error_text(found))
        else:
            self._found = readable(found)
            self._draw()

    def _draw(self) -> None:
        if self._found is not None:
            canvas = Canvas(max(40, self.size.width - 4), self._blocks)
            self.query_one("#page", Static).update(Text.from_ansi(self._show(self._found, canvas)))
