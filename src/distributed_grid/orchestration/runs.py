"""Programs that run inside a reserved lease."""

import re
from collections.abc import Collection
from typing import Final

from distributed_grid.decide.hook_urls import private_head
from distributed_grid.errors import InvalidRequest, NotReserved
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.resources import CPU, GPU, whole
from distributed_grid.model.work import Work, together
from distributed_grid.orchestration.parts import Parts

_JOB: Final = re.compile(r"[0-9a-f]{8}")
_MOST_JOBS: Final = 64


def work_in(p: Parts, lease: Lease, job_ids: tuple[str, ...]) -> Work:
    """What these jobs do, and how much of the lease is in use. Blocks."""
    group = _group_of(lease)
    if len(job_ids) > _MOST_JOBS or not all(map(_JOB.fullmatch, job_ids)):
        raise InvalidRequest(f"A Ray job's id has eight hexadecimal digits, and at most {_MOST_JOBS} are looked up")
    raylet = p.observer.naming.raylets.get(lease.source)
    used = 0.0 if raylet is None else p.cluster.cpus_in_use(raylet, group)
    return together((p.cluster.work_of_job(job_id, group) for job_id in job_ids), used)


def private_head_for(p: Parts, lease: Lease, address: str, caller: Collection[str], shared_head: str) -> str:
    """The address that a raylet inside the lease may join, checked; raises what a person should read."""
    _group_of(lease)
    parts = [kind for kind in (CPU, GPU) if not whole(kind, lease.resources[kind])]
    if parts:
        raise InvalidRequest(
            f"A Ray of its own has whole {' and '.join(kind.upper() + 's' for kind in parts)}",
            try_next="Ask for a whole number, or use --isolation group.",
        )
    return private_head(address, lender=lease.source, nodes=p.addresses(), caller=caller, shared_head=shared_head)


def _group_of(lease: Lease) -> str:
    if lease.placement_group is None or lease.state is not LeaseState.ACTIVE:
        raise NotReserved(
            f"Boost {lease.id[:8]} is {lease.state}, by {lease.delivery}: nothing to run inside of",
            try_next="Ask for one with --delivery reserve.",
        )
    return lease.placement_group
