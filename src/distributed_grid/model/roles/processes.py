"""The processes of a run as frozen data: their states and legal changes, the events, and the instructions.

`decide/roles/processes.py` turns events into new states and instructions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from distributed_grid.model.nodes import NodeId, NodeName
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.roles.plan import Holding, Unit, UnitKind
from distributed_grid.model.roles.runs import LEAVING


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One planned process: its roles, and what it needs on which node."""

    run: str
    roles: tuple[str, ...]
    index: int
    node: NodeName
    needs: ResourceVector

    @property
    def name(self) -> str:
        """The name of its actor."""
        return f"{self.run}/{'+'.join(self.roles)}/{self.index}"

    @property
    def title(self) -> str:
        """For people: "worker 3"."""
        return f"{'+'.join(self.roles)} {self.index}"


def specs_of(run: str, unit: Unit) -> Iterator[ProcessSpec]:
    if unit.kind is not UnitKind.BUNDLE:
        yield ProcessSpec(run, tuple(m.role for m in unit.members), unit.index, unit.node, unit.resources)
        return
    for member in unit.members:
        yield ProcessSpec(run, (member.role,), member.index, unit.node, member.resources)


@dataclass(frozen=True, slots=True)
class Held:
    """A holding that is held."""

    holding: Holding
    node_id: NodeId
    group: str | None
    """The placement group with its one bundle. None: its units need nothing that could be held."""
    boost_id: str | None = None


class ProcessState(StrEnum):
    PENDING = "pending"
    """It has no actor: it is about to start, or waits for its restart."""
    STARTING = "starting"
    BROKEN = "broken"
    """It has an actor, which failed to come up; the run has not decided yet what follows."""
    UP = "up"
    LEAVING = LEAVING
    ENDED = "gone"


LEGAL: Final[Mapping[ProcessState, frozenset[ProcessState]]] = {
    ProcessState.PENDING: frozenset({ProcessState.STARTING, ProcessState.ENDED}),
    ProcessState.STARTING: frozenset({ProcessState.UP, ProcessState.BROKEN, ProcessState.PENDING, ProcessState.ENDED}),
    ProcessState.BROKEN: frozenset({ProcessState.PENDING, ProcessState.ENDED}),
    ProcessState.UP: frozenset({ProcessState.LEAVING, ProcessState.PENDING, ProcessState.ENDED}),
    ProcessState.LEAVING: frozenset({ProcessState.UP, ProcessState.ENDED}),  # UP: wanted again before it ended
    ProcessState.ENDED: frozenset(),
}
WITH_ACTOR: Final = frozenset({ProcessState.STARTING, ProcessState.BROKEN, ProcessState.UP, ProcessState.LEAVING})
"""The states in which an actor exists. Each way into them starts one, and each way out stops it."""


