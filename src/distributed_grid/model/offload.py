"""Processes that could run on another node, and those that are moving or have moved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from distributed_grid.model.nodes import NodeName


class ProcessKind(StrEnum):
    PYTHON = "python"
    BUILD = "build"
    SHELL = "shell"  # a shell script; an interactive shell is a launcher
    OTHER = "other"
    RAY_DRIVER = "ray driver"
    RAY = "ray"  # Ray itself, and what runs below one of its nodes
    GRID = "grid"
    SERVICE = "service"
    LAUNCHER = "launcher"  # init, a login, an interactive shell: other processes run because of it


class FileRole(StrEnum):
    """How a process uses a file or folder."""

    FOLDER = "its working directory"
    PROGRAM = "its program"
    NAMED = "named by its command"
    READ = "read by it"
    WRITTEN = "written by it"
    INPUT = "its input"
    OUTPUT = "its output"  # its standard output or error: if the file is missing elsewhere, a log replaces it


class StreamKind(StrEnum):
    """The other end of a standard stream."""

    NOTHING = "nothing"
    FILE = "file"
    TERMINAL = "terminal"
    PIPE = "pipe"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True)
class Stream:
    kind: StreamKind = StreamKind.NOTHING
    path: str = ""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file as one node sees it."""

    path: str
    role: FileRole
    size: int
    """0 for a folder."""
    inode: int
    is_network: bool
    """On a file system that other machines may share."""


@dataclass(frozen=True, slots=True)
class FileThere:
    """The file under the same path on another node."""

    is_folder: bool
    size: int
    inode: int
    is_network: bool
    may_write: bool
    may_execute: bool


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The environment that a process would find on another node."""

    node: NodeName
    machine: str
    """Identifies the kernel and the visible file systems: equal values see the same files."""
    user: str
    uid: int
    files: Mapping[str, FileThere] = field(default_factory=dict)
    """The requested files that exist there."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    pid: int
    name: str
    command: tuple[str, ...]
    uid: int


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process with everything that it started, except Ray nodes. Only the names in its environment are known."""

    pid: int
    created_at: float
    """Seconds after its machine's boot: together with the pid, it identifies one process for good."""
    node: NodeName
    machine: str
    name: str
    command: tuple[str, ...]
    cwd: str
    uid: int
    user: str
    worker_uid: int
    """The user as whom Ray runs work on that node; a moved process runs as that user."""
    age_s: float
    cpu: float
    """Cores in use, including its descendants."""
    memory: int
    """Bytes, including its descendants."""
    cpu_wanted: float = 0.0
    """Cores that it would use if none were busy: what it uses, and what it waits for. Zero: unknown."""
    gpus: int = 0
    """Devices that it has open."""
    gpu_memory: int | None = None
    """None if unknown."""
    gpu_utilisation: float | None = None
    state: str = "S"
    """The kernel's state letter: R, S, D, T, Z ..."""
    can_be_started: bool = True
    """Its command line names a program that exists; some processes overwrite theirs."""
    terminal: str | None = None
    streams: tuple[Stream, Stream, Stream] = (Stream(), Stream(), Stream())
    listening: int = 0
    established: int = 0
    files: tuple[FileFacts, ...] = ()
    ancestors: tuple[Ancestor, ...] = ()
    """The nearest first."""
    children: int = 0
    family: tuple[int, ...] = ()
    """The pids of the process and all its descendants."""
    uses_ray: bool = False
    holds_ray: bool = False
    """Ray nodes run below it. They, and what they run, are not counted with it."""
    service: str | None = None
    """The service manager's unit that it belongs to."""
    environment: tuple[str, ...] = ()

    @property
    def has_terminal(self) -> bool:
        return self.terminal is not None

    @property
    def is_child_of_ray(self) -> bool:
        return any(one.name == "raylet" for one in self.ancestors)

    def files_of(self, *roles: FileRole) -> tuple[FileFacts, ...]:
        return tuple(file for file in self.files if file.role in roles)


