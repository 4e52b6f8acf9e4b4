"""An actor of a run that failed, and what is to be done about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from distributed_grid.model.nodes import NodeName


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
