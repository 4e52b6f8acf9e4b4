"""What the tasks of a job do, and which of them are not in the job's lease: Ray's own record of them is asked."""

from collections import Counter
from typing import Any, Final

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import common_pb2, gcs_service_pb2, gcs_service_pb2_grpc

from distributed_grid.execution.port import NodeView
from distributed_grid.model.work import Work

_TIMEOUT_S: Final = 5.0
_MOST: Final = 10_000  # of one job; Ray itself forgets the oldest beyond that
_RUNNING: Final = frozenset(
    {
        common_pb2.RUNNING,
        common_pb2.RUNNING_IN_RAY_GET,
        common_pb2.RUNNING_IN_RAY_WAIT,
        common_pb2.GETTING_AND_PINNING_ARGS,
    }
)


def work_of_job(gcs_address: str, job_id: str, group_id: str) -> Work:
    """Up to a second old. Nothing, if Ray does not answer."""
    channel = init_grpc_channel(gcs_address)
    try:
        request = gcs_service_pb2.GetTaskEventsRequest(limit=_MOST)
        request.filters.job_filters.add(job_id=bytes.fromhex(job_id))
        request.filters.exclude_driver = True
        reply = gcs_service_pb2_grpc.TaskInfoGcsServiceStub(channel).GetTaskEvents(request, timeout=_TIMEOUT_S)
    except grpc.RpcError:
        return Work()
    finally:
        channel.close()
    return _counted(reply.events_by_task, bytes.fromhex(group_id))


def _counted(events: Any, group_id: bytes) -> Work:
    states: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    actors = 0
    for event in events:
        info = event.task_info
        if info.type == common_pb2.ACTOR_CREATION_TASK:
            actors += 1
        else:
            states[_state(event.state_updates.state_ts_ns)] += 1
        # An actor's calls are where the actor is.
        if info.type != common_pb2.ACTOR_TASK and info.placement_group_id != group_id:
            outside[info.name] += 1
    return Work(
        states["running"], states["waiting"], states["done"], states["failed"], actors, dict(sorted(outside.items()))
    )


def _state(times: Any) -> str:
    """The state that it reached last; those that end it are never left."""
    if common_pb2.FAILED in times:
        return "failed"
    if common_pb2.FINISHED in times:
        return "done"
    return "running" if _RUNNING & set(times) else "waiting"


def cpus_in_use(said: NodeView | None, group_id: str) -> float:
    """How many of a group's CPUs its work holds, as its node says."""
    name = f"CPU_group_{group_id}"
    return 0.0 if said is None else max(0.0, said.total.get(name, 0.0) - said.free.get(name, 0.0))
