"""grid audit: is the cluster what the books say? And grid audit log: who did what."""

import json
import time
from collections.abc import Iterator
from shutil import get_terminal_size
from typing import Any

import click

from distributed_grid.cli.connection import agreed_config_option, with_client
from distributed_grid.cli.output import is_a_terminal, json_option, say, show
from distributed_grid.client import GridClient
from distributed_grid.errors import CheckFailed

_FOLLOW_S = 1.0
_MOST = 10_000


@click.group(invoke_without_command=True)
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
    from distributed_grid.cli.audit_view import count, report_view

    report = client.repair(kill=kill) if repair else client.audit()
    show(report, as_json, report_view)
    if not report["sound"]:
        left = report["findings"]
        raise CheckFailed(
            f"{count(len(left), 'finding')} {'left after the repair' if repair else 'in the audit'}",
            because=[f"{finding['kind']}: {finding['subject']}" for finding in left],
            try_next="See what is left, and why, above." if repair else "grid audit --repair",
        )


@audit.command()
@click.option("--who", metavar="NAME", help="Only what this user did; `grid` is grid itself.")
@click.option("--node", metavar="NODE", help="Only what is about this node.")
@click.option("--boost", metavar="ID", help="Only what is about this boost; the id may be shortened.")
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

    from distributed_grid.cli.audit_view import entry_line
    from distributed_grid.cli.watching import until_interrupted
    from distributed_grid.model.since import moment

    # Made a moment here: who follows the log means the same one all the time.
    since = since and moment(since, now=datetime.now(UTC)).isoformat()
    wanted = {"who": who, "node": node, "boost": boost, "event": event}
    entries = client.audit_log(**wanted, since=since, limit=limit)
    width = get_terminal_size().columns if is_a_terminal() else None  # else a line each, for grep
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
    """These entries, then new ones as they come. Several may bear the time of the last one: those seen are left out."""
    seen: list[dict[str, Any]] = []
    while True:
        yield from (entry for entry in entries if entry not in seen)
        if entries:
            since = entries[-1]["at"]
            seen = [entry for entry in entries if entry["at"] == since]
        time.sleep(_FOLLOW_S)
        entries = client.audit_log(**wanted, since=since, limit=_MOST)
