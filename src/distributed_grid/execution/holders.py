"""Who is using a node's capacity right now."""

from collections.abc import Mapping

from distributed_grid.decide.naming import Raylet
from distributed_grid.execution.port import Holder
from distributed_grid.execution.ray_rpc import Worker, running_since, workers_on
from distributed_grid.model.resources import ResourceVector, is_internal


def holders_of(raylet: Raylet, kind: str, gcs_address: str) -> tuple[Holder, ...]:
    """The holders of one resource kind on a node, those to be taken back first in front.

    Tasks before actors (Ray retries tasks), the youngest first.
    """
    busy = [worker for worker in workers_on(raylet) if _held(worker)[kind] > 0 and not worker.is_driver]
    if not busy:
        return ()
    known = running_since(gcs_address)
    found = [_holder(worker, known) for worker in busy]
    return tuple(sorted(found, key=lambda h: (h.is_actor, -(h.since_ms if h.since_ms is not None else 2**62), h.pid)))


def holders_in_group(raylet: Raylet, group_id: str, gcs_address: str) -> tuple[Holder, ...]:
    """What runs inside one placement group on this node."""
    busy = [worker for worker in workers_on(raylet) if any(group_id in name for name in worker.holds)]
    if not busy:
        return ()
    known = running_since(gcs_address)
    return tuple(_holder(worker, known) for worker in busy)


def _held(worker: Worker) -> ResourceVector:
    plain = {name: amount for name, amount in worker.holds.items() if not is_internal(name)}
    return ResourceVector.from_ray(plain)


def _holder(worker: Worker, known: Mapping[bytes, tuple[str, int]]) -> Holder:
    what, since = known.get(worker.worker_id, (None, None))
    return Holder(
        pid=worker.pid,
        what=what or ("actor " + worker.actor_id[:8] if worker.actor_id else f"of job {worker.job_id}"),
        is_actor=worker.actor_id is not None,
        since_ms=since,
        holds=_held(worker),
        job_id=worker.job_id,
    )
