"""The processes of a run as its keeper has them: how each is, and how one failed."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from distributed_grid.model.roles.plan import Unit
from distributed_grid.roles.calls.roster import Seat
from distributed_grid.roles.keeping.hosting import Process
from distributed_grid.roles.keeping.places import Held


class PostState(StrEnum):
    STARTING = "starting"
    UP = "up"
    SILENT = "silent"
    """It does not answer, though it has not ended."""
    RESTARTING = "restarting"
    GONE = "gone"


LIVES: Final = (PostState.UP, PostState.SILENT)


@dataclass(slots=True, eq=False)
class Post:
    """One process of a run, over all of its lives."""

    process: Process
    unit: Unit
    held: Held
    seats: tuple[Seat, ...]
    handle: Any = None
    steps: list[Any] = field(default_factory=list)
    """References to what it has to do before it is up: its constructors, then meeting the others."""
    state: PostState = PostState.STARTING
    since: float = 0.0
    """When it was last started."""
    restarts: int = 0
    pid: int | None = None
    gpus: tuple[Any, ...] = ()
    ping: Any = None
    pinged_at: float = 0.0
    queue: int = 0
    running: int = 0
    why: str = ""
    gang: frozenset[str] | None = None
    """Those who started anew together with it: nobody is called before all of them are up."""
    seated: bool = False
    """Callers are led to it, in this life."""
    was_up: bool = False
    """In this life or before."""
    leaving_since: float | None = None
    """It takes no new calls since then, and ends when it is through with those that it has."""
    finish_s: float = 0.0
    """So long it may take for them."""
    counted_at: float = 0.0
    """When its calls were counted: those that run, and those that wait."""

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def key(self) -> tuple[str, ...]:
        return self.process.roles

    @property
    def life(self) -> int:
        """Which one it is in; -1: between two, when nobody has its name."""
        return self.restarts if self.handle is not None else -1

    @property
    def who(self) -> str:
        """For people: "worker 3"."""
        return f"{'+'.join(self.key)} {self.process.index}"


@dataclass(frozen=True, slots=True)
class Fault:
    """How a process failed: in a constructor, with its traceback, or as a whole."""

    post: Post
    why: str
    role: str = ""
    remote_traceback: str = ""
    what: str = "died"
    """What follows its name."""
