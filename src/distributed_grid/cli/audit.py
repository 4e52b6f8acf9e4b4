"""grid audit: compares the cluster with the ledger. grid audit log: who did what."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING

import click

from distributed_grid.cli.columns import Canvas
from distributed_grid.cli.commands import Group
from distributed_grid.cli.connection import agreed_config_option, with_client
from distributed_grid.cli.findings import findings_view
from distributed_grid.cli.output import is_a_terminal, json_option, readable, say, show, until_interrupted
from distributed_grid.cli.parameters import BOOST, NODE
from distributed_grid.cli.tables import bold
from distributed_grid.client import GridClient
from distributed_grid.errors import CheckFailed
from distributed_grid.model.plain_text import only_styled
from distributed_grid.model.times import moment, parse_instant

if TYPE_CHECKING:
    from distributed_grid.wire.audit import AuditReport, Entry


def report_view(report: AuditReport, canvas: Canvas) -> str:
    """The verdict, a table of the findings, what they mean and what to do."""
    looked = f"{count(report['nodes'], 'node')}, {count(report['boosts'], 'boost')}, {count(report['groups'], 'group')}"
    still = "left" if report["did"] else "open"
    rows = [
        *((still, finding) for finding in report["findings"]),
        *(("repaired", finding) for finding in report["repaired"]),
        *(("settled", finding) for finding in report["settled"]),
    ]
    verdict = "OK" if report["sound"] else count(len(report["findings"]), "finding")
    head = click.style(verdict, fg="green" if report["sound"] else "red", bold=True) + f": checked {looked}"
    if not rows:
        return head
    did = [f"  {line}" for line in report["did"]]
    return "\n".join(
        [head, "", findings_view(rows, canvas, with_meaning=True), *(["", bold("Done:"), *did] if did else [])]
    )


def entry_line(entry: Entry, width: int | None = None) -> str:
    """One line of the audit log: time, event, user, boost or request, node and a description.

    With a width, a description that does not fit continues below, under the event.
    """
    message = entry.get("message") or ", ".join(
        f"{k}={v}" for k, v in entry.items() if k not in _SHOWN and v is not None
    )
    when = _local(str(entry.get("at")))
    line = "  ".join(
        (
            f"{when:<{_ZONES}}",
            click.style(f"{entry.get('event', '?'):<14}", bold=True),
            f"{entry.get('who') or '-':<10}",
            f"{str(entry.get('boost_id') or entry.get('request_id') or '-')[:8]:<8}",
            f"{entry.get('node') or '-':<12}",
        )
    )
    if width is None or len(click.unstyle(line)) + 2 + len(str(message)) <= width:
        return f"{line}  {message}".rstrip()
    return f"{line.rstrip()}\n{fill(str(message), max(width, 60), initial_indent=_BELOW, subsequent_indent=_BELOW)}"


_ZONES = len("2025-06-01 12:00:03 CEST")
_BELOW = " " * (_ZONES + 2)
_SHOWN = {"at", "event", "who", "boost_id", "node", "message"}


def _local(at: str) -> str:
    """ "2025-06-01 14:00:03 CEST"."""
    try:
        return f"{parse_instant(at).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except (ValueError, OverflowError):
        return at


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


_FOLLOW_S = 1.0
_MOST = 10_000


@click.group(cls=Group, invoke_without_command=True)
@click.option("--repair", is_flag=True, help="Make the safe repairs. Nothing is killed without --kill.")
@click.option(
    "--kill",
    is_flag=True,
    help="With --repair: also end work that still uses borrowed capacity after the grace period.",
)
@json_option
@agreed_config_option
@click.pass_context
def audit(ctx: click.Context, repair: bool, kill: bool, as_json: bool, config_path: str | None) -> None:
    """Compare boosts, the file on disk, Ray's nodes and groups, and running work.

    The exit code is 0 if everything agrees, otherwise 9. Without --repair, nothing changes.
    """
    if kill and not repair:
        raise click.UsageError("--kill needs --repair.")
    if ctx.invoked_subcommand is None:
        _examine(config_path=config_path, repair=repair, kill=kill, as_json=as_json)
    elif repair or as_json:
        raise click.UsageError(f"Give options after {ctx.invoked_subcommand!r}, not before.")


@with_client
def _examine(client: GridClient, repair: bool, kill: bool, as_json: bool) -> None:

    report = client.repair(kill=kill) if repair else client.audit()
    show(report, as_json, lambda found: report_view(found, Canvas.here()))
    if not report["sound"]:
        left = report["findings"]
        raise CheckFailed(
            f"{count(len(left), 'finding')} {'left after the repair' if repair else 'in the audit'}",
            because=[f"{finding['code']}: {finding['subject']}" for finding in left],
            try_next="The table above shows what is left, and why." if repair else "grid audit --repair",
        )


@audit.command(
    examples=["grid audit log --since 2h", "grid audit log --who ana --event granted --json", "grid audit log --follow"]
)
@click.option("--who", metavar="NAME", help="Only what this user did; `grid` is grid itself.")
@click.option("--node", metavar="NODE", type=NODE, help="Only events about this node.")
@click.option("--boost", metavar="ID", type=BOOST, help="Only events about this boost; the id may be shortened.")
@click.option("--event", metavar="KIND", help="Only this kind of event, such as granted or killed.")
@click.option(
    "--since",
    metavar="WHEN",
    help="How long ago (90, 15m, 1h30m, 7d) or when (2025-06-01T12:00, UTC with a Z).",
)
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    metavar="N",
    default=100,
    show_default=True,
    help="Show at most this many entries, the newest.",
)
@click.option("--follow", is_flag=True, help="Also show new entries until Ctrl-C; with --json, one object per line.")
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
    """Show the audit log: who did what and when, oldest first."""

    # Resolved once, so that --follow keeps the same starting point.
    since = since and moment(since, now=datetime.now(UTC), zone=None).isoformat()
    wanted = {"who": who, "node": node, "boost": boost, "event": event}
    entries = client.audit_log(**wanted, since=since, limit=limit)
    width = get_terminal_size().columns if is_a_terminal() else None  # in a pipe, one line per entry, for grep
    if follow:
        with until_interrupted():
            for entry in _going_on(client, wanted, entries, since):
                click.echo(json.dumps(entry) if as_json else only_styled(entry_line(readable(entry), width)))
    elif entries or as_json:
        show(
            {"entries": entries}, as_json, lambda found: "\n".join(entry_line(each, width) for each in found["entries"])
        )
    else:
        say("No entries match.")


def _going_on(
    client: GridClient, wanted: dict[str, str | None], entries: list[Entry], since: str | None
) -> Iterator[Entry]:
    """These entries, then new ones as they appear. Entries that share the last timestamp are yielded only once."""
    seen: list[Entry] = []
    while True:
        yield from (entry for entry in entries if entry not in seen)
        if entries:
            since = str(entries[-1]["at"])
            seen = [entry for entry in entries if entry["at"] == since]
        time.sleep(_FOLLOW_S)
        entries = client.audit_log(**wanted, since=since, limit=_MOST)
