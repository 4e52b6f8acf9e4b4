"""Programs that run inside a reserved lease."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from distributed_grid import threads
from distributed_grid.decide.leases.hooks import private_head
from distributed_grid.decide.leases.idle import InsideUse, measured_each
from distributed_grid.errors import InvalidRequest, NotReserved
from distributed_grid.leases.state import EngineContext
from distributed_grid.leases.view import boost_dict, ending_of
from distributed_grid.logs import logger
from distributed_grid.model.endings import why_it_ends
from distributed_grid.model.lease_changes import ProgramsChanged
from distributed_grid.model.leases import Lease, LeaseState, Program, Purpose
from distributed_grid.model.resources import CPU, GPU, whole
from distributed_grid.model.times import stamp
from distributed_grid.model.validators import LONGEST_LABEL, is_id
from distributed_grid.model.work import Work, together

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import ProgramAnswer

log = logger()

_JOB: Final = re.compile(r"[0-9a-f]{8}")
_MOST_JOBS: Final = 64
_MOST_PROGRAMS: Final = 64
_SILENT_S: Final = 30.0
"""A program that has not reported for this long counts as gone."""


def work_in(p: EngineContext, lease: Lease, job_ids: tuple[str, ...]) -> Work:
    """The work of these jobs, and how much of the lease is in use. Blocks."""
    group = _group_of(lease)
    if len(job_ids) > _MOST_JOBS or not all(map(_JOB.fullmatch, job_ids)):
        raise InvalidRequest(f"A Ray job's id has eight hexadecimal digits, and at most {_MOST_JOBS} are looked up")
    nodes = dict.fromkeys((*lease.sources, *(share.source for share in lease.grown)))
    raylets = filter(None, map(p.observer.naming.raylets.get, nodes))
    used = sum(p.cluster.cpus_in_use(raylet, group) for raylet in raylets)
    return together((p.cluster.work_of_job(job_id, group) for job_id in job_ids), used)


def private_head_for(p: EngineContext, lease: Lease, address: str, caller: Collection[str], shared_head: str) -> str:
    """Check the address that raylets inside the lease may join, and return it; raises an error written for users."""
    _group_of(lease)
    if lease.elastic is not None:
        raise InvalidRequest(
            "A private cluster cannot grow",
            because=[f"boost {lease.id[:8]} is elastic"],
            try_next="Use --isolation group, or a boost with a fixed amount.",
        )
    each = [part.resources for part in lease.parts]
    parts = [kind for kind in (CPU, GPU) if not all(whole(kind, resources[kind]) for resources in each)]
    if parts:
        kinds = " and ".join(f"{kind.upper()}s" for kind in parts)
        raise InvalidRequest(
            f"A private cluster needs whole numbers of {kinds} on each node",
            because=[lease.describe()],
            try_next="Ask for a whole number, or use --isolation group.",
        )
    heads = [
        private_head(address, lender=source, nodes=p.addresses(), caller=caller, shared_head=shared_head)
        for source in lease.sources
    ]
    return heads[0]


async def report_program(p: EngineContext, lease: Lease, program_id: str, label: str, *, who: str = "grid") -> Lease:
    """Record that a program runs inside a lease: it keeps its place until the deadline, also between two tasks.

    The record is on disk, since the controller may be killed between the notice and the deadline. It is written again
    only now and then.
    """
    if not is_id(program_id) or len(label) > LONGEST_LABEL:
        raise InvalidRequest(
            "A program's id has at most 64 letters, digits and hyphens, "
            f"and its label at most {LONGEST_LABEL} characters"
        )
    lease = p.ledger.find(lease.id)  # read again: an older copy must not undo a release
    now, lasts_s = p.now(), min(_SILENT_S, lease.duration_s / 2)
    there = lease.programs_at(now)
    known = next((program for program in there if program.id == program_id), None)
    if known is not None and (known.until - now).total_seconds() > lasts_s / 2:
        return lease
    if known is None:
        if lease.placement_group is None or lease.state is LeaseState.LOST:
            _group_of(lease)
        if len(there) >= _MOST_PROGRAMS:
            raise InvalidRequest(f"Boost {lease.id[:8]} has {_MOST_PROGRAMS} programs inside, and takes no more")
    others = tuple(program for program in there if program.id != program_id)
    here = Program(program_id, label, now + timedelta(seconds=lasts_s))
    attended = p.ledger.apply(lease, ProgramsChanged((*others, here)))
    if known is None:
        p.inside[lease.id] = _inside(p, lease).without(program_id, now)
        message = f"{lease.describe()}: {label or program_id} runs inside"
        p.journal.note("program_entered", message, lease=lease, node=lease.source, who=who, program=program_id)
    await p.try_commit()
    return p.ledger.get(lease.id) or attended


def report_use(p: EngineContext, lease: Lease, program_id: str, cpu_s: float) -> None:
    """Record the CPU time that a program's processes have taken since it began. Only in memory: after a restart, grid
    measures anew."""
    is_there = lease.purpose is Purpose.RUN or any(program.id == program_id for program in lease.programs)
    if p.ledger.get(lease.id) is None or not is_there:
        return
    window, longest_gap = measured_each(float(p.config.resource_sharing.monitoring_interval_seconds))
    p.inside[lease.id] = _inside(p, lease).with_report(program_id, cpu_s, p.now(), window, longest_gap)


def _inside(p: EngineContext, lease: Lease) -> InsideUse:
    return p.inside.get(lease.id) or InsideUse(p.now())


async def leave(p: EngineContext, lease: Lease, program_id: str, *, who: str = "grid") -> Lease:
    """Record that a program has ended. After the last one, the lease need not wait for the deadline."""
    lease = p.ledger.find(lease.id)
    left = tuple(program for program in lease.programs if program.id != program_id)
    if left == lease.programs:
        return lease
    alone = p.ledger.apply(lease, ProgramsChanged(left))
    p.inside[lease.id] = _inside(p, lease).without(program_id, p.now())
    message = f"{lease.describe()}: a program inside has ended"
    p.journal.note("program_left", message, lease=lease, node=lease.source, who=who, program=program_id)
    await p.try_commit()
    p.something_changed()
    return alone


def program_answer(p: EngineContext, lease: Lease) -> ProgramAnswer:
    """The answer to a program inside. It gives the time left, since clocks differ between machines."""
    left_s = None if lease.deadline is None else round((lease.deadline - p.now()).total_seconds(), 3)
    return {"boost": boost_dict(lease, p.notes.get(lease.id, ())), "ends_in_seconds": left_s}


def _group_of(lease: Lease) -> str:
    if lease.placement_group is None or lease.state is not LeaseState.ACTIVE:
        raise NotReserved(
            f"No program can run inside boost {lease.id[:8]}: "
            f"it is {lease.state.shown}, with delivery {lease.delivery}",
            try_next="Request one with --delivery reserve.",
        )
    return lease.placement_group


class PrivateClusters:
    """Tells the programs in private clusters, through Ray's own call for preempted nodes, that their lease ends.

    Runs beside the reconciler. It is level-triggered: Ray hears it again after a restart, and whenever the deadline has
    changed.
    """

    def __init__(self, parts: EngineContext) -> None:
        self._p = parts
        self._drained: dict[str, datetime] = {}
        """By lease: the deadline that Ray knows."""
        self._telling: dict[str, asyncio.Task[None]] = {}

    def drain(self) -> None:
        """Tell Ray of every lease that ends, without waiting for it."""
        now = self._p.now()
        ending = {lease.id: lease for lease in self._p.ledger if lease.placement_group and lease.programs_at(now)}
        # Ray's call cannot be taken back, and the notice of an idle lease may be withdrawn.
        ending = {
            key: lease for key, lease in ending.items() if lease.deadline is not None and not lease.is_reclaimed_as_idle
        }
        self._drained = {key: deadline for key, deadline in self._drained.items() if key in ending}
        self._telling = {key: task for key, task in self._telling.items() if not task.done()}
        for key, lease in ending.items():
            if lease.deadline != self._drained.get(key) and key not in self._telling:
                self._telling[key] = asyncio.create_task(self._tell(lease))

    async def stop(self) -> None:
        for task in self._telling.values():
            task.cancel()
        await asyncio.gather(*self._telling.values(), return_exceptions=True)

    async def _tell(self, lease: Lease) -> None:
        p, ending = self._p, ending_of(lease)
        if lease.deadline is None or ending is None:
            return
        why = f"grid: {why_it_ends(ending)}"
        left_s = max(0.0, (lease.deadline - p.now()).total_seconds())
        try:
            is_drained = await threads.NODE_TASKS.run(p.cluster.drain_private_cluster, lease, left_s, why)
        except Exception:  # the deadline holds without it; the next turn tries again
            log.exception("a private cluster could not be drained", boost=lease.id)
            return
        if is_drained:
            self._drained[lease.id] = lease.deadline
            message = f"{lease.describe()}: its private cluster is drained until {stamp(lease.deadline)}"
            p.journal.note("raylet_drained", message, lease=lease, node=lease.source)
