"""Idle leases: whether the work of a lease uses what the lease holds, and for how long it has not.

Only what is known to be unused counts: without a recent measurement, a lease is in use.

- A reservation is unused while nothing runs in its group, and nothing waits to run there. It is also unused while its
  group is occupied, if no process that occupies it uses CPU time, and no GPU that such a process holds computes.
- A transfer is unused while its target uses no more than its own base, by Ray's count and as measured.
- A program inside is unused while it reports that its processes take no CPU time. The reservation around it must be
  unused as well, and every GPU of its lenders that may compute for the program without Ray.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.model.leases import Lease, LeaseState, Purpose
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, describe, scale
from distributed_grid.model.snapshots import NodeSnapshot, Reading
from distributed_grid.model.validators import NEVER_S

QUIET_CORES: Final = 0.05
"""A process that waits, with the threads that Ray runs in it, takes up to this much CPU time."""
QUIET_GPU: Final = 0.005
"""A device that computes for a smaller part of the time shows 0 %."""
_LEAST_WINDOW_S: Final = 2.0
_LEAST_GAP_S: Final = 5.0
_GAP: Final = 2.5
"""After so many intervals of measuring without a sample, a lease counts as in use."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A process that holds a part of a reservation on one node."""

    pid: int
    gpus: tuple[int, ...] = ()
    """The devices that it holds, by their place among the node's."""


# -- whether a lease is in use at a moment -----------------------------------------------------------------------


def why_never_idle(lease: Lease) -> str | None:
    """Why a lease counts as in use, whatever its nodes show; None if it depends on them."""
    if lease.state is not LeaseState.ACTIVE:
        return f"it is {lease.state.shown}"
    if lease.notice is not None and not lease.is_reclaimed_as_idle:
        return "it is being reclaimed"
    if lease.idle_after == NEVER_S:
        return "its request says that it is never idle"
    return None


def idle_after_of(lease: Lease, configured: timedelta) -> timedelta:
    """How long its work must not use it before it is idle; `why_never_idle` handles a lease that never is."""
    return configured if lease.idle_after is None else timedelta(seconds=lease.idle_after)


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


def sampled(
    before: Unused | None, is_unused: bool, at: datetime, longest_gap: timedelta, used_until: datetime | None = None
) -> Unused | None:
    """With one more sample. A sample that shows use, a gap, or a clock that was set back, ends the time.

    `used_until`: the last moment at which it is known to have been used, also between two samples.
    """
    if not is_unused or (used_until is not None and used_until > at):
        return None
    if before is None or not timedelta(0) <= at - before.until <= longest_gap:
        return Unused(at, at)
    return Unused(max(before.since, used_until or before.since), at)


def measured_each(interval_s: float) -> tuple[timedelta, timedelta]:
    """The shortest time over which the CPU time of a program is compared, and the longest one without a measurement;
    after a longer one, what is measured counts as in use. `interval_s`: how often nodes are measured."""
    return (
        timedelta(seconds=max(_LEAST_WINDOW_S, interval_s)),
        timedelta(seconds=max(_LEAST_GAP_S, _GAP * interval_s)),
    )


def is_idle(unused: Unused | None, idle_after: timedelta) -> bool:
    """Whether a lease is idle: no sample has shown use for so long."""
    return unused is not None and unused.until - unused.since >= idle_after


# -- programs inside ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProgramUse:
    """The use of one program inside a lease, from the reports of the process that started it."""

    cpu_s: float
    """The CPU time of its processes at the beginning of the present window."""
    at: datetime
    """When that window began."""
    unused: Unused | None = None
    """The time in which every window has shown no use."""


@dataclass(frozen=True, slots=True)
class InsideUse:
    """The use of all programs inside a lease."""

    changed_at: datetime
    """When a program last entered or left: both count as use."""
    programs: Mapping[str, ProgramUse] = field(default_factory=dict)
    """By id; without those that have not reported their CPU time."""

    def with_report(
        self, program_id: str, cpu_s: float, at: datetime, window: timedelta, longest_gap: timedelta
    ) -> "InsideUse":
        use = with_report(self.programs.get(program_id), cpu_s, at, window, longest_gap)
        return replace(self, programs={**self.programs, program_id: use})

    def without(self, program_id: str, at: datetime) -> "InsideUse":
        return InsideUse(at, {key: use for key, use in self.programs.items() if key != program_id})


def with_report(
    before: ProgramUse | None, cpu_s: float, at: datetime, window: timedelta, longest_gap: timedelta
) -> ProgramUse:
    """With one more report of the CPU time that a program has taken since it began.

    A window without use is one in which it has taken less than a quiet process does in `window`. A busy one ends as
    soon as that is known. A gap, or a count that falls, begins anew.
    """
    anew = ProgramUse(cpu_s, at)
    if before is None:
        return anew
    passed, used_s = at - before.at, cpu_s - before.cpu_s
    if not timedelta(0) <= passed <= longest_gap or not 0.0 <= used_s < QUIET_CORES * window.total_seconds():
        return anew
    if passed < window:
        return before
    return ProgramUse(cpu_s, at, Unused(before.at if before.unused is None else before.unused.since, at))


def programs_inside(
    lease: Lease, inside: InsideUse | None, now: datetime, longest_gap: timedelta
) -> Unused | str | None:
    """The time in which all programs inside have been quiet, or why the lease is in use; None: there is none inside.

    The lease of a run or of a block of a program is for a program, even if that has not reported yet.
    """
    labels = {program.id: program.label or program.id for program in lease.programs_at(now)}
    known: Mapping[str, ProgramUse] = {} if inside is None else inside.programs
    if lease.purpose is Purpose.RUN:
        labels = dict.fromkeys(known, "its program") | labels or {"": "its program"}
    if not labels:
        return None if inside is None else Unused(inside.changed_at, now)
    since, until = [] if inside is None else [inside.changed_at], now
    for program_id, label in labels.items():
        use = known.get(program_id)
        if use is None or now - use.at > longest_gap:
            return f"{label} does not report its CPU time"
        if use.unused is None:
            return f"{label} is busy, or has just begun"
        since.append(use.unused.since)
        until = min(until, use.unused.until)
    return Unused(max(since), until)


def why_devices_used(lease: Lease, snapshot: NodeSnapshot | None) -> str:
    """Why a GPU of a lender may compute for a program inside without Ray; empty if none does.

    Ray gives its devices to tasks and actors, but a program on the lender itself can use any.
    """
    if not lease.resources[GPU]:
        return ""
    reading = _recent(snapshot)
    if reading is None:
        return "its node has no recent measurement"
    if not reading.gpus:
        return "its GPUs are not measured"
    for index, gpu in enumerate(reading.gpus):
        is_of_ray = bool(gpu.processes) and all(process.ours for process in gpu.processes or ())
        if not is_of_ray and not _is_quiet(reading, index):
            return f"GPU {index} is busy"
    return ""


# -- what is done with it ----------------------------------------------------------------------------------------


def is_due(lease: Lease, unused: Unused | None, idle_after: timedelta) -> bool:
    """Whether an idle lease whose notice is over is taken: a sample from after the deadline still shows no use."""
    if lease.notice is None or unused is None or not is_idle(unused, idle_after):
        return False
    return lease.is_reclaimed_as_idle and unused.until >= lease.notice.deadline
