"""A table whose rows change all the time while somebody reads it."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import DataTable

from distributed_grid.cli.columns import Fitted


class LiveTable(DataTable[Text]):
    """Shows new rows without losing the place: the cursor stays on its row, wherever that goes."""

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
        """Set the title, as it stands: brackets in it are no markup."""
        self.border_title = Content(title)

    @property
    def selected(self) -> str | None:
        """The key of the row under the cursor."""
        return self._keys[self.cursor_row] if 0 <= self.cursor_row < len(self._keys) else None

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
