"""Processes that move, or have moved, to another node."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from distributed_grid.model.nodes import NodeName


class OffloadState(StrEnum):
    MOVING = "moving"  # checked and leased; the old process ends, the new one has not begun
    RUNNING = "running"
    ENDED = "ended"  # by itself, with an exit code
    CANCELLED = "cancelled"
    FAILED = "failed"  # it was never started on the other node
    LOST = "lost"  # its node or its lease is gone, and so is it

    @property
    def is_over(self) -> bool:
        return self not in (OffloadState.MOVING, OffloadState.RUNNING)


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Which process is to move, and how."""

    pid: int
    node: NodeName | None = None
    """Where it is; None: the only node that has such a process."""
    created_at: float | None = None
    """As a scan told it: another process that has the same id by now is not meant."""
    to: NodeName | None = None
    """None: the best that there is."""
    keep: bool = False
    """The old one goes on."""
    grace_s: float = 10.0
    env: tuple[str, ...] = ()
    cpu: float | None = None
    memory: int | None = None
    gpu: float | None = None


@dataclass(frozen=True, slots=True)
class Offloaded:
    """A process that was moved, or is being. Its id is that of the lease that it runs in."""

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
