"""Runs of roles as text: a list, or one run with its roles, members and last events.

Members that are alike share a row.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from distributed_grid.cli.columns import Canvas, Column, Form, fit, fitted_table
from distributed_grid.cli.output import clock, distance, listed
from distributed_grid.cli.tables import bold

if TYPE_CHECKING:
    from distributed_grid.wire.roles import MemberOfRun, PendingCommand, RoleOfRun, RoleRun, RoleRunList, RunHeader

_EACH: Final = 20
"""Up to this many members each have their own row."""
_ROWS: Final = 40
"""More rows than this are folded further."""
_NAMED: Final = 2
"""More nodes than this are only counted."""

Member: TypeAlias = "MemberOfRun"


@dataclass(frozen=True, slots=True)
class Row:
    """Members of one role that are alike."""

    members: tuple[Member, ...]

    @property
    def role(self) -> str:
        return str(self.members[0]["role"])

    @property
    def ranks(self) -> str:
        return ranks([member["rank"] for member in self.members])

    @property
    def nodes(self) -> str:
        names = list(dict.fromkeys(member["node"] or "-" for member in self.members))
        return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} nodes"

    @property
    def gpus(self) -> str:
        """The GPU numbers if all are on one node, else their count. Parts of one GPU count once."""
        found = list(dict.fromkeys((member["node"], gpu) for member in self.members for gpu in member["gpus"]))
        if not found:
            return "-"
        if len({node for node, _ in found}) == 1:
            return ", ".join(str(gpu) for _, gpu in found)
        return f"{len(found)} in all"

    @property
    def state(self) -> str:
        return str(self.members[0]["state"])

    @property
    def restarts(self) -> int:
        return sum(member["restarts"] for member in self.members)

    @property
    def running(self) -> int:
        return sum(member["running"] for member in self.members)

    @property
    def queue(self) -> int:
        return sum(member["queue"] for member in self.members)


def folded(members: Sequence[Member], *, each: bool = False) -> list[Row]:
    """A row for each member if there are few or `each` is set; otherwise members of a role that are alike share one."""
    if each or len(members) <= _EACH:
        return [Row((member,)) for member in members]
    rows = _together(members, lambda member: (member["role"], member["node"], member["state"]))
    if len(rows) > _ROWS:
        rows = _together(members, lambda member: (member["role"], member["state"]))
    return rows


def _together(members: Iterable[Member], key: Callable[[Member], Hashable]) -> list[Row]:
    found: dict[Hashable, list[Member]] = {}
    for member in members:
        found.setdefault(key(member), []).append(member)
    place: dict[str, int] = {}
    rows = [Row(tuple(alike)) for alike in found.values()]
    for row in rows:
        place.setdefault(row.role, len(place))
    return sorted(rows, key=lambda row: (place[row.role], row.members[0]["rank"]))


def ranks(numbers: Iterable[int]) -> str:
    """ "0-3, 5"."""
    runs = [
        [number for _, number in run] for _, run in groupby(enumerate(sorted(numbers)), lambda one: one[1] - one[0])
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


STATES: Final = {
    "starting": "yellow",
    "running": "green",
    "up": "green",
    "degraded": "yellow",
    "silent": "yellow",
    "restarting": "yellow",
    "stopping": "yellow",
    "failed": "red",
    "lost": "red",
    "gone": "red",
}
_EVENTS: Final = 5
_RANKS: Final = 24
_WHYS: Final = 10


def runs_view(found: RoleRunList, canvas: Canvas) -> str:
    """A line for each run."""
    runs = found["runs"]
    if not runs:
        return "No runs of roles.\nTo start one:  grid roles up FILE"
    ago = [distance(run["began_at"]) for run in runs]
    since = [f"{clock(run['began_at'])} ({far})" for run, far in zip(runs, ago, strict=True)]
    fitted = fit(
        {
            "name": Column.of("Name", [run["name"] for run in runs]),
            "state": Column.of("State", [run["state"] for run in runs]),
            "up": Column.of("Up", [f"{run['up']} of {run['wanted']}" for run in runs], right=True),
            "workload": Column.of("Workload", [run["workload"] for run in runs]),
            "owner": Column.of("Owner", [_owner(run) for run in runs]),
            "began": Column.of("Began", since, Form("Began", ago)),
        },
        ("began", "workload", "owner", "began"),
        canvas,
    )
    reasons = [(run["name"], run["why"] or run["progress"]) for run in runs]
    notes = [line for name, text in reasons if text for line in canvas.wrapped(f"{name}: {text}", "  ", first="")]
    return "\n".join([fitted_table(fitted, STATES), *(["", *notes] if notes else [])])


def run_view(run: RoleRun, canvas: Canvas, *, each: bool = False) -> str:
    """One run. `each`: every member has its own row, however many there are."""
    up, wanted = (sum(role[key] for role in run["roles"]) for key in ("up", "wanted"))
    head = [
        f"{bold(run['name'])}  {click.style(run['state'], fg=STATES.get(run['state']))}",
        f"{up} of {wanted} members up",
        *([f"workload {run['workload']}"] if run["workload"] != run["name"] else []),
        f"since {clock(run['began_at'])} ({distance(run['began_at'])})",
        f"owned by {_owner(run)}",
    ]
    lines = canvas.flow(head)
    for text in (run["why"], run["progress"], _pending_command(run.get("pending_command"))):
        lines += canvas.wrapped(text, "  ") if text else []
    if run["roles"]:
        lines += ["", _roles_table(run["roles"], canvas)]
    if run["members"]:
        rows = folded(run["members"], each=each)
        lines += ["", _members_table(rows, canvas)]
        if len(rows) < len(run["members"]):
            lines.append(click.style("Equal members share a line, with their sums; to see each: --all", dim=True))
        lines += _whys(run["members"], canvas)
    if run["events"]:
        lines += ["", bold("Last:")]
        for event in run["events"][-_EVENTS:]:
            lines += canvas.wrapped(event["message"], "    ", first=f"  {clock(event['at'])}  ")
    return "\n".join(lines)


def _owner(run: RunHeader) -> str:
    return f"process {run['owner']['pid']} on {run['owner']['node']}"


def _pending_command(command: PendingCommand | None) -> str:
    if command is None:
        return ""
    counts = [f"scale {role} to {count}" for role, count in command["counts"].items()]
    return f"requested, but not yet read by the run: {', '.join(['shut down'] if command['down'] else counts)}"


def _roles_table(roles: Sequence[RoleOfRun], canvas: Canvas) -> str:
    def span(role: RoleOfRun) -> str:
        least, most = role["asked"]
        return str(least) if least == most else f"{least} to {most}"

    def failures(role: RoleOfRun) -> str:
        budget = role["failure_budget"]
        return str(role["failures"]) if budget is None else f"{role['failures']} of {budget}"

    found = {
        "role": Column.of("Role", [role["role"] for role in roles]),
        "up": Column.of("Up", [f"{role['up']} of {role['wanted']}" for role in roles], right=True),
        "asked": Column.of("Requested", [span(role) for role in roles], right=True),
        "failures": Column.of("Failures", [failures(role) for role in roles], right=True),
        "each": Column.of("Per actor", [listed(role["needs"]) for role in roles], optional=True),
        "pool": Column.of("Pool", [role["pool"] or "-" for role in roles], optional=True),
        "together": Column.of("Colocated", [role["colocation_group"] or "-" for role in roles], optional=True),
        "scaling": Column.of("Scales by", [role["scaling"] or "-" for role in roles], optional=True),
    }
    return fitted_table(fit(found, ("together", "pool", "each", "scaling", "failures"), canvas))


def _members_table(rows: Sequence[Row], canvas: Canvas) -> str:
    ranks = [row.ranks for row in rows]
    found = {
        "role": Column.of("Role", [row.role for row in rows]),
        "rank": Column.of(
            "Rank",
            ranks,
            Form("Rank", [canvas.cut(text, _RANKS) for text in ranks]),
            Form("Rank", [canvas.cut(text, _RANKS // 2) for text in ranks]),
            right=all(len(row.members) == 1 for row in rows),
        ),
        "node": Column.of("Node", [row.nodes for row in rows]),
        "gpus": Column.of("GPUs", [row.gpus for row in rows]),
        "state": Column.of("State", [row.state for row in rows]),
        "restarts": Column.of("Restarts", [str(row.restarts) for row in rows], right=True),
        "running": Column.of("Running", [str(row.running) for row in rows], right=True),
        "queue": Column.of("Queue", [str(row.queue) for row in rows], right=True),
    }
    return fitted_table(fit(found, ("rank", "running", "rank"), canvas), STATES)


def _whys(members: Sequence[MemberOfRun], canvas: Canvas) -> list[str]:
    """Why some members are away. Only the first reasons, since members often share one."""
    reasons = [f"{member['role']} {member['rank']}: {member['why']}" for member in members if member["why"]]
    lines = [line for text in reasons[:_WHYS] for line in canvas.wrapped(text, "  ", first="")]
    if len(reasons) > _WHYS:
        lines.append(f"and {len(reasons) - _WHYS} more: see --json")
    return ["", *(click.style(line, fg="yellow") for line in lines)] if lines else []
