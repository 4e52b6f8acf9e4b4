"""grid boost: request, status, release, checkpointed, renew, shell."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Unpack

import click

from distributed_grid.cli.capacity_options import CapacityCommand, CapacityOptions, requested, with_capacity_options
from distributed_grid.cli.commands import IDLE_HELP, TIME, TIME_OR_NEVER, Group
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import json_option, keep_showing, say, show
from distributed_grid.cli.parameters import BOOST, NODE, ON_GRACE_END
from distributed_grid.cli.plan import what_became_of
from distributed_grid.client import GridClient
from distributed_grid.client.calls import message_if_slow
from distributed_grid.errors import GridError
from distributed_grid.model.endings import OnGraceEnd

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost, BoostStatus, ReleaseRequest

_YIELDING = (
    "Waiting for capacity; other boosts may have to be returned first. To see the queue: grid resource-sharing queue"
)


@click.group(cls=Group)
def boost() -> None:
    """Lend capacity of one node to another for a limited time."""


@boost.command(
    cls=CapacityCommand,
    examples=[
        "grid boost request gpu-master cpu 4",
        "grid boost request gpu-master gpu 1 --duration 30m --wait 10m",
        "grid boost request gpu-master memory 8 --source gpu1 --priority low",
    ],
)
@with_capacity_options
@click.option("--wait", metavar=TIME, help="Wait this long for capacity instead of failing.")
@click.option(
    "--grace", metavar=TIME, help="How long work may continue when the boost ends.  [default: as configured, else 30s]"
)
@click.option(
    "--on-grace-end",
    metavar="|".join(OnGraceEnd),
    type=ON_GRACE_END,
    help="What happens when the grace period ends.  [default: as configured, else hold]",
)
@click.option("--reclaim-url", metavar="URL", help="The URL to notify before the boost is reclaimed.")
@click.option(
    "--reclaim-watch", is_flag=True, help="Give notice before a reclaim, in GRID_HOME/reclaim/ID.json on the head."
)
@click.option("--idle-after", metavar=TIME_OR_NEVER, help=IDLE_HELP)
@click.option("--auto-renew", is_flag=True, help="Stay in the foreground, and renew the boost until this process ends.")
@json_option
@with_client
def request(
    client: GridClient,
    wait: str | None,
    reclaim_url: str | None,
    reclaim_watch: bool,
    idle_after: str | None,
    auto_renew: bool,
    as_json: bool,
    grace: str | None,
    on_grace_end: str | None,
    **options: Unpack[CapacityOptions],
) -> None:
    """Lend AMOUNT of a resource to TARGET. Memory is in GB."""
    from distributed_grid.cli.tables import boost_card
    from distributed_grid.model.leases import WATCHED
    from distributed_grid.model.validators import waiting_time

    hook = reclaim_url or (WATCHED if reclaim_watch else None)
    body, ask = requested(
        options, grace_seconds=grace, on_grace_end=on_grace_end, reclaim_url=hook, idle_after=idle_after
    )
    wait_s = 0.0 if wait is None else waiting_time(wait)
    if wait_s:
        say(f"Waiting up to {wait_s:g} s for {ask.describe()} ...")
    with message_if_slow(_YIELDING, say):
        granted = client.request_boost({**body, "wait_seconds": wait_s})
    show(granted, as_json, boost_card)
    _tell_warnings(granted, as_json)
    if auto_renew:
        _keep_renewing(client, granted, ask.duration_s)


@boost.command(examples=["grid boost status", "grid boost status --node gpu1 --all --watch"])
@click.option("--node", metavar="NODE", type=NODE, help="Only boosts to or from this node.")
@click.option(
    "--all", "with_runs", is_flag=True, help="Also show the leases of runs, tasks, roles and moved processes."
)
@click.option("--watch", is_flag=True, help="Keep the output up to date until Ctrl-C.")
@json_option
@with_client
def status(client: GridClient, node: str | None, with_runs: bool, watch: bool, as_json: bool) -> None:
    """Show the totals per resource type, then every boost."""
    from distributed_grid.cli.columns import Canvas
    from distributed_grid.cli.tables import boost_table, without_runs

    def view(found: BoostStatus) -> str:
        canvas = Canvas.here()
        lines = [line for each in found.get("problems", ()) for line in canvas.wrapped(each)]
        problems = [click.style(line, fg="yellow") for line in lines]
        return "\n".join([*problems, *[""] * bool(problems), boost_table(found, canvas)])

    def look() -> BoostStatus:
        found = client.boost_status(node)
        return found if with_runs else without_runs(found)

    if watch:
        keep_showing(look, as_json, view)
        return
    show(look(), as_json, view)


@boost.command(examples=["grid boost release 3f2a91c0", "grid boost release 3f2a91c0 --amount 2 --grace 5m --wait 10m"])
@click.argument("boost_id", type=BOOST)
@click.option("--amount", metavar="AMOUNT", help="Release only this amount; keep the rest.")
@click.option("--grace", metavar=TIME, help="A grace period that overrides the boost's own.")
@click.option(
    "--wait",
    default="1s",
    metavar=TIME,
    show_default=True,
    help="Wait this long for the capacity to be returned.",
)
@json_option
@with_client
def release(client: GridClient, boost_id: str, amount: str | None, grace: str | None, wait: str, as_json: bool) -> None:
    """Give a boost back, or part of it. BOOST_ID may be shortened."""
    from distributed_grid.cli.tables import return_line
    from distributed_grid.model.validators import seconds, waiting_time

    body: ReleaseRequest = {"wait_seconds": waiting_time(wait)}
    if grace is not None:
        body["grace_seconds"] = seconds("grace period", grace, zero_allowed=True)
    if amount is not None:
        body["amount"] = amount
    with what_became_of(client, boost_id):
        released = client.release_boost(boost_id, body)
    show(released, as_json, return_line)
    _tell_warnings(released, as_json)


@boost.command(examples=["grid boost checkpointed 3f2a91c0"])
@click.argument("boost_id", type=BOOST)
@json_option
@with_client
def checkpointed(client: GridClient, boost_id: str, as_json: bool) -> None:
    """Report that the work in a boost is saved. Of equal boosts, one with a recent checkpoint is reclaimed first."""
    from distributed_grid.cli.output import clock

    def text(boost: Boost) -> str:
        at = boost["checkpointed_at"]
        assert at is not None, "it was reported just now"
        return f"Boost {boost['boost_id']}: its work is saved as of {clock(at)}"

    with what_became_of(client, boost_id):
        saved = client.checkpointed(boost_id)
    show(saved, as_json, text)


@boost.command(examples=["grid boost renew 3f2a91c0", "grid boost renew 3f2a91c0 --duration 2h"])
@click.argument("boost_id", type=BOOST)
@click.option("--duration", metavar=TIME, help="The new duration, from now.  [default: the original one]")
@json_option
@with_client
def renew(client: GridClient, boost_id: str, duration: str | None, as_json: bool) -> None:
    """Restart a boost's duration from now."""
    from distributed_grid.cli.tables import boost_card
    from distributed_grid.model.validators import seconds

    length = None if duration is None else seconds("duration", duration)
    with what_became_of(client, boost_id):
        renewed = client.renew_boost(boost_id, length)
    show(renewed, as_json, boost_card)


