"""Asks raylets and workers directly what runs, what holds a node's capacity, and to cancel tasks.

Ray's public state API needs the dashboard and lags by a second; raylets and workers answer at once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import (
    core_worker_pb2,
    core_worker_pb2_grpc,
    gcs_service_pb2,
    gcs_service_pb2_grpc,
    node_manager_pb2,
    node_manager_pb2_grpc,
)

from distributed_grid.decide.leases.idle import Occupant
from distributed_grid.decide.monitoring.naming import Raylet
from distributed_grid.execution.port import Holder, NodeView
from distributed_grid.model.resources import ResourceVector, is_internal

_TIMEOUT_S: Final = 2.0
_WORKER, _DRIVER = 0, 1
_RUNNING_STATES: Final = ("RUNNING",)
_OF_A_GROUP: Final = re.compile(r".+_group_(?P<group>[0-9a-f]{16,})")


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker or driver process, and what its lease holds on its node."""

    node_id: str
    pid: int
    worker_id: bytes
    address: str
    job_id: str
    is_driver: bool
    actor_id: str | None
    running: int
    waiting: int
    """Calls that the worker has received but not begun."""
    holds: dict[str, float] = field(default_factory=dict)
    devices: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By resource: the GPUs that it holds, by their place among the node's."""


@lru_cache(maxsize=512)
def _raylet_stub(address: str) -> Any:
    """Connections to raylets are cached: opening one costs more than a call."""
    return node_manager_pb2_grpc.NodeManagerServiceStub(init_grpc_channel(address))


def workers_on(raylet: Raylet) -> tuple[Worker, ...]:
    """Every worker and driver process of one raylet; empty if the raylet does not answer."""
    return _workers_on(raylet) or ()


def _workers_on(raylet: Raylet) -> tuple[Worker, ...] | None:
    try:
        reply = _raylet_stub(f"{raylet.ip}:{raylet.manager_port}").GetNodeStats(
            node_manager_pb2.GetNodeStatsRequest(include_memory_info=False), timeout=_TIMEOUT_S
        )
    except grpc.RpcError:
        return None
    return tuple(_worker(raylet.node_id, stats) for stats in reply.core_workers_stats)


def occupants_of_groups(raylet: Raylet) -> dict[str, tuple[Occupant, ...]] | None:
    """By placement group: the processes that hold a part of it on this node; None if the raylet does not answer."""
    workers = _workers_on(raylet)
    if workers is None:
        return None
    found: dict[str, list[Occupant]] = {}
    for worker in workers:
        for group in {match["group"] for name in worker.holds if (match := _OF_A_GROUP.fullmatch(name))}:
            devices = worker.devices.get(f"GPU_group_{group}", ())
            found.setdefault(group, []).append(Occupant(worker.pid, devices))
    return {group: tuple(occupants) for group, occupants in found.items()}


def reported_by(raylet: Raylet) -> NodeView | None:
    """A raylet's own total and free resources right now, read without a change; None if it does not answer."""
    try:
        reply = _raylet_stub(f"{raylet.ip}:{raylet.manager_port}").GetResourceLoad(
            node_manager_pb2.GetResourceLoadRequest(), timeout=_TIMEOUT_S
        )
    except grpc.RpcError:
        return None
    return NodeView(dict(reply.resources.resources_total), dict(reply.resources.resources_available))


def is_group_idle(raylet: Raylet, group_id: str) -> bool:
    """True if the raylet has the group and nothing holds any part of it: cheaper than asking its workers."""
    said = reported_by(raylet)
    if said is None:
        return False
    parts = [name for name in said.total if group_id in name]
    return bool(parts) and all(name in said.free and said.free[name] >= said.total[name] for name in parts)


def _worker(node_id: str, stats: Any) -> Worker:
    no_actor = b"\xff" * len(stats.actor_id)
    return Worker(
        node_id=node_id,
        pid=stats.pid,
        worker_id=stats.worker_id,
        address=f"{stats.ip_address}:{stats.port}",
        job_id=stats.job_id.hex(),
        is_driver=stats.worker_type == _DRIVER,
        actor_id=stats.actor_id.hex() if stats.actor_id and stats.actor_id != no_actor else None,
        running=stats.num_running_tasks,
        waiting=stats.task_queue_length,
        holds={
            name: sum(slot.allocation for slot in slots.resource_slots) for name, slots in stats.used_resources.items()
        },
        devices={
            name: tuple(slot.slot for slot in slots.resource_slots if slot.allocation > 0)
            for name, slots in stats.used_resources.items()
            if name.startswith("GPU_group_")
        },
    )


def cancel_tasks_in_group(raylets: Iterable[Raylet], group_id: str) -> int:
    """Cancel all tasks that run or wait in a placement group; return how many were asked to stop.

    Without this, a running task with retries hangs for ever once its group is removed: Ray resubmits it to a group that
    no longer exists. Only a task's owner can cancel it for good, so the owners are asked.
    """
    cancelled = 0
    for worker in (w for raylet in raylets for w in workers_on(raylet)):
        channel = init_grpc_channel(worker.address)
        try:
            stub = core_worker_pb2_grpc.CoreWorkerServiceStub(channel)
            for task_id in _owned_in_group(stub, worker, group_id):
                stub.RequestOwnerToCancelTask(
                    core_worker_pb2.RequestOwnerToCancelTaskRequest(
                        # A task is named by its first return value: its id and the number 1.
                        remote_object_id=task_id + (1).to_bytes(4, "little"),
                        force_kill=True,
                        recursive=True,
                    ),
                    timeout=_TIMEOUT_S,
                )
                cancelled += 1
        except grpc.RpcError:
            continue  # the worker ended meanwhile, and its tasks with it
        finally:
            channel.close()
    return cancelled


