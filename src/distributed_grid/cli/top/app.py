"""The application: one feed, the main screen, and the pages and windows over it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Generic, TypedDict, TypeVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer, Static

from distributed_grid.cli.columns import Canvas
from distributed_grid.cli.node_view import node_view
from distributed_grid.cli.output import clock, quantity, readable
from distributed_grid.cli.plan import why_view
from distributed_grid.cli.resource_sharing import queue_view, sharing_view
from distributed_grid.cli.role_runs_view import runs_view
from distributed_grid.cli.tables import boost_card, lenders
from distributed_grid.cli.top.dialogs import BoostForm, Confirm, Help, error_text
from distributed_grid.cli.top.feed import EVERY_S, Feed, Seen, in_background
from distributed_grid.cli.top.overview import Overview
from distributed_grid.client import GridClient
from distributed_grid.errors import GridError
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost
    from distributed_grid.wire.queue import Why

T = TypeVar("T")


class GrantedBoost(TypedDict):
    """A boost, and why it was granted as it was."""

    boost: Boost
    why: Why


class Page(Screen[None], Generic[T]):
    """A screen of text over the overview, kept up to date: a node, a boost, the queue, the teams, the workloads."""

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


class TopApp(App[None]):
    TITLE = "grid top"
    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q,ctrl+c", "quit", "Quit", key_display="q"),
    ]

    def __init__(self, home: GridHome | None = None, *, blocks: bool = True, every_s: float = EVERY_S) -> None:
        super().__init__()
        # The feed asks again soon anyway, so it does not retry; an action of the user is worth a few seconds more.
        self.looking, self._acting = GridClient(home, retry_s=0.0, plain=True), GridClient(home, plain=True)
        self._blocks = blocks
        self.overview = Overview(blocks)
        self._feed = Feed(self.looking, lambda answer: self.call_from_thread(self._take, answer), every_s)

    def on_mount(self) -> None:
        self.push_screen(self.overview)
        self._feed.start()

    def on_unmount(self) -> None:
        self._feed.stop()
        for client in (self.looking, self._acting):
            with contextlib.suppress(OSError):
                client.close()

    def _take(self, answer: Seen | GridError) -> None:
        if self.overview.is_attached:
            self.overview.take(answer)

    # -- keys ------------------------------------------------------------------------------------------------

    def action_help(self) -> None:
        self.push_screen(Help())

    def on_overview_opened(self, opened: Overview.Opened) -> None:
        if opened.boost_id is not None:
            self._open(f"Boost {opened.boost_id}", lambda: self._boost(str(opened.boost_id)), boost_page)
        else:
            self._open(opened.name, lambda: self.looking.node(opened.name), node_view, node=opened.name)

    def action_queue(self) -> None:
        self._open("Queue", self.looking.queue, queue_view)

    def action_teams(self) -> None:
        self._open("Teams", self.looking.sharing_status, sharing_view)

    def action_workloads(self) -> None:
        self._open("Workloads", self.looking.role_runs, runs_view)

    def _open(
        self, title: str, fetch: Callable[[], T], render: Callable[[T, Canvas], str], node: str | None = None
    ) -> None:
        self.push_screen(Page(title, fetch, render, blocks=self._blocks, node=node))

    def _boost(self, boost_id: str) -> GrantedBoost:
        return {"boost": self.looking.boost(boost_id), "why": self.looking.why(boost_id)}

    def action_boost(self) -> None:
        """Request a boost for the open or selected node."""
        open_node = self.screen.node if isinstance(self.screen, Page) else None
        target = open_node or self.overview.selected_node
        if target is not None:
            form = BoostForm(target, self.overview.kinds, self.overview.nodes, self._acting.request_boost)
            self.push_screen(form, self._granted)

    def _granted(self, boost: Boost | None) -> None:
        if boost is None:
            return
        self._feed.hurry()
        self.notify(f"{_what(boost)} from {lenders(boost)} to {boost['target_node']}: {boost['state']}", markup=False)
        for warning in boost["warnings"]:
            self.notify(warning, severity="warning", markup=False)

    def action_release(self) -> None:
        boost = self.overview.selected_boost if self.screen is self.overview else None
        if boost is None:
            self.notify("Select a boost first: Tab leads to the boosts.", severity="warning")
            return
        question = (
            f"Release boost {boost['boost_id'][:8]}?\n"
            f"{_what(boost)} of {lenders(boost)} will be taken from {boost['target_node']}."
        )

        def answered(yes: bool | None) -> None:
            if yes:
                in_background(
                    lambda: self._acting.release_boost(boost["boost_id"]),
                    lambda result: self.call_from_thread(self._released, result),
                )

        self.push_screen(Confirm(question), answered)

    def _released(self, result: Boost | GridError) -> None:
        self._feed.hurry()
        if isinstance(result, GridError):
            self.notify(error_text(result), severity="error", markup=False)
        else:
            self.notify(f"Boost {result['boost_id'][:8]} is {result['state']}")


def boost_page(found: GrantedBoost, canvas: Canvas) -> str:
    boost = found["boost"]
    owner = f"  of {boost['requester']}, team {boost['team']}; since {clock(boost['allocated_at'])}"
    inside = [f"  inside: {program}" for program in boost["programs"]]
    return "\n".join([boost_card(boost), owner, *inside, "", why_view(found["why"], canvas)])


def _what(boost: Boost) -> str:
    return quantity(boost["resource_type"], boost["amount"])
