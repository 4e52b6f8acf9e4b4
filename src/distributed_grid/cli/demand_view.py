"""What waits in Ray's queues, for people: how many, of what, since when and why."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from distributed_grid.cli.canvas import Canvas
from distributed_grid.cli.tables import bold
from distributed_grid.model.since import span

_MOST: Final = 8


def demand_lines(demand: Sequence[Mapping[str, Any]], canvas: Canvas, *, what: str = "Waiting") -> list[str]:
    """A headline, then what does not fit, then the rest; who waits longest first."""
    if not demand:
        return [f"{bold(f'{what}:')} nothing"]
    ordered = sorted(demand, key=lambda one: (one["reason"] != "infeasible", -one["waited_seconds"]))
    lines = [f"{bold(f'{what}:')} {waiting_in_short(demand)}"]
    lines += [line for one in ordered[:_MOST] for line in _entry(one, canvas)]
    if len(ordered) > _MOST:
        rest = sum(one["count"] for one in ordered[_MOST:])
        lines.append(click.style(f"  {rest} more of {len(ordered) - _MOST} other shapes: see --json", dim=True))
    return lines


def waiting_in_short(demand: Sequence[Mapping[str, Any]]) -> str:
    """ "5 requests, 3 do not fit"; "nothing"."""
    count = sum(one["count"] for one in demand)
    never = sum(one["count"] for one in demand if one["reason"] == "infeasible")
    told = f"{count} request{'s' * (count != 1)}" if count else "nothing"
    return f"{told}, {never} {'does' if never == 1 else 'do'} not fit" if never else told


def _entry(one: Mapping[str, Any], canvas: Canvas) -> list[str]:
    never = one["reason"] == "infeasible"
    why = f"{'does not fit' if never else 'waits for room'}: {one['detail']}"
    text = f"{one['count']} x {one['shape']}, for {span(one['waited_seconds'])}: {why}"
    return [
        click.style(line, fg="red") if never else line for line in canvas.wrapped(text, indent="      ", first="  ")
    ]
