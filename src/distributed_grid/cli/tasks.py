"""grid tasks: the runs that were started on this machine."""

from typing import TYPE_CHECKING

import click

from distributed_grid.cli.commands import TIME, Group
from distributed_grid.cli.output import json_option, say, show, show_output
from distributed_grid.cli.parameters import LOCAL_RUN
from distributed_grid.model.nodes import in_words

if TYPE_CHECKING:
    from distributed_grid.run.records import Runs, ShownRun, ShownRuns

_STATES = {
    "starting": "yellow",
    "running": "green",
    "done": "green",
    "failed": "red",
    "refused": "red",
    "lost": "red",
    "cancelled": "yellow",
}


@click.group(cls=Group)
def tasks() -> None:
    """List, show and cancel the runs of this machine, including those in the background."""


@tasks.command(examples=["grid tasks ls"])
@json_option
def ls(as_json: bool) -> None:
    """List the runs of this machine, the newest first."""
    found: ShownRuns = {"tasks": [run.shown() for run in _runs().all()]}
    show(found, as_json, _table)


@tasks.command("show", examples=["grid tasks show 7b1d"])
@click.argument("task_id", type=LOCAL_RUN)
@json_option
def show_one(task_id: str, as_json: bool) -> None:
    """Show one run: where it runs, how it ended, and its messages."""
    show(_runs().find(task_id).shown(), as_json, _card)


@tasks.command(examples=["grid tasks logs 7b1d --follow"])
@click.argument("task_id", type=LOCAL_RUN)
@click.option("-f", "--follow", is_flag=True, help="Keep showing new output until the run ends, or Ctrl-C.")
def logs(task_id: str, follow: bool) -> None:
    """Show the output of a run in the background."""
    from pathlib import Path

    from distributed_grid.errors import InvalidRequest
    from distributed_grid.run.detached import OUTPUT

    runs = _runs()
    run = runs.find(task_id)
    if not run.detached:
        raise InvalidRequest(
            f"Run {run.id} wrote to its own terminal", try_next="Grid keeps the output only of runs with --detach."
        )
    show_output(Path(run.folder) / OUTPUT, lambda: runs.find(run.id).is_over, follow=follow)


@tasks.command(examples=["grid tasks cancel 7b1d --wait 1m"])
@click.argument("task_id", type=LOCAL_RUN)
@click.option("--wait", default="15s", metavar=TIME, show_default=True, help="Wait this long for the run to end.")
@json_option
def cancel(task_id: str, wait: str, as_json: bool) -> None:
    """End a run, and return its lease."""
    import signal
    import time

    from distributed_grid.model.validators import waiting_time

    within_s = waiting_time(wait)  # a typo must not end the run
    runs = _runs()
    run = runs.find(task_id)
    process = runs.process_of(run)
    if process is not None and not run.is_over:
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + within_s
        while not (run := runs.find(run.id)).is_over and time.monotonic() < deadline:
            time.sleep(0.05)
    else:
        say(f"Run {run.id} has ended already.")
    show(run.shown(), as_json, _card)


def _runs() -> "Runs":
    from distributed_grid.run.records import Runs
    from distributed_grid.store.home import GridHome

    return Runs(GridHome.find())


def _table(found: "ShownRuns") -> str:
    from distributed_grid.cli.columns import Canvas, Column, Form, fit, fitted_table
    from distributed_grid.cli.output import clock

    runs = found["tasks"]
    if not runs:
        return "No runs yet.\nTo run something:  grid run --cpus 4 -- script.py"
    canvas = Canvas.here()
    commands = [run["command"] for run in runs]
    narrower = [Form("Command", [canvas.cut(text, width) for text in commands]) for width in (60, 24)]
    table = fit(
        {
            "id": Column.of("ID", [run["task_id"] for run in runs]),
            "state": Column.of("State", [run["state"] for run in runs]),
            "exit": Column.of(
                "Exit", ["" if run["exit_code"] is None else str(run["exit_code"]) for run in runs], right=True
            ),
            "pid": Column.of("Local PID", [str(run["pid"]) for run in runs], right=True),
            "lender": Column.of("Lender", [_lenders(run) for run in runs]),
            "began": Column.of("Began", [clock(run["began_at"]) for run in runs]),
            "took": Column.of("Took", [f"{run['seconds']:.0f} s" for run in runs], right=True),
            "command": Column.of("Command", commands, *narrower),
        },
        ("command", "began", "command", "pid", "took"),
        canvas,
    )
    refused = [f"{run['task_id']}: {run['messages'][0]}" for run in runs if run["state"] == "refused"]
    return "\n".join([fitted_table(table, _STATES), *(["", *refused] if refused else [])])


def _lenders(run: "ShownRun") -> str:
    return in_words(run["source_nodes"]) or run["source_node"] or ""


def whereabouts(run: "ShownRun") -> str:
    """Where the program is, and where the capacity is that its Ray work uses."""
    is_over = run["ended_at"] is not None
    here = f"{'was ' if is_over else ''}process {run['pid']} on this machine"
    if run["source_node"] is None:
        return here if is_over else f"{here}, without a lease yet"
    private = " in a private cluster" if run["isolation"] == "cluster" else ""
    return (
        f"{here}; its Ray work {'ran' if is_over else 'runs'}{private} on {_lenders(run)}, "
        f"in a lease for {run['target_node']}"
    )


def _card(run: "ShownRun") -> str:
    from distributed_grid.cli.output import clock

    code = "" if run["exit_code"] is None else f", exit code {run['exit_code']}"
    state = click.style(run["state"], fg=_STATES.get(run["state"]))
    lines = [
        f"{click.style('Run', bold=True)} {run['task_id']}  {state}{code}",
        f"  {run['command']}",
        f"  {whereabouts(run)}",
        f"  since {clock(run['began_at'])}, {run['seconds']:.0f} s",
    ]
    if run["boost_id"]:
        lines.append(f"  lease {run['boost_id'][:8]}")
    return "\n".join([*lines, *(f"  {text}" for text in run["messages"])])
