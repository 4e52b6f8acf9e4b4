"""The main screen of grid top: nodes, boosts and events, in tables whose rows keep their place while they change."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Final

import click
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, RichLog, Static

from distributed_grid.cli.cluster_view import cordoned_lines, counted, free_of, waiting_in_short
from distributed_grid.cli.columns import Canvas, Column, Fitted, Form, fit
from distributed_grid.cli.node_columns import history_column, kinds_of, node_columns, node_styles, sort_key
from distributed_grid.cli.output import clock, labelled
from distributed_grid.cli.reserve import window_lines
from distributed_grid.cli.resource_sharing import waiting_lines
from distributed_grid.cli.tables import HELD, STATES, bold, ends_at, is_held, leases_of_programs, lenders
from distributed_grid.cli.top.feed import Seen, attempt
from distributed_grid.errors import GridError
from distributed_grid.model.endings import why_it_ends
from distributed_grid.model.resources import BUILT_IN
from distributed_grid.model.times import parse_instant, span

if TYPE_CHECKING:
    from distributed_grid.wire.audit import Event
    from distributed_grid.wire.boosts import Boost
    from distributed_grid.wire.nodes import ClusterStatus, NodeStatus

_EVENT_COLOURS: Final = {"pressure_high": "red", "lost": "red", "granted": "green", "released": "cyan"}


def boost_columns(boosts: Sequence[Boost], canvas: Canvas) -> tuple[dict[str, Column], dict[str, str]]:
    now = datetime.now(UTC)
    left = [(parse_instant(ends_at(boost)) - now).total_seconds() for boost in boosts]
    ends = [HELD if is_held(boost) else countdown(seconds) for boost, seconds in zip(boosts, left, strict=True)]
    soon = {end: "red" if s < 60 else "yellow" for end, s in zip(ends, left, strict=True) if s < 300}
    why = [why_it_ends(ending) if (ending := boost["ending"]) is not None else "" for boost in boosts]
    narrower = [Form("Returned because", [canvas.cut(text, width) for text in why]) for width in (40, 24)]
    return {
        "ends": Column.of("Ends in", ends, right=True),
        "amount": Column.of("Amount", [_amount(boost) for boost in boosts]),
        "source": Column.of("From", [lenders(boost) for boost in boosts]),
        "target": Column.of("To", [str(boost["target_node"]) for boost in boosts]),
        "state": Column.of("State", ["idle" if boost["idle_since"] else str(boost["state"]) for boost in boosts]),
        "delivery": Column.of("Delivery", [str(boost["delivery"]) for boost in boosts]),
        "id": Column.of("ID", [boost["boost_id"][:8] for boost in boosts]),
        "owner": Column.of("Owner", [str(boost["requester"]) for boost in boosts]),
        "team": Column.of("Team", [str(boost["team"]) for boost in boosts]),
        "why": Column.of("Returned because", why, *narrower, optional=True),
    }, STATES | soon


def _amount(boost: Boost) -> str:
    """ "4 CPUs"; of an elastic boost what it has, and its range."""
    kind, most = boost["resource_type"], boost["at_most"]
    if most is None:
        return labelled(kind, boost["amount"])
    return f"{labelled(kind, boost['capacity'].get(kind, 0))} ({boost['amount'] or ''}..{most:g})"


def countdown(seconds: float) -> str:
    """ "1:02:03", "29:58", "0:00" once it is over."""
    whole = max(0, int(seconds))
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def event_line(event: Event) -> Text:
    kind = str(event["event"])
    return Text.assemble(
        (f"{clock(event['at'])} ", "dim"), (f"{kind} ", _EVENT_COLOURS.get(kind, "bold")), str(event["message"])
    )


class LiveTable(DataTable[Text]):
    """Shows new rows and keeps the cursor on its row, wherever that row moves."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open"),
        Binding("home", "scroll_top", "First", show=False),
        Binding("end", "scroll_bottom", "Last", show=False),
    ]

    def __init__(self, id: str) -> None:
        super().__init__(id=id, cursor_type="row", zebra_stripes=False)
        self._layout: tuple[tuple[str, str, int], ...] = ()
        self._keys: list[str] = []

    def show(self, keys: Sequence[str], fitted: Fitted, styles: Mapping[str, str]) -> None:
        layout = tuple((key, form.heading, form.width) for key, form in fitted.columns.items())
        rows = [
            [
                Text(text, style=styles.get(text, ""), justify="right" if column in fitted.right else "left")
                for column, text in zip(fitted.columns, row, strict=True)
            ]
            for row in fitted.rows
        ]
        if layout == self._layout and list(keys) == self._keys:
            self._change_cells(rows)
        else:
            self._rebuild(list(keys), layout, fitted, rows)

    def call_it(self, title: str) -> None:
        """Set the title verbatim: brackets in it are not markup."""
        self.border_title = Content(title)

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor."""
        return self._keys[self.cursor_row] if 0 <= self.cursor_row < len(self._keys) else None

    def action_scroll_top(self) -> None:
        self.move_cursor(row=0)

    def action_scroll_bottom(self) -> None:
        """Also show the last row if the cursor is on it already, but out of sight."""
        self.move_cursor(row=max(0, self.row_count - 1))

    def _change_cells(self, rows: list[list[Text]]) -> None:
        for number, row in enumerate(rows):
            for column, cell in enumerate(row):
                before = self.get_cell_at((number, column))  # type: ignore[arg-type]
                if before.plain != cell.plain or before.style != cell.style:
                    self.update_cell_at((number, column), cell)  # type: ignore[arg-type]

    def _rebuild(
        self, keys: list[str], layout: tuple[tuple[str, str, int], ...], fitted: Fitted, rows: list[list[Text]]
    ) -> None:
        selected, at, scrolled = self.selected, self.cursor_row, self.scroll_offset.y
        self.clear(columns=True)
        for key, heading, width in layout:
            justify = "right" if key in fitted.right else "left"
            self.add_column(Text(heading, justify=justify), key=key, width=width)  # type: ignore[arg-type]
        for key, row in zip(keys, rows, strict=True):
            self.add_row(*row, key=key)
        self._layout, self._keys = layout, keys
        if not keys:
            return
        self.scroll_to(y=scrolled, animate=False, immediate=True)
        self.move_cursor(row=keys.index(selected) if selected in keys else min(at, len(keys) - 1))


SORTS: Final = ("name", "pressure", "cpu", "memory", "gpu", "free")
_GIVE_UP: Final = (
    *(("gpu%", "mem%", "cpu%"), "pressure", "history", "memory", "cpu", "gpu", "lent", "borrowed", "history", "node"),
    *("memory", "cpu", "gpu", "pressure", "history", "borrowed", "lent"),
)
_FIRST_OF_QUEUE: Final = 2
_SILENT_S: Final = 5.0  # after this long without an answer, the screen is out of date


class Overview(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(sort[0], f"sort('{sort}')", f"by {sort}", show=False) for sort in SORTS),
        Binding("s", "next_sort", "Sort"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("b", "app.boost", "Boost"),
        Binding("r", "app.release", "Release"),
        Binding("w", "app.queue", "Waiting", show=False),
        Binding("t", "app.teams", "Teams", show=False),
        Binding("l", "app.workloads", "Workloads", show=False),
        Binding("escape", "no_filter", "All nodes", show=False),
    ]

    class Opened(Message):
        """The user opens a node or a boost."""

        def __init__(self, name: str = "", boost_id: str | None = None) -> None:
            super().__init__()
            self.name = name
            self.boost_id = boost_id

    def __init__(self, blocks: bool) -> None:
        super().__init__()
        self.sort = "name"
        self.wanted = ""
        self.seen: Seen | None = None
        self._blocks = blocks
        self._trouble: GridError | None = None
        self._answered_at = time.monotonic()

    def compose(self) -> ComposeResult:
        yield Static("Waiting for the controller ...", id="head", markup=False)
        yield LiveTable(id="nodes")
        yield Input(placeholder="part of a name, or a state such as stale", id="filter", compact=True)
        yield LiveTable(id="boosts")
        yield RichLog(id="events", max_lines=1000, wrap=True, min_width=20)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#filter").display = False
        self.query_one("#boosts").border_title = "Boosts"
        self.query_one("#events").border_title = "Events"
        self.query_one("#nodes").focus()
        self.set_interval(1.0, self._tick)

    # -- what comes in ---------------------------------------------------------------------------------------

    def take(self, answer: Seen | GridError) -> None:
        if isinstance(answer, GridError):
            self._trouble = answer
            self._draw_head()
            return
        before, self.seen, self._trouble = self.seen, answer, None
        since, self._answered_at = self._answered_at, time.monotonic()
        if (failed := attempt(self.draw)) is not None:
            # The answer cannot be shown, perhaps because the controller has another version: the old content stays.
            self.seen, self._trouble, self._answered_at = before, failed, since
            return
        log = self.query_one("#events", RichLog)
        for event in answer.events:
            log.write(event_line(event))

    def on_resize(self) -> None:
        self.draw()

    def _tick(self) -> None:
        """Redraw what changes with time, even without new data."""
        self._draw_head()
        self._draw_boosts()

    # -- what is drawn ---------------------------------------------------------------------------------------

    def draw(self) -> None:
        self._draw_head()
        self._draw_nodes()
        self._draw_boosts()

    def _draw_head(self) -> None:
        canvas = Canvas(max(40, self.size.width - 2), self._blocks)
        lines: list[str] = []
        if self.seen is not None:
            status = self.seen.status
            lines += canvas.flow(
                [
                    f"{bold(status['cluster'])}  {counted(status['nodes'])}",
                    f"{bold('Free')} {free_of(status['nodes'])}",
                    *self._waiting(status),
                    f"{bold('Controller')} {status['controller']['url']}",
                    *(click.style(problem, fg="yellow") for problem in status["problems"]),
                ]
            )
            lines += waiting_lines(status, canvas, _FIRST_OF_QUEUE)
            lines += window_lines(self.seen.windows, canvas, _FIRST_OF_QUEUE)
            lines += cordoned_lines(status.get("cordoned", ()), canvas)
        silent = time.monotonic() - self._answered_at
        if self._trouble is not None or silent > _SILENT_S:
            why = self._trouble.message if self._trouble else "The controller does not answer"
            text = f"{why}; the data shown is {span(silent)} old. Retrying ..."
            lines += [click.style(line, fg="red", bold=True) for line in canvas.wrapped(text)]
        if lines:
            self.query_one("#head", Static).update(Text.from_ansi("\n".join(lines)))

    @staticmethod
    def _waiting(status: ClusterStatus) -> list[str]:
        """The demand in Ray's queues; left out where only grid's own queue has requests."""
        if status.get("waiting") and not status["demand"]:
            return []
        return [f"{bold('Waiting')} {waiting_in_short(status['demand'])}"]

    def _draw_nodes(self) -> None:
        if self.seen is None:
            return
        all_nodes = self.seen.status["nodes"]
        nodes = sorted((node for node in all_nodes if self._is_wanted(node)), key=sort_key(self.sort))
        series = self.sort if self.sort in BUILT_IN else "overall"
        found = node_columns(nodes, self._blocks)
        found["history"] = history_column(
            [self.seen.history.get(node["name"], {}).get(series, ()) for node in nodes],
            self._blocks,
            "Last hour" if series == "overall" else f"{series}, 1 h",
        )
        shown = ("node", "pressure", "history", "cpu%", "mem%", "gpu%", *kinds_of(nodes), "lent", "borrowed")
        custom = [kind for kind in kinds_of(nodes) if kind not in BUILT_IN for _ in range(3)]
        table = self.query_one("#nodes", LiveTable)
        # A cell has one column on either side, and the table a scroll bar.
        canvas = Canvas(max(40, self.size.width - 4), self._blocks)
        fitted = fit({key: found[key] for key in shown}, (*custom, *_GIVE_UP), canvas)
        styles = node_styles(nodes, self._blocks)
        if "history" in fitted.columns:
            styles |= dict.fromkeys(fitted.columns["history"].cells, "cyan")
        table.show([node["name"] for node in nodes], fitted, styles)
        only = f", {len(nodes)} of {len(all_nodes)} with {self.wanted!r}" if self.wanted else ""
        table.call_it(f"Nodes by {self.sort}{only}")

    def _is_wanted(self, node: NodeStatus) -> bool:
        return self.wanted.lower() in str(node["name"]).lower() or self.wanted.lower() == node["state"]

    def _draw_boosts(self) -> None:
        if self.seen is None:
            return
        status = self.seen.status["boosts"]
        boosts = sorted(status["boosts"], key=ends_at)
        canvas = Canvas(max(40, self.size.width - 4), self._blocks)
        columns, styles = boost_columns(boosts, canvas)
        table = self.query_one("#boosts", LiveTable)
        fitted = fit(columns, ("why", "delivery", "team", "why", "id", "owner", "why"), canvas)
        table.show([boost["boost_id"] for boost in boosts], fitted, styles)
        of_programs = sum(boost["purpose"] != "boost" for boost in boosts)
        more = f", {leases_of_programs(of_programs)}" if of_programs else ""
        table.call_it(f"Boosts: {status['total_active']} active{more}" if boosts else "No boosts")

    # -- keys ------------------------------------------------------------------------------------------------

    def action_sort(self, by: str) -> None:
        self.sort = by
        self._draw_nodes()
        self.query_one("#nodes", LiveTable).move_cursor(row=0)  # after sorting, the user wants to see the first row

    def action_next_sort(self) -> None:
        self.action_sort(SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)])

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def action_no_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value = ""
        field.display = False
        self.query_one("#nodes").focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.wanted = event.value.strip()
        self._draw_nodes()

    def on_input_submitted(self) -> None:
        self.query_one("#filter").display = bool(self.wanted)
        self.query_one("#nodes").focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Enter, or a click on the row under the cursor."""
        event.stop()
        if event.data_table.id == "nodes" and (name := self.selected_node) is not None:
            self.post_message(self.Opened(name))
        elif event.data_table.id == "boosts" and (boost := self.selected_boost) is not None:
            self.post_message(self.Opened(boost_id=boost["boost_id"]))

    @property
    def selected_node(self) -> str | None:
        return self.query_one("#nodes", LiveTable).selected

    @property
    def selected_boost(self) -> Boost | None:
        """The boost under the cursor, if the boosts table has the focus."""
        table = self.query_one("#boosts", LiveTable)
        if not table.has_focus or self.seen is None:
            return None
        boosts = self.seen.status["boosts"]["boosts"]
        return next((boost for boost in boosts if boost["boost_id"] == table.selected), None)

    @property
    def nodes(self) -> Sequence[str]:
        return [node["name"] for node in self.seen.status["nodes"]] if self.seen else ()

    @property
    def kinds(self) -> Sequence[str]:
        return kinds_of(self.seen.status["nodes"]) if self.seen else BUILT_IN
