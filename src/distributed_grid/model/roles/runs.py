"""What is known of a run of roles, as plain data that travels as JSON; and failures of its actors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from distributed_grid.model.nodes import NodeName

Record = Mapping[str, Any]
"""See docs/api.md for what is in it."""
Wish = dict[str, Any]
"""{"counts": {role: count}, "down": bool, "at": ISO}"""


class RunState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"
    LOST = "lost"
    """Only readers say this: its owner is gone without a word, and its actors with it."""


class RunId(NamedTuple):
    """Which of all runs that ever had this name."""

    name: str
    worker_id: str
    """Of the process that owns it, as Ray has it."""
    began_at: str


LEAVING = "leaving"
"""Of a member: it is to go, takes no new calls, and ends when it is through with those that it has."""
OVER = frozenset({RunState.ENDED, RunState.FAILED, RunState.LOST})


def run_id(record: Record) -> RunId:
    return RunId(str(record["name"]), str(record["owner"]["worker_id"]), str(record["began_at"]))


def is_over(record: Record) -> bool:
    return record["state"] in OVER


def as_seen(record: Record, *, owner_is_dead: bool) -> Record:
    """The record as a reader shows it: a run whose owner died without a word is lost."""
    if not owner_is_dead or is_over(record):
        return record
    owner = record["owner"]
    why = f"the process that kept it, {owner['pid']} on {owner['node']}, is gone; Ray ended its actors"
    members = [{**member, "state": "gone"} for member in record["members"]]
    roles = [{**role, "up": 0} for role in record["roles"]]
    return {**record, "state": RunState.LOST, "why": why, "progress": "", "members": members, "roles": roles}


def merged(wishes: Sequence[Wish]) -> Wish | None:
    """All wishes as one, the oldest first: the last count for a role holds, and down stays down."""
    if not wishes:
        return None
    counts = {role: count for wish in wishes for role, count in wish["counts"].items()}
    return {"counts": counts, "down": any(wish["down"] for wish in wishes), "at": wishes[-1]["at"]}


@dataclass(frozen=True, slots=True)
class Failure:
    """One actor that died, or is taken for dead."""

    role: str
    """Of a process that hosts several roles, any of them."""
    index: int
    restarts: int
    """How often it was started anew before. What restarts a gang restarts each of its members."""
    failures: Mapping[str, int] = field(hash=False)
    """By role: how many of its actors failed in all, this one counted in."""
    left: int
    """How many others of the role are there still; of those that failed together, none is."""
    node: NodeName = ""
    what: str = "died"
    """Or "was silent", "did not start": what follows its name."""
    why: str = ""


class Act(StrEnum):
    RESTART = "restart"
    RESTART_GANG = "restart_gang"
    GO_ON = "go_on"
    """Without it."""
    END = "end"
    """The workload has failed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    act: Act
    roles: tuple[str, ...]
    """Whose members it is about: those that share the failed actor; of a gang, all members of these; or all roles."""
    index: int
    """Of the actor that failed."""
    reason: str
    """For people: what happened, and why this is done about it."""
