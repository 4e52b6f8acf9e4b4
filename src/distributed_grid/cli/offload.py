"""grid offload: scan, execute, status, log, cancel."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from distributed_grid.cli.columns import Canvas, Column, Form, fit, fitted_table
from distributed_grid.cli.commands import TIME, Group
from distributed_grid.cli.connection import with_client
from distributed_grid.cli.output import distance, json_option, keep_showing, labelled, say, show, until_interrupted
from distributed_grid.cli.parameters import NODE, NODE_OR_AUTO, OFFLOAD
from distributed_grid.cli.tables import bold
from distributed_grid.client import GridClient
from distributed_grid.model.times import span

if TYPE_CHECKING:
    from distributed_grid.wire.offload import (
        OffloadCandidate,
        OffloadCandidates,
        OffloadedProcess,
        OffloadPlan,
        OffloadRequest,
        OffloadStatus,
    )

STATES = {"running": "green", "moving": "yellow", "lost": "red", "failed": "red"}
_COMMAND = 60, 24
_STARVED = 0.25
_INDENT = "      "
_NAMED = 3


def candidates_view(
    found: OffloadCandidates, canvas: Canvas, *, node: str | None = None, with_others: bool = False
) -> str:
    """A line for each process, the reasons for and against moving it, and the command to type.

    Processes that cannot move are named even where their reasons are not asked for: a later scan may find others.
    """
    could, others = found["candidates"], found["others"]
    lines: list[str] = []
    if could:
        lines += [_process_table(could, canvas, movable=True), "", *_reasons(could, canvas)]
        first = could[0]
        lines += ["", f"To move one:  grid offload execute {first['pid']} --from {first['node']} --to auto"]
    else:
        lines.append("No heavy process can run on another node.")
    if with_others and others:
        lines += ["", bold("These cannot move:"), _process_table(others, canvas, movable=False), ""]
        lines += _obstacles(others, canvas)
    elif with_others:
        lines.append("No heavy process is blocked from moving.")
    elif others:
        lines += canvas.wrapped(f"{len(others)} more cannot move: {_some(others)}", _INDENT, first="")
        lines.append(f"To see why:  grid offload scan {f'{node} ' if node else ''}--all")
    return "\n".join(lines)


def _some(processes: Sequence[OffloadCandidate]) -> str:
    """ "4711 (raylet), 4712 (python) and 3 more"."""
    more = f" and {len(processes) - _NAMED} more" if len(processes) > _NAMED else ""
    return ", ".join(f"{one['pid']} ({one['name']})" for one in processes[:_NAMED]) + more


def _cores(one: OffloadCandidate) -> str:
    """ "0.9"; "0.2 of 1.0" for a process that gets less than it would use."""
    used, wanted = one["cpu"], one["cpu_wanted"]
    return f"{used:.1f} of {wanted:.1f}" if wanted - used >= _STARVED else f"{used:.1f}"


def _command_column(commands: Sequence[str], canvas: Canvas) -> Column:
    narrower = [Form("Command", [canvas.cut(text, width) for text in commands]) for width in _COMMAND]
    return Column.of("Command", commands, *narrower)


def _process_table(processes: Sequence[OffloadCandidate], canvas: Canvas, *, movable: bool) -> str:
    shown = {
        "pid": Column.of("PID", [str(one["pid"]) for one in processes], right=True),
        "node": Column.of("Node", [one["node"] for one in processes]),
        "kind": Column.of("Kind", [one["kind"] for one in processes]),
        "cpu": Column.of("CPU", [_cores(one) for one in processes], right=True),
        "memory": Column.of("Memory", [f"{one['memory']:.1f} GB" for one in processes], right=True),
        "gpu": Column.of("GPU", [str(one["gpus"] or "-") for one in processes], right=True),
        "age": Column.of("Age", [span(one["age_seconds"]) for one in processes], right=True),
        **(
            {
                "to": Column.of("Destination", [one["destination"] or "-" for one in processes]),
                "sure": Column.of("Confidence", [f"{one['confidence']:.0%}" for one in processes], right=True),
            }
            if movable
            else {}
        ),
        "command": _command_column([shlex.join(one["command"]) for one in processes], canvas),
    }
    return fitted_table(fit(shown, ("command", "command", "command", "age", "kind"), canvas))


def _reasons(processes: Sequence[OffloadCandidate], canvas: Canvas) -> list[str]:
    return [line for one in processes for line in canvas.wrapped(f"{one['pid']}: {one['reason']}", _INDENT, first="")]


def _obstacles(processes: Sequence[OffloadCandidate], canvas: Canvas) -> list[str]:
    return [
        click.style(line, fg="yellow")
        for one in processes
        for obstacle in one["obstacles"]
        for line in canvas.wrapped(f"{one['pid']}: {obstacle['detail']} [{obstacle['code']}]", _INDENT, first="")
    ]


def plan_view(plan: OffloadPlan) -> str:
    """The steps, in order."""
    reserved = plan["needs"]
    amounts = {"cpu": reserved["cpu"], "memory": reserved["memory"], "gpu": reserved["gpu"]}
    needs = ", ".join(labelled(kind, amount) for kind, amount in amounts.items() if amount)
    environment = plan["environment"]
    end = (
        "keeps running there as well (--keep)"
        if plan["keep"]
        else f"gets SIGTERM, and SIGKILL after {plan['grace_seconds']:g} s"
    )
    lines = [
        f"Process {plan['pid']} on {plan['node']}: {shlex.join(plan['command'])}",
        f"  {plan['destination']} reserves {needs} for it",
        f"  it {end}",
        f"  the same command starts on {plan['destination']}, in {plan['cwd']}",
        f"  its output continues in {plan['output']}"
        if plan["output"]
        else "  its output goes to a log: grid offload log",
        f"  environment: {_names([*environment['copied'], *environment['given']])}",
    ]
    if environment["left_behind"]:
        lines.append(f"  not copied: {_names(environment['left_behind'])}  (--env NAME copies one)")
    return "\n".join(lines)


def _names(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(names[:most]) or "nothing") + more


def moved_view(one: OffloadedProcess) -> str:
    short = one["offload_id"][:8]
    state = click.style(one["state"], fg=STATES.get(one["state"]))
    return "\n".join(
        [
            f"{bold('Offloaded')} {one['offload_id']}  {state}",
            f"  process {one['from_pid']} of {one['from_node']} is now process {one['pid']} of {one['to_node']}",
            f"To see its output:  grid offload log {short} --follow",
            f"To end it:  grid offload cancel {short}",
        ]
    )


def offloads_view(found: OffloadStatus, canvas: Canvas) -> str:
    offloads = found["offloads"]
    if not offloads:
        return "No process was moved.\nTo see which could:  grid offload scan"

    fields: Sequence[Mapping[str, object]] = offloads

    def of(key: str) -> list[str]:
        return ["-" if one[key] is None else str(one[key]) for one in fields]

    fitted = fit(
        {
            "id": Column.of("ID", [one["offload_id"][:8] for one in offloads]),
            "state": Column.of("State", of("state")),
            "exit": Column.of("Exit", of("exit_code"), right=True),
            "from": Column.of("From", [f"{one['from_node']}:{one['from_pid']}" for one in offloads]),
            "to": Column.of("To", [f"{one['to_node']}:{one['pid'] or '-'}" for one in offloads]),
            "who": Column.of("Who", of("requester")),
            "began": Column.of("Began", [distance(one["began_at"]) for one in offloads]),
            "command": _command_column([one["label"] for one in offloads], canvas),
        },
        ("command", "command", "who", "command", "began"),
        canvas,
    )
    notes = [f"{one['offload_id'][:8]}: {one['why']}" for one in offloads if one["why"]]
    shown = [line for note in notes for line in canvas.wrapped(note, _INDENT, first="")]
    return "\n".join([fitted_table(fitted, STATES), *(["", *shown] if shown else [])])


def ended_view(one: OffloadedProcess) -> str:
    code = "" if one["exit_code"] is None else f" with exit code {one['exit_code']}"
    if one["state"] in ("running", "moving"):
        return f"Asked offloaded process {one['offload_id'][:8]} on {one['to_node']} to exit"
    return f"Offloaded process {one['offload_id'][:8]}: {one['state']} on {one['to_node']}{code}"


@click.group(cls=Group)
def offload() -> None:
    """Move heavy processes to other nodes."""


@offload.command(examples=["grid offload scan", "grid offload scan gpu-master --all"])
@click.argument("node", required=False, type=NODE)
@click.option("--all", "with_others", is_flag=True, help="Also list heavy processes that cannot move, and why.")
@json_option
@with_client
def scan(client: GridClient, node: str | None, with_others: bool, as_json: bool) -> None:
    """List heavy processes of NODE, or of all nodes, that could run on another node."""
    from distributed_grid.cli.columns import Canvas

    found = client.offload_candidates(node)
    show(found, as_json, lambda data: candidates_view(data, Canvas.here(), node=node, with_others=with_others))
    for name in found["silent"]:
        say(click.style("Warning: ", fg="yellow") + f"{name} did not answer")


_grace_option = click.option(
    "--grace",
    metavar=TIME,
    default="10s",
    show_default=True,
    help="How long the process has to end before it is killed.",
)


@offload.command(
    examples=["grid offload execute 4711 --dry-run", "grid offload execute 4711 --from gpu-master --to gpu1 --grace 1m"]
)
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "--to", metavar="NODE|auto", type=NODE_OR_AUTO, default="auto", show_default=True, help="The node to move it to."
)
@click.option(
    "--from", "node", metavar="NODE", type=NODE, help="Its present node, if several nodes have a process with this id."
)
@click.option("--keep", is_flag=True, help="Leave the old process running.")
@_grace_option
@click.option(
    "--env", multiple=True, metavar="NAME[=VALUE]", help="Also copy this variable, or set it; may be repeated."
)
@click.option("--cpus", metavar="N", help="CPUs to reserve.  [default: the cores that it was measured to use]")
@click.option("--memory", metavar="GB", help="Memory to reserve.  [default: a fifth more than measured]")
@click.option("--gpus", metavar="N", help="GPUs to reserve.  [default: those that it has open]")
@click.option("--dry-run", is_flag=True, help="Check everything, show the plan, and change nothing.")
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
    from distributed_grid.model.validators import seconds

    body: OffloadRequest = {
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
        planned = client.offload({**body, "dry_run": True})
        said = planned["plan"]
        assert said is not None, "a dry run is answered with its plan"
        if dry_run:
            show(planned, as_json, lambda _: plan_view(said))
            return
        say(plan_view(said))
        # The move follows this plan, for the same process.
        body |= {"node": said["node"], "created_at": said["created_at"], "to": said["destination"] or to}
    show(client.offload(body), as_json, lambda found: "" if found["offload"] is None else moved_view(found["offload"]))


@offload.command(examples=["grid offload status", "grid offload status --watch"])
@click.option("--watch", is_flag=True, help="Keep the output up to date until Ctrl-C.")
@json_option
@with_client
def status(client: GridClient, watch: bool, as_json: bool) -> None:
    """List moved processes: those that run, and those that ended recently."""
    from distributed_grid.cli.columns import Canvas

    if watch:
        keep_showing(client.offloads, as_json, lambda data: offloads_view(data, Canvas.here()))
        return
    show(client.offloads(), as_json, lambda data: offloads_view(data, Canvas.here()))


@offload.command(examples=["grid offload log 5c0ffee0 --follow"])
@click.argument("offload_id", metavar="ID", type=OFFLOAD)
@click.option("--follow", "-f", is_flag=True, help="Keep showing new output until the process ends, or Ctrl-C.")
@json_option
@with_client
def log(client: GridClient, offload_id: str, follow: bool, as_json: bool) -> None:
    """Show the output of a moved process. ID may be shortened.

    On a terminal, control characters are escaped; a file or a pipe gets the output unchanged.
    """
    import sys
    import time

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
            is_all, begin = piece["next"] == begin, piece["next"]
            if not piece["more"] and (not follow or (is_all and piece["is_over"])):
                return  # a process that goes on writing never comes to an end
            if is_all:
                time.sleep(0.5)


@offload.command(examples=["grid offload cancel 5c0ffee0 --grace 1m"])
@click.argument("offload_id", metavar="ID", type=OFFLOAD)
@_grace_option
@json_option
@with_client
def cancel(client: GridClient, offload_id: str, grace: str, as_json: bool) -> None:
    """End a moved process where it runs now. ID may be shortened."""
    from distributed_grid.model.validators import seconds

    show(client.cancel_offload(offload_id, seconds("grace period", grace, zero_allowed=True)), as_json, ended_view)
