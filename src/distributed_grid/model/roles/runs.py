"""The record of a run of roles, as plain data that travels as JSON; and failures of its actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from distributed_grid.model.nodes import NodeName

if TYPE_CHECKING:
    from distributed_grid.wire.roles import MemberOfRun, PendingCommand, RoleOfRun, RunHeader, RunRecord

Record: TypeAlias = "RunRecord"
"""See docs/api.md for its fields."""
Command: TypeAlias = "PendingCommand"
"""{"counts": {role: count}, "down": bool, "at": ISO}"""


class RunState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"
    LOST = "lost"
    """Only readers report this: its owner is gone without having recorded an end, and its actors with it."""


LEGAL: Final[Mapping[RunState, frozenset[RunState]]] = {
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.STOPPING}),
    RunState.RUNNING: frozenset({RunState.DEGRADED, RunState.STOPPING}),
    RunState.DEGRADED: frozenset({RunState.RUNNING, RunState.STOPPING}),
    RunState.STOPPING: frozenset({RunState.ENDED, RunState.FAILED}),
    RunState.ENDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.LOST: frozenset(),
}
"""The states that its owner may give a run, by the present one."""


class RunId(NamedTuple):
    """Identifies one run among all runs that ever had this name."""

    name: str
    worker_id: str
    """Ray's id of the process that owns it."""
    began_at: str


LEAVING = "leaving"
"""A member that is being removed: it takes no new calls, and ends when it has finished its current ones."""
OVER = frozenset({RunState.ENDED, RunState.FAILED, RunState.LOST})


def run_id(record: RunHeader) -> RunId:
    return RunId(str(record["name"]), str(record["owner"]["worker_id"]), str(record["began_at"]))


def is_over(record: RunHeader) -> bool:
    return record["state"] in OVER


def as_seen(record: Record, *, owner_is_dead: bool) -> Record:
    """The record as a reader shows it: a run is lost if its owner died without having recorded an end."""
    if not owner_is_dead or is_over(record):
        return record
    owner = record["owner"]
    why = f"the process that owned it, {owner['pid']} on {owner['node']}, is gone; Ray ended its actors"
    members: list[MemberOfRun] = [{**member, "state": "gone"} for member in record["members"]]
    roles: list[RoleOfRun] = [{**role, "up": 0} for role in record["roles"]]
    return {**record, "state": RunState.LOST, "why": why, "progress": "", "members": members, "roles": roles}


def merged(commands: Sequence[Command]) -> Command | None:
    """All commands as one, given oldest first: for each role the last count wins, and down stays down."""
    if not commands:
        return None
    counts = {role: count for command in commands for role, count in command["counts"].items()}
    return {"counts": counts, "down": any(command["down"] for command in commands), "at": commands[-1]["at"]}


@dataclass(frozen=True, slots=True)
class Failure:
    """One actor that died, or is presumed dead."""

    role: str
    """If the process hosts several roles, any of them."""
    index: int
    restarts: int
    """How often it was restarted before. Restarting a gang restarts each of its members."""
    failures: Mapping[str, int] = field(hash=False)
    """By role: how many of its actors have failed in total, including this one."""
    left: int
    """How many other members of the role are still up; members that failed at the same time do not count."""
    node: NodeName = ""
    what: str = "died"
    """Follows the actor's name; other values are "was silent" and "did not start"."""
    why: str = ""


class Act(StrEnum):
    RESTART = "restart"
    RESTART_GANG = "restart_gang"
    GO_ON = "go_on"
    """The run continues without it."""
    END = "end"
    """The workload has failed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    act: Act
    roles: tuple[str, ...]
    """The affected roles: those that share the failed actor, those of its gang, or all roles."""
    index: int
    """The failed actor's index."""
    reason: str
    """For people: what happened, and why this action follows."""