def _owned_in_group(stub: Any, worker: Worker, group_id: str) -> Iterator[bytes]:
    reply = stub.GetCoreWorkerStats(
        core_worker_pb2.GetCoreWorkerStatsRequest(intended_worker_id=worker.worker_id, include_task_info=True),
        timeout=_TIMEOUT_S,
    )
    for task in reply.owned_task_info_entries:
        if any(group_id in resource for resource in task.required_resources):
            yield task.task_id


def running_since(gcs_address: str) -> dict[bytes, tuple[str, int]]:
    """Worker id -> (what it runs, since when in ms) for running tasks, from the control service's task events.

    Events are up to a second old: a worker that is missing here has only just begun.
    """
    channel = init_grpc_channel(gcs_address)
    try:
        stub = gcs_service_pb2_grpc.TaskInfoGcsServiceStub(channel)
        request = gcs_service_pb2.GetTaskEventsRequest()
        for state in _RUNNING_STATES:
            request.filters.state_filters.add(state=state)
        reply = stub.GetTaskEvents(request, timeout=_TIMEOUT_S)
    except grpc.RpcError:
        return {}
    finally:
        channel.close()
    found: dict[bytes, tuple[str, int]] = {}
    for event in reply.events_by_task:
        updates = event.state_updates
        since = max(updates.state_ts_ns.values(), default=0) // 1_000_000
        if updates.worker_id:
            found[updates.worker_id] = (event.task_info.name, since)
    return found


def holders_of(raylet: Raylet, kind: str, gcs_address: str) -> tuple[Holder, ...]:
    """The holders of one resource kind on a node, in the order in which to take it back.

    Tasks come before actors (Ray retries tasks), and the youngest come first.
    """
    busy = [worker for worker in workers_on(raylet) if _held(worker)[kind] > 0 and not worker.is_driver]
    return _first_to_end_first(busy, _held, gcs_address)


def holders_in_bundle(raylet: Raylet, group_id: str, number: int, gcs_address: str) -> tuple[Holder, ...]:
    """The same for one bundle of a placement group, with what each holds of the group."""
    mark = f"_group_{number}_{group_id}"
    # What holds only Ray's mark of the place uses nothing of the bundle.
    parts = (
        (worker, [name for name in worker.holds if name.endswith(mark) and not name.startswith("bundle_")])
        for worker in workers_on(raylet)
    )
    busy = [worker for worker, held in parts if held]
    return _first_to_end_first(busy, lambda worker: held_in_group(worker.holds, group_id), gcs_address)


def _first_to_end_first(
    workers: Sequence[Worker], held: Callable[[Worker], ResourceVector], gcs_address: str
) -> tuple[Holder, ...]:
    if not workers:
        return ()
    known = running_since(gcs_address)
    found = [_holder(worker, known, held(worker)) for worker in workers]
    return tuple(sorted(found, key=lambda h: (h.is_actor, -(h.since_ms if h.since_ms is not None else 2**62), h.pid)))


def holders_in_group(raylet: Raylet, group_id: str, gcs_address: str) -> tuple[Holder, ...]:
    """The holders inside one placement group on this node, with what each holds of the group."""
    busy = [worker for worker in workers_on(raylet) if any(group_id in name for name in worker.holds)]
    if not busy:
        return ()
    known = running_since(gcs_address)
    return tuple(_holder(worker, known, held_in_group(worker.holds, group_id)) for worker in busy)


def _held(worker: Worker) -> ResourceVector:
    plain = {name: amount for name, amount in worker.holds.items() if not is_internal(name)}
    return ResourceVector.from_ray(plain)


def held_in_group(holds: Mapping[str, float], group_id: str) -> ResourceVector:
    """The part of a placement group that a worker holds, by the resources that the group was made of.

    Ray names them `GPU_group_ID`, for whichever bundle. A worker in a certain bundle also holds `GPU_group_0_ID`, which
    is the same GPU once more.
    """
    whole = f"_group_{group_id}"
    found = {name.removesuffix(whole): amount for name, amount in holds.items() if name.endswith(whole)}
    found.pop("bundle", None)  # Ray's own mark of the place
    return ResourceVector.from_ray(found)


def _holder(worker: Worker, known: Mapping[bytes, tuple[str, int]], holds: ResourceVector) -> Holder:
    what, since = known.get(worker.worker_id, (None, None))
    return Holder(
        pid=worker.pid,
        what=what or ("actor " + worker.actor_id[:8] if worker.actor_id else f"of job {worker.job_id}"),
        is_actor=worker.actor_id is not None,
        since_ms=since,
        holds=holds,
        job_id=worker.job_id,
    )
