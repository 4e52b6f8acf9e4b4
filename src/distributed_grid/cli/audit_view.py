"""What an audit found, and lines of the audit log, for people."""

from collections.abc import Iterable, Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from distributed_grid.model.instants import parse_instant

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_MEANING = {
    "drifted_total": "a node has more or less than it started with, less what it lent, plus what it borrowed",
    "view_differs": "Ray's control service shows another total than the node itself says",
    "marker_without_lease": "a node is marked as lending or borrowing, and no boost says so",
    "marker_differs": "a node's markers do not show how far it is from its start",
    "unknown_group": "a placement group has a name like grid's, and belongs to no boost",
    "group_missing": "a reserved boost has no placement group: nothing is reserved",
    "group_fallen": "a reserved boost's placement group lost its node: nothing is reserved",
    "group_differs": "a reserved boost's placement group is not the one, or not what, the books say",
    "work_outside_lease": "work uses what no boost lends it any more",
    "store_differs": "a restart would not find the boosts as they are",
    "expired": "a boost is past its end and has not begun to go home",
    "unfinished_grant": "a boost is half granted, and nobody is at it",
    "node_gone": "a boost is on a node that is not there",
    "node_silent": "a node could not be asked, so its part is not audited",
}
_COLOURS = {"open": "bold red", "left": "bold red", "repaired": "green", "settled": "dim"}


def report_view(report: Mapping[str, Any]) -> "RenderableType":
    """A table of the findings, then what they mean and what there is to do."""
    from rich.console import Group
    from rich.text import Text

    looked = f"{count(report['nodes'], 'node')}, {count(report['boosts'], 'boost')}, {count(report['groups'], 'group')}"
    after_repair = bool(report["did"])
    rows = [
        *(("left" if after_repair else "open", finding) for finding in report["findings"]),
        *(("repaired", finding) for finding in report["repaired"]),
        *(("settled", finding) for finding in report["settled"]),
    ]
    verdict = "Sound" if report["sound"] else count(len(report["findings"]), "finding")
    head = Text.assemble((verdict, "bold green" if report["sound"] else "bold red"), f": looked at {looked}")
    if not rows:
        return head
    parts: list[Any] = [head, Text(), _table(rows), *_explained(rows)]
    if report["did"]:
        parts += [Text(), Text("Done:", style="bold"), *(Text(f"  {line}") for line in report["did"])]
    return Group(*parts)


def _table(rows: list[tuple[str, Any]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("Finding", "About", "Now"):
        table.add_column(heading, no_wrap=True)
    table.add_column("Detail", overflow="fold")
    for state, finding in rows:
        about = finding["subject"][:8] if finding["subject"] == finding["boost_id"] else finding["subject"]
        lines = [finding["detail"], *(f"- {work}" for work in finding["work"])]
        if finding.get("left_because"):
            lines.append(f"left because {finding['left_because']}")
        table.add_row(finding["kind"], about, Text(state, style=_COLOURS[state]), Text("\n".join(lines)))
    return table


def _explained(rows: Iterable[tuple[str, Any]]) -> list[Any]:
    from rich.text import Text

    rows = list(rows)
    kinds = dict.fromkeys(finding["kind"] for _, finding in rows)
    lines = [Text(), Text("What it means:", style="bold")]
    lines += [Text(f"  {kind}: {_MEANING.get(kind, 'see docs/operations.md')}") for kind in kinds]
    to_do = dict.fromkeys(
        (finding["kind"], finding["what_to_do"]) for state, finding in rows if state in ("open", "left")
    )
    if to_do:
        lines += [Text(), Text("To do:", style="bold")]
        lines += [Text(f"  {kind}: {what}") for kind, what in to_do]
    return lines


def entry_line(entry: Mapping[str, Any], width: int | None = None) -> str:
    """One line of the audit log: when, what, who, which boost, where, and in words.

    On a terminal of some width, words that do not fit stand below, under what happened.
    """
    told = entry.get("message") or ", ".join(f"{k}={v}" for k, v in entry.items() if k not in _SHOWN and v is not None)
    line = "  ".join(
        (
            _utc(str(entry.get("at"))),
            click.style(f"{entry.get('event', '?'):<14}", bold=True),
            f"{entry.get('who') or '-':<10}",
            f"{(entry.get('boost_id') or '-')[:8]:<8}",
            f"{entry.get('node') or '-':<12}",
        )
    )
    if width is None or len(click.unstyle(line)) + 2 + len(str(told)) <= width:
        return f"{line}  {told}".rstrip()
    return f"{line.rstrip()}\n{fill(str(told), max(width, 60), initial_indent=_BELOW, subsequent_indent=_BELOW)}"


_BELOW = " " * 22
_SHOWN = {"at", "event", "who", "boost_id", "node", "message"}


def _utc(at: str) -> str:
    """ "2025-06-01 12:00:03Z"."""
    try:
        return f"{parse_instant(at):%Y-%m-%d %H:%M:%S}Z"
    except ValueError:
        return at


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
