"""grid audit: compares the cluster with the ledger. grid audit log: who did what."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Any

import click

from distributed_grid.cli.commands import Group
from distributed_grid.cli.connection import agreed_config_option, with_client
from distributed_grid.cli.output import is_a_terminal, json_option, say, show
from distributed_grid.cli.parameters import BOOST, NODE
from distributed_grid.client import GridClient
from distributed_grid.errors import CheckFailed
from distributed_grid.model.times import parse_instant

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
    "unfinished_grant": "a boost is half granted, and its grant is not under way",
    "node_gone": "a boost is on a node that is not there",
    "node_silent": "a node could not be asked, so its part is not audited",
}
_COLOURS = {"open": "bold red", "left": "bold red", "repaired": "green", "settled": "dim"}


def report_view(report: Mapping[str, Any]) -> "RenderableType":
    """A table of the findings, then what they mean and what to do."""
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
    """One line of the audit log: time, event, user, boost, node and a description.

    With a width, a description that does not fit continues below, under the event.
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


_FOLLOW_S = 1.0
_MOST = 10_000


@click.group(cls=Group, invoke_without_command=True)
@click.option("--repair", is_flag=True, help="Do what is safe about it; nothing is killed.")
@click.option(
    "--kill", is_flag=True, help="With --repair: end work that holds what a boost lent, past its grace period."
)
@json_option
@agreed_config_option
@click.pass_context
def audit(ctx: click.Context, repair: bool, kill: bool, as_json: bool, config_path: str | None) -> None:
    """Compare boosts, the file on disk, Ray's nodes and groups, and running work.

    Ends with 0 if everything agrees, else with 9. Without --repair nothing is changed.
    """
    if kill and not repair:
        raise click.UsageError("--kill goes with --repair.")
    if ctx.invoked_subcommand is None:
        _examine(config_path=config_path, repair=repair, kill=kill, as_json=as_json)
    elif repair or as_json:
        raise click.UsageError(f"Give options after {ctx.invoked_subcommand!r}, not before.")


@with_client
def _examine(client: GridClient, repair: bool, kill: bool, as_json: bool) -> None:

    report = client.repair(kill=kill) if repair else client.audit()
    show(report, as_json, report_view)
    if not report["sound"]:
        left = report["findings"]
        raise CheckFailed(
            f"{count(len(left), 'finding')} {'left after the repair' if repair else 'in the audit'}",
            because=[f"{finding['kind']}: {finding['subject']}" for finding in left],
            try_next="See what is left, and why, above." if repair else "grid audit --repair",
        )


@audit.command(
    examples=["grid audit log --since 2h", "grid audit log --who ana --event granted --json", "grid audit log --follow"]
)
@click.option("--who", metavar="NAME", help="Only what this user did; `grid` is grid itself.")
@click.option("--node", metavar="NODE", type=NODE, help="Only what is about this node.")
@click.option("--boost", metavar="ID", type=BOOST, help="Only what is about this boost; the id may be shortened.")
@click.option("--event", metavar="KIND", help="Only this kind of event, such as granted or killed.")
@click.option("--since", metavar="TIME", help="How long ago (30s, 15m, 2h, 7d) or when (2025-06-01T12:00Z).")
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    metavar="N",
    default=100,
    show_default=True,
    help="At most so many, the last.",
)
@click.option("--follow", is_flag=True, help="Go on with what comes, until Ctrl-C; as JSON, one line each.")
@json_option
@with_client
def log(
    client: GridClient,
    who: str | None,
    node: str | None,
    boost: str | None,
    event: str | None,
    since: str | None,
    limit: int,
    follow: bool,
    as_json: bool,
) -> None:
    """Who did what when: the audit log, oldest first, times in UTC."""
    from datetime import UTC, datetime

    from distributed_grid.cli.watching import until_interrupted
    from distributed_grid.model.times import moment

    # Resolved once, so that --follow keeps the same starting point.
    since = since and moment(since, now=datetime.now(UTC)).isoformat()
    wanted = {"who": who, "node": node, "boost": boost, "event": event}
    entries = client.audit_log(**wanted, since=since, limit=limit)
    width = get_terminal_size().columns if is_a_terminal() else None  # in a pipe, one line per entry, for grep
    if follow:
        with until_interrupted():
            for entry in _going_on(client, wanted, entries, since):
                click.echo(json.dumps(entry) if as_json else entry_line(entry, width))
    elif entries or as_json:
        show(
            {"entries": entries}, as_json, lambda found: "\n".join(entry_line(each, width) for each in found["entries"])
        )
    else:
        say("The audit log has nothing like that.")


def _going_on(
    client: GridClient, wanted: dict[str, Any], entries: list[dict[str, Any]], since: str | None
) -> Iterator[dict[str, Any]]:
    """These entries, then new ones as they appear. Entries that share the last timestamp are yielded only once."""
    seen: list[dict[str, Any]] = []
    while True:
        yield from (entry for entry in entries if entry not in seen)
        if entries:
            since = entries[-1]["at"]
            seen = [entry for entry in entries if entry["at"] == since]
        time.sleep(_FOLLOW_S)
        entries = client.audit_log(**wanted, since=since, limit=_MOST)