@dataclass(frozen=True, slots=True)
class Load:
    """Calls that run and wait in a process, as counted at some time."""

    running: int = 0
    queue: int = 0
    counted_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process of a run, across all of its lives."""

    spec: ProcessSpec
    unit: Unit
    held: Held
    state: ProcessState = ProcessState.PENDING
    started_at: float = 0.0
    """When its current or last life began."""
    restarts: int = 0
    not_before: float = 0.0
    """When its pending restart may begin."""
    gang: frozenset[str] | None = None
    """The processes that restarted together with it. None is called before all of them are up."""
    pid: int | None = None
    gpus: tuple[int | str, ...] = ()
    routed: bool = False
    """Callers are routed to it, in this life."""
    was_up: bool = False
    """In this life or an earlier one."""
    silent: bool = False
    """It does not answer, though it has not ended."""
    pinged_at: float = 0.0
    ping_due: float = 0.0
    load: Load = field(default_factory=Load)
    leaving_since: float | None = None
    """Since then it takes no new calls, and it ends when it has finished the calls it has."""
    finish_s: float = 0.0
    """How long it may take for them."""
    why: str = ""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_leaving(self) -> bool:
        return self.state is ProcessState.LEAVING

    @property
    def is_starting(self) -> bool:
        """It has an actor, and steps before it is up."""
        return self.state is ProcessState.STARTING

    @property
    def has_actor(self) -> bool:
        return self.state in WITH_ACTOR

    @property
    def is_alive(self) -> bool:
        """It has been up in this life, and has not ended."""
        return self.state in (ProcessState.UP, ProcessState.LEAVING)

    @property
    def life(self) -> int:
        """The number of its current life; -1 between two lives, when its name is not in use."""
        return self.restarts if self.has_actor else -1

    @property
    def shown(self) -> str:
        """Its state as records show it."""
        if self.state in (ProcessState.PENDING, ProcessState.STARTING, ProcessState.BROKEN):
            return "restarting" if self.restarts else "starting"
        return "silent" if self.silent and self.state is ProcessState.UP else str(self.state)


# -- events ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartAsked:
    """It has a place, and shall start there."""


@dataclass(frozen=True, slots=True)
class StartFailed:
    """Ray did not accept the actor. This is no restart."""

    why: str


@dataclass(frozen=True, slots=True)
class Constructed:
    """Its constructors have returned."""

    pid: int
    gpus: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """It also knows its peers."""


@dataclass(frozen=True, slots=True)
class Broke:
    """One of the steps before it is up has failed."""


@dataclass(frozen=True, slots=True)
class MatesReady:
    """It may be called: all processes that restarted with it are up."""


@dataclass(frozen=True, slots=True)
class PingSent:
    next_s: float
    """The next ping is due after this time."""


@dataclass(frozen=True, slots=True)
class Answered: ...


@dataclass(frozen=True, slots=True)
class Unanswered: ...


@dataclass(frozen=True, slots=True)
class CallFailed:
    """A call found that its actor is gone."""


@dataclass(frozen=True, slots=True)
class CallsCounted:
    load: Load


@dataclass(frozen=True, slots=True)
class RestartDecided:
    """It failed, or one of its gang did, and its policy allows a restart."""

    gang: frozenset[str] | None
    not_before: float
    why: str


@dataclass(frozen=True, slots=True)
class PlaceMissing:
    """Its restart waits for another place."""

    why: str


@dataclass(frozen=True, slots=True)
class Moved:
    unit: Unit
    held: Held


@dataclass(frozen=True, slots=True)
class LeaveAsked:
    why: str
    finish_s: float


@dataclass(frozen=True, slots=True)
class Recalled:
    """It is wanted again."""


@dataclass(frozen=True, slots=True)
class EndAsked:
    """It has finished its calls, has failed for good, or its run ends."""

    why: str


Event = (
    StartAsked
    | StartFailed
    | Constructed
    | Ready
    | Broke
    | MatesReady
    | PingSent
    | Answered
    | Unanswered
    | CallFailed
    | CallsCounted
    | RestartDecided
    | PlaceMissing
    | Moved
    | LeaveAsked
    | Recalled
    | EndAsked
)

_PENDING, _STARTING, _BROKEN = ProcessState.PENDING, ProcessState.STARTING, ProcessState.BROKEN
_UP, _LEAVING = ProcessState.UP, ProcessState.LEAVING
EXPECTED: Final[Mapping[type[Event], frozenset[ProcessState]]] = {
    StartAsked: frozenset({_PENDING}),
    StartFailed: frozenset({_PENDING, _STARTING, _BROKEN}),
    Constructed: frozenset({_STARTING}),
    Ready: frozenset({_STARTING}),
    Broke: frozenset({_STARTING}),
    MatesReady: frozenset({_UP}),
    PingSent: frozenset({_UP, _LEAVING}),
    Answered: frozenset({_UP, _LEAVING}),
    Unanswered: frozenset({_UP, _LEAVING}),
    CallFailed: frozenset({_UP, _LEAVING}),
    CallsCounted: frozenset({_UP, _LEAVING}),
    RestartDecided: frozenset({_PENDING, _STARTING, _BROKEN, _UP}),
    PlaceMissing: frozenset({_PENDING}),
    Moved: frozenset({_PENDING}),
    LeaveAsked: frozenset({_PENDING, _STARTING, _BROKEN, _UP}),
    Recalled: frozenset({_LEAVING}),
    EndAsked: frozenset({_PENDING, _STARTING, _BROKEN, _UP, _LEAVING}),
}
"""The states in which an event means something. In all others it comes too late, and changes nothing."""


# -- instructions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartActor: ...


@dataclass(frozen=True, slots=True)
class StopActor:
    stuck_pid: int | None
    """The operating system's process, if it does not react and must be ended on its node as well."""


@dataclass(frozen=True, slots=True)
class OpenEndpoints:
    """New endpoints, in place of retired ones."""


@dataclass(frozen=True, slots=True)
class ConnectEndpoints:
    """Route callers to it."""


@dataclass(frozen=True, slots=True)
class DisconnectEndpoints:
    """Callers wait for its next life."""

    why: str


@dataclass(frozen=True, slots=True)
class RetireEndpoints:
    """Callers get an error, and it is no longer listed."""

    why: str


@dataclass(frozen=True, slots=True)
class RelocateEndpoints:
    node: NodeName


Instruction = (
    StartActor
    | StopActor
    | OpenEndpoints
    | ConnectEndpoints
    | DisconnectEndpoints
    | RetireEndpoints
    | RelocateEndpoints
)