@boost.command(
    context_settings={"ignore_unknown_options": True},
    examples=["grid boost shell 3f2a91c0", "grid boost shell 3f2a91c0 -- python train_model.py"],
)
@click.argument("boost_id", type=BOOST)
@click.option("--allow-escapes", is_flag=True, help="Let work that cannot run inside the boost run outside it.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@with_client
def shell(client: GridClient, boost_id: str, allow_escapes: bool, command: tuple[str, ...]) -> int:
    """Open a shell, or run COMMAND, whose Ray programs run their tasks and actors in a reserved boost."""
    import time

    from distributed_grid.cli.capture_shell import run_inside

    with what_became_of(client, boost_id):
        boost = client.boost(boost_id, to_use=True)
    began = time.monotonic()
    exit_code = run_inside(client, boost, command, say, allow_escapes=allow_escapes)
    _report(client, boost["boost_id"], time.monotonic() - began, exit_code)
    return exit_code


def _report(client: GridClient, boost_id: str, seconds: float, exit_code: int) -> None:
    """Report the run time. The user neither waits for this nor sees an error if it fails."""

    hasty = GridClient(client.home, retry_s=0.0)
    with suppress(GridError):
        hasty.report_run(boost_id, seconds, exit_code)
    hasty.close()


def _tell_warnings(boost: Boost, as_json: bool) -> None:
    if not as_json:
        for warning in boost["warnings"]:
            say(click.style("Warning: ", fg="yellow") + warning)


def _keep_renewing(client: GridClient, granted: Boost, duration_s: float) -> None:
    """Renew until this process ends; the boost then expires."""
    from distributed_grid.cli.output import clock
    from distributed_grid.client.lease_keeper import LeaseKeeper

    short = granted["boost_id"][:8]
    say(f"Renewing {short} until Ctrl-C.")
    current = granted

    def renew() -> None:
        nonlocal current
        current = client.renew_boost(granted["boost_id"])

    try:
        raise LeaseKeeper(duration_s).keep_here(renew)
    except KeyboardInterrupt:
        say(f"\n{short} ends at {clock(current['expires_at'])}. To end it now: grid boost release {short}")
