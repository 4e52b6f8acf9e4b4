"""grid offload: scan, execute, status, log, cancel."""

import click

from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import json_option, say, show
from distributed_grid.client import GridClient


@click.group()
def offload() -> None:
    """Move heavy processes to other nodes."""


@offload.command()
@click.argument("node", required=False)
@click.option("--all", "with_others", is_flag=True, help="Also heavy processes that cannot move, and why.")
@json_option
@with_client
def scan(client: GridClient, node: str | None, with_others: bool, as_json: bool) -> None:
    """Heavy processes of NODE, or of all nodes, that could run elsewhere."""
    from distributed_grid.cli.canvas import Canvas
    from distributed_grid.cli.offload_view import candidates_view

    found = client.offload_candidates(node)
    show(found, as_json, lambda data: candidates_view(data, Canvas.here(), with_others=with_others))
    for name in found["silent"]:
        say(click.style("Warning: ", fg="yellow") + f"{name} did not answer")


@offload.command()
@click.argument("pid", type=click.IntRange(min=1))
@click.option("--to", metavar="NODE|auto", default="auto", show_default=True, help="Where it is to run.")
@click.option("--from", "node", metavar="NODE", help="Where it is, if several nodes have a process with this id.")
@click.option("--keep", is_flag=True, help="Leave the old process as it is.")
@click.option("--grace", metavar="SECONDS", default="10", show_default=True, help="How long it has to end.")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Copy this variable, too, or set it. Repeatable.")
@click.option("--cpus", metavar="N", help="Instead of the cores that it was measured to use.")
@click.option("--memory", metavar="GB", help="Instead of the memory that it was measured to use.")
@click.option("--gpus", metavar="N", help="Instead of the GPUs that it has open.")
@click.option("--dry-run", is_flag=True, help="Check everything, say what would be done, and change nothing.")
@json_option
@with_client
def execute(
    client: GridClient,
    pid: int,
    to: str,
    node: str | None,
    keep: bool,
    grace: str,
    env: tuple[str, ...],
    cpus: str | None,
    memory: str | None,
    gpus: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Stop process PID and start the same command on another node."""
    from distributed_grid.cli.offload_view import moved_view, plan_view
    from distributed_grid.model.requests import seconds

    body = {
        "pid": pid,
        "node": node,
        "to": to,
        "keep": keep,
        "grace_seconds": seconds("grace period", grace, zero_allowed=True),
        "env": list(env),
        "cpus": cpus,
        "memory": memory,
        "gpus": gpus,
    }
    if dry_run or not as_json:
        planned = client.offload(body | {"dry_run": True})
        if dry_run:
            show(planned, as_json, lambda data: plan_view(data["plan"]))
            return
        say(plan_view(planned["plan"]))
        said = planned["plan"]  # it is done as was said, to the same process
        body |= {"node": said["node"], "created_at": said["created_at"], "to": said["destination"]}
    show(client.offload(body), as_json, lambda data: moved_view(data["offload"]))


@offload.command()
@click.option("--watch", is_flag=True, help="Keep showing it until Ctrl-C.")
@json_option
@with_client
def status(client: GridClient, watch: bool, as_json: bool) -> None:
    """The processes that were moved: those that run, and those that ended lately."""
    from distributed_grid.cli.canvas import Canvas
    from distributed_grid.cli.offload_view import offloads_view
    from distributed_grid.cli.watching import watch as keep_showing

    if watch:
        keep_showing(client.offloads, as_json, lambda data: offloads_view(data, Canvas.here()))
        return
    show(client.offloads(), as_json, lambda data: offloads_view(data, Canvas.here()))


@offload.command()
@click.argument("offload_id", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until it has ended, or Ctrl-C.")
@json_option
@with_client
def log(client: GridClient, offload_id: str, follow: bool, as_json: bool) -> None:
    """What a moved process has written since. ID may be shortened.

    A terminal gets it with escapes and control characters written out; a file or a pipe gets it as it is.
    """
    import sys
    import time

    from distributed_grid.cli.watching import until_interrupted
    from distributed_grid.model.plain_text import plain

    def shown(text: str) -> str:
        if not sys.stdout.isatty():
            return text
        return plain(text.replace("\r\n", "\n").replace("\r", "\n"), keep="\n\t")

    begin = 0
    with until_interrupted():
        while True:
            piece = client.offload_log(offload_id, begin)
            show(piece, as_json, lambda data: data["text"]) if as_json else click.echo(
                shown(piece["text"]), nl=False, color=True
            )
            is_all = piece["next"] == begin
            begin = piece["next"]
            if is_all and (piece["is_over"] or not follow):
                return
            if is_all:
                time.sleep(0.5)


@offload.command()
@click.argument("offload_id", metavar="ID")
@click.option("--grace", metavar="SECONDS", default="10", show_default=True, help="How long it has to end.")
@json_option
@with_client
def cancel(client: GridClient, offload_id: str, grace: str, as_json: bool) -> None:
    """End a moved process where it runs now. ID may be shortened."""
    from distributed_grid.cli.offload_view import ended_view
    from distributed_grid.model.requests import seconds

    show(client.cancel_offload(offload_id, seconds("grace period", grace, zero_allowed=True)), as_json, ended_view)