class ObstacleCode(StrEnum):
    """Why a process cannot move."""

    RAYS_OWN = "RaysOwn"
    RAY_DRIVER = "RayDriver"
    GRIDS_OWN = "GridsOwn"
    SERVICE = "Service"
    LAUNCHER = "Launcher"
    OTHER_USER = "OtherUser"
    PART_OF_ANOTHER = "PartOfAnother"
    NO_COMMAND = "NoCommand"
    NOT_RUNNING = "NotRunning"
    TERMINAL = "Terminal"
    PIPE = "Pipe"
    SOCKETS = "Sockets"
    NO_SUCH_USER = "NoSuchUser"
    FILES_MISSING = "FilesMissing"
    FILES_DIFFER = "FilesDiffer"
    NO_CAPACITY = "NoCapacity"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One obstacle; shown to users as it stands."""

    code: ObstacleCode
    detail: str

    def describe(self) -> str:
        return f"{self.detail} [{self.code}]"


@dataclass(frozen=True, slots=True)
class OffloadingRecommendation:
    """Work that would run better on another node: a running process, a command, or a function."""

    target_node: NodeName
    """The node that the work belongs to."""
    cpu: float
    memory: int
    """Bytes."""
    gpu: float = 0.0
    destination: NodeName | None = None
    """Where it should run; None: wherever there is room."""
    process: ProcessFacts | None = None
    command: tuple[str, ...] | None = None
    function: Any | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    confidence: float = 1.0
    """0..1: how likely it is that the work is better off there."""
    reason: str = ""


class OffloadState(StrEnum):
    MOVING = "moving"  # checked and leased; this controller ends the old process and starts the new one
    INTERRUPTED = "interrupted"  # a move that was cut off, for example by a crash; its runner knows how far it got
    RUNNING = "running"
    CANCELLING = "cancelling"  # a user asked for its end: it is not started any more, or has its grace period
    ENDED = "ended"  # by itself, with an exit code
    CANCELLED = "cancelled"
    FAILED = "failed"  # it never started on the other node
    LOST = "lost"  # its node or its lease is gone, and so is the process

    @property
    def is_over(self) -> bool:
        return not LEGAL[self]

    @property
    def shown(self) -> str:
        """The state as users know it: they need not tell all states apart."""
        return str(_SHOWN_AS.get(self, self))


_SHOWN_AS: Final = {
    OffloadState.INTERRUPTED: OffloadState.MOVING,
    OffloadState.CANCELLING: OffloadState.RUNNING,
}

_OVER: Final = frozenset({OffloadState.ENDED, OffloadState.CANCELLED, OffloadState.FAILED, OffloadState.LOST})
LEGAL: Final[Mapping[OffloadState, frozenset[OffloadState]]] = {
    OffloadState.MOVING: frozenset(
        {OffloadState.RUNNING, OffloadState.INTERRUPTED, OffloadState.CANCELLING, OffloadState.FAILED}
    ),
    OffloadState.INTERRUPTED: _OVER | {OffloadState.RUNNING, OffloadState.CANCELLING},
    OffloadState.RUNNING: _OVER | {OffloadState.RUNNING, OffloadState.CANCELLING},
    OffloadState.CANCELLING: frozenset({OffloadState.CANCELLING, OffloadState.CANCELLED}),
    OffloadState.ENDED: frozenset(),
    OffloadState.CANCELLED: frozenset(),
    OffloadState.FAILED: frozenset(),
    OffloadState.LOST: frozenset(),
}
"""The states that each state can lead to, its own included if it is reported again. A process that is over stays so."""


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Which process to move, and how."""

    pid: int
    node: NodeName | None = None
    """Where the process is; None: the only node that has such a process."""
    created_at: float | None = None
    """As a scan reported it, so that a new process with the same pid is not moved instead."""
    to: NodeName | None = None
    """None: the best destination."""
    keep: bool = False
    """The old process keeps running."""
    grace_s: float = 10.0
    env: tuple[str, ...] = ()
    cpu: float | None = None
    memory: int | None = None
    gpu: float | None = None


@dataclass(frozen=True, slots=True)
class Offloaded:
    """A process that was moved or is being moved. Its id is that of the lease that it runs in."""

    id: str
    label: str
    from_node: NodeName
    from_pid: int
    to_node: NodeName
    requester: str
    kept: bool
    state: OffloadState
    began_at: datetime
    pid: int | None = None
    exit_code: int | None = None
    why: str | None = None
    output: str = ""
    output_from: int = 0
    ended_at: datetime | None = None
    team: str = ""
    by_hand: str = ""
    """The command that starts it again where it was."""

    @property
    def is_over(self) -> bool:
        return self.state.is_over
