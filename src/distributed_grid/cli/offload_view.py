"""Processes that could move, and those that did, for people."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

from distributed_grid.cli.amounts import labelled
from distributed_grid.cli.canvas import Canvas
from distributed_grid.cli.columns import Column, Form, fit, fitted_table
from distributed_grid.cli.moments import distance
from distributed_grid.cli.tables import bold
from distributed_grid.model.since import span

STATES = {"running": "green", "moving": "yellow", "lost": "red", "failed": "red"}
_COMMAND = 60
_STARVED = 0.25
_INDENT = "      "


def candidates_view(found: Mapping[str, Any], canvas: Canvas, *, with_others: bool = False) -> str:
    """A line for each, what speaks for and against it, and what to type."""
    could, others = found["candidates"], found["others"]
    lines: list[str] = []
    if could:
        lines += [_process_table(could, canvas, movable=True), "", *_reasons(could, canvas)]
        first = could[0]
        lines += ["", f"To move one:  grid offload execute {first['pid']} --from {first['node']} --to auto"]
    else:
        lines.append("No heavy process could run elsewhere.")
    if with_others and others:
        lines += ["", bold("These cannot move:"), _process_table(others, canvas, movable=False), ""]
        lines += _obstacles(others, canvas)
    elif others:
        lines.append(f"{len(others)} more cannot move; to see why:  grid offload scan --all")
    return "\n".join(lines)


def _cores(one: Mapping[str, Any]) -> str:
    """ "0.9"; "0.2 of 1.0" for one that gets less than it would use."""
    used, wanted = one["cpu"], one["cpu_wanted"]
    return f"{used:.1f} of {wanted:.1f}" if wanted - used >= _STARVED else f"{used:.1f}"


def _process_table(processes: Sequence[Mapping[str, Any]], canvas: Canvas, *, movable: bool) -> str:
    commands = [shlex.join(one["command"]) for one in processes]
    short = [canvas.cut(text, _COMMAND) for text in commands]
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
                "to": Column.of("Could go to", [one["destination"] for one in processes]),
                "sure": Column.of("Sure", [f"{one['confidence']:.0%}" for one in processes], right=True),
            }
            if movable
            else {}
        ),
        "command": Column.of("Command", short, Form("Command", [canvas.cut(text, 24) for text in commands])),
    }
    return fitted_table(fit(shown, ("command", "command", "age", "kind"), canvas))


def _reasons(processes: Sequence[Mapping[str, Any]], canvas: Canvas) -> list[str]:
    return [line for one in processes for line in canvas.wrapped(f"{one['pid']}: {one['reason']}", _INDENT, first="")]


def _obstacles(processes: Sequence[Mapping[str, Any]], canvas: Canvas) -> list[str]:
    return [
        click.style(line, fg="yellow")
        for one in processes
        for obstacle in one["obstacles"]
        for line in canvas.wrapped(f"{one['pid']}: {obstacle['detail']} [{obstacle['code']}]", _INDENT, first="")
    ]


def plan_view(plan: Mapping[str, Any]) -> str:
    """What will be done, in the order in which it is done."""
    needs = ", ".join(labelled(kind, amount) for kind, amount in plan["needs"].items() if amount)
    environment = plan["environment"]
    end = (
        "goes on there as well (--keep)"
        if plan["keep"]
        else f"is asked to end, and killed after {plan['grace_seconds']:g} s"
    )
    lines = [
        f"Process {plan['pid']} on {plan['node']}: {shlex.join(plan['command'])}",
        f"  {plan['destination']} reserves {needs} for it",
        f"  it {end}",
        f"  the same command starts on {plan['destination']}, in {plan['cwd']}",
        f"  its output goes on in {plan['output']}"
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


def moved_view(one: Mapping[str, Any]) -> str:
    short = one["offload_id"][:8]
    state = click.style(one["state"], fg=STATES.get(one["state"]))
    return "\n".join(
        [
            f"{bold('Offloaded')} {one['offload_id']}  {state}",
            f"  process {one['from_pid']} of {one['from_node']} is process {one['pid']} of {one['to_node']} now",
            f"To see what it writes:  grid offload log {short} --follow",
            f"To end it:  grid offload cancel {short}",
        ]
    )


def offloads_view(found: Mapping[str, Any], canvas: Canvas) -> str:
    offloads = found["offloads"]
    if not offloads:
        return "No process was moved.\nTo see which could:  grid offload scan"
    commands = [canvas.cut(one["label"], _COMMAND) for one in offloads]

    def of(key: str) -> list[str]:
        return ["-" if one[key] is None else str(one[key]) for one in offloads]

    fitted = fit(
        {
            "id": Column.of("ID", [one["offload_id"][:8] for one in offloads]),
            "state": Column.of("State", of("state")),
            "exit": Column.of("Exit", of("exit_code"), right=True),
            "from": Column.of("From", [f"{one['from_node']}:{one['from_pid']}" for one in offloads]),
            "to": Column.of("To", [f"{one['to_node']}:{one['pid'] or '-'}" for one in offloads]),
            "who": Column.of("Who", of("requester")),
            "began": Column.of("Began", [distance(one["began_at"]) for one in offloads]),
            "command": Column.of("Command", commands, Form("Command", [canvas.cut(text, 24) for text in commands])),
        },
        ("command", "who", "command", "began"),
        canvas,
    )
    notes = [f"{one['offload_id'][:8]}: {one['why']}" for one in offloads if one["why"]]
    shown = [line for note in notes for line in canvas.wrapped(note, _INDENT, first="")]
    return "\n".join([fitted_table(fitted, STATES), *(["", *shown] if shown else [])])


def ended_view(one: Mapping[str, Any]) -> str:
    code = "" if one["exit_code"] is None else f" with exit code {one['exit_code']}"
    if one["state"] in ("running", "moving"):
        return f"Offloaded process {one['offload_id'][:8]} is asked to end on {one['to_node']}"
    return f"Offloaded process {one['offload_id'][:8]}: {one['state']} on {one['to_node']}{code}"
