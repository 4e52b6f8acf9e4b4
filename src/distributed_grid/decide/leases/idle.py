"""Idle leases: whether the work of a lease uses what the lease holds, and for how long it has not.

Only what is known to be unused counts: without a recent measurement, a lease is in use.

- A reservation is unused while nothing runs in its group, and nothing waits to run there. It is also unused while its
  group is occupied, if no process that occupies it uses CPU time, and no GPU that such a process holds computes.
- A transfer is unused while its target uses no more than its own base, by Ray's count and as measured.
- A lease with a program inside is in use.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.resources import CPU, MEMORY, ResourceVector, describe, scale
from distributed_grid.model.snapshots import NodeSnapshot, Reading

QUIET_CORES: Final = 0.05
"""A process that waits, with the threads that Ray runs in it, takes up to this much CPU time."""
QUIET_GPU: Final = 0.005
"""A device that computes for a smaller part of the time shows 0 %."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process that holds a part of a reservation on one node."""

    pid: int
    gpus: tuple[int, ...] = ()
    """The devices that it holds, by their place among the node's."""


# -- whether a lease is in use at a moment -----------------------------------------------------------------------


def why_never_idle(lease: Lease, now: datetime) -> str | None:
    """Why a lease counts as in use, whatever its nodes show; None if it depends on them."""
    if lease.state is not LeaseState.ACTIVE:
        return f"it is {lease.state.shown}"
    if lease.notice is not None and not lease.is_reclaimed_as_idle:
        return "it is being reclaimed"
    if lease.is_inhabited(now):
        return "a program is inside"
    return None


def why_occupied(occupants: Collection[Occupant], before: Collection[Occupant], snapshot: NodeSnapshot | None) -> str:
    """Why the part of a reservation that is occupied on one node counts as in use; empty if it is unused.

    `occupants`: at the node's last reading. `before`: at the reading before that, since the last reading covers the
    time from then on. All that is not known to be quiet is in use.
    """
    reading = _recent(snapshot)
    if reading is None:
        return "its node has no recent measurement"
    if not occupants:
        return "a process that is not known holds a part of it"
    quiet = {worker.pid for worker in reading.workers if worker.cpu_used < QUIET_CORES}
    for occupant in occupants:
        if occupant not in before:
            return f"process {occupant.pid} began there"
        if occupant.pid not in quiet:
            return f"process {occupant.pid} is busy"
        if busy := [index for index in occupant.gpus if not _is_quiet(reading, index)]:
            return f"GPU {busy[0]} is busy"
    return ""


def _is_quiet(reading: Reading, index: int) -> bool:
    used = reading.gpus[index].utilisation if 0 <= index < len(reading.gpus) else None
    return used is not None and used < QUIET_GPU


def why_borrowed(lease: Lease, used: ResourceVector | None, base: ResourceVector, snapshot: NodeSnapshot | None) -> str:
    """Why a transfer counts as in use; empty if its target uses no more than its own `base`.

    `used`: what Ray counts on the target; None if it does not say.
    """
    reading, kind = _recent(snapshot), lease.kind
    if used is None or reading is None:
        return "its target has no recent measurement"
    if used[kind] > base[kind]:
        return f"{lease.target} has given out {describe(kind, used[kind])}, more than its own {_amount(kind, base)}"
    measured = {CPU: reading.own.cpu_used * scale(CPU), MEMORY: float(reading.own.memory_used)}.get(kind, 0.0)
    if measured > base[kind]:
        return f"{lease.target} uses {describe(kind, round(measured))}, more than its own {_amount(kind, base)}"
    return ""


def _amount(kind: str, base: ResourceVector) -> str:
    return describe(kind, base[kind])


def why_unmeasured(snapshot: NodeSnapshot | None) -> str:
    """Why the use of a node is not known; empty if it has a recent measurement."""
    return "its node has no recent measurement" if _recent(snapshot) is None else ""


def _recent(snapshot: NodeSnapshot | None) -> Reading | None:
    return None if snapshot is None or snapshot.stale else snapshot.measured


# -- for how long ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unused:
    """The time in which every sample of a lease has shown no use."""

    since: datetime
    until: datetime
    """The last sample."""


def sampled(before: Unused | None, is_unused: bool, at: datetime, longest_gap: timedelta) -> Unused | None:
    """With one more sample. A sample that shows use, a gap, or a clock that was set back, ends the time."""
    if not is_unused:
        return None
    if before is None or not timedelta(0) <= at - before.until <= longest_gap:
        return Unused(at, at)
    return replace(before, until=at)


def is_idle(unused: Unused | None, idle_after: timedelta) -> bool:
    """Whether a lease is idle: no sample has shown use for so long."""
    return unused is not None and unused.until - unused.since >= idle_after


# -- what is done with it ----------------------------------------------------------------------------------------


def is_due(lease: Lease, unused: Unused | None, idle_after: timedelta) -> bool:
    """Whether an idle lease whose notice is over is taken: a sample from after the deadline still shows no use."""
    if lease.notice is None or unused is None or not is_idle(unused, idle_after):
        return False
    return lease.is_reclaimed_as_idle and unused.until >= lease.notice.deadline
