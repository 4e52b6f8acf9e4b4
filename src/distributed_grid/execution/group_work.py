"""The work of a job: its tasks, those outside the job's lease, and ending what a run leaves behind.

All of it comes from Ray's own records. Detached actors and placement groups outlive the job that made them, so grid
ends them after the run. Helper actors of Ray's own libraries that reserve nothing stay, because all programs share
them. Those of Ray Serve do not stay: a Serve instance that a run started would get in the way of other programs.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import common_pb2, gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc

from distributed_grid.execution.extensions import LIMIT
from distributed_grid.execution.port import NodeView
from distributed_grid.model.work import HOOK_MARK, RUN_MARK, Driver, Work

T = TypeVar("T")

_TIMEOUT_S: Final = 5.0
_MOST: Final = 10_000  # per job; Ray itself forgets the oldest beyond that
_MOST_DRIVERS: Final = 200
_GATE: Final = "GridGate."  # an actor of the capture hook, at which placement groups wait
_RUNNING: Final = frozenset(
    {
        common_pb2.RUNNING,
        common_pb2.RUNNING_IN_RAY_GET,
        common_pb2.RUNNING_IN_RAY_WAIT,
        common_pb2.GETTING_AND_PINNING_ARGS,
    }
)


def work_of_job(gcs_address: str, job_id: str, group_id: str) -> Work:
    """A job's work, up to a second old; empty if Ray does not answer."""
    job, group = bytes.fromhex(job_id), bytes.fromhex(group_id)

    def ask(channel: Any) -> Work:
        request = gcs_service_pb2.GetTaskEventsRequest(limit=_MOST)
        request.filters.job_filters.add(job_id=job)
        request.filters.exclude_driver = True
        reply = gcs_service_pb2_grpc.TaskInfoGcsServiceStub(channel).GetTaskEvents(request, timeout=_TIMEOUT_S)
        # Also for jobs that wait for nothing: another job of the run may wait for them.
        return replace(_counted(reply.events_by_task, group), held_by_actors=_held(channel, job, group))

    return _asked(gcs_address, ask, Work())


def drivers(gcs_address: str, since: float) -> tuple[Driver, ...]:
    """The drivers of the latest jobs that began after `since`; none if Ray does not answer."""

    def ask(channel: Any) -> tuple[Driver, ...]:
        request = gcs_service_pb2.GetAllJobInfoRequest(
            skip_submission_job_info_field=True, skip_is_running_tasks_field=True
        )
        reply = gcs_service_pb2_grpc.JobInfoGcsServiceStub(channel).GetAllJobInfo(request, timeout=_TIMEOUT_S)
        found = sorted((_driver(job) for job in reply.job_info_list), key=lambda driver: -driver.began_at)
        return tuple(driver for driver in found if driver.began_at >= since)[:_MOST_DRIVERS]

    return _asked(gcs_address, ask, ())


def _asked(gcs_address: str, ask: Callable[[Any], T], otherwise: T) -> T:
    channel = init_grpc_channel(gcs_address)
    try:
        return ask(channel)
    except grpc.RpcError:
        return otherwise
    finally:
        channel.close()


def _driver(job: Any) -> Driver:
    said = job.config.metadata
    return Driver(
        job.job_id.hex(),
        job.driver_pid,
        job.driver_ip_address,
        job.start_time / 1000,
        said.get(RUN_MARK, ""),
        bool(said.get(HOOK_MARK)),
    )


def _held(channel: Any, job_id: bytes, group_id: bytes) -> float:
    """The CPUs of the group that the job's actors hold."""
    request = gcs_service_pb2.GetAllActorInfoRequest()
    request.filters.job_id, request.filters.state = job_id, gcs_pb2.ActorTableData.ALIVE
    reply = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(channel).GetAllActorInfo(request, timeout=_TIMEOUT_S)
    found = [actor for actor in reply.actor_table_data if actor.placement_group_id == group_id]
    cpus = f"CPU_group_{group_id.hex()}"
    return float(sum(actor.required_resources.get(cpus, 0.0) for actor in found))


def _reserves(required: Mapping[str, float]) -> bool:
    """False if the resources only state a place: those reserve nothing."""
    return any(amount for name, amount in required.items() if not name.startswith(("bundle_group_", "node:")))


def _counted(events: Any, group_id: bytes) -> Work:
    states: Counter[str] = Counter()
    outside: Counter[str] = Counter()
    actors = unplaced = 0
    for event in events:
        info = event.task_info
        if info.name.startswith(_GATE):
            continue
        if info.type == common_pb2.ACTOR_CREATION_TASK:
            actors += 1
        else:
            states[_state(event.state_updates.state_ts_ns)] += 1
        unplaced += info.type != common_pb2.ACTOR_TASK and _waits_for_room(event.state_updates.state_ts_ns)
        # An actor's calls run where the actor is. A task that reserves nothing takes nothing from others.
        takes = info.type != common_pb2.ACTOR_TASK and _reserves(info.required_resources)
        if takes and info.placement_group_id != group_id:
            outside[info.name] += 1
    counts = states["running"], states["waiting"], states["done"], states["failed"], actors
    return Work(*counts, outside=dict(sorted(outside.items())), unplaced=unplaced)


def _state(times: Any) -> str:
    """The last state that a task reached; final states are never left."""
    if common_pb2.FAILED in times:
        return "failed"
    if common_pb2.FINISHED in times:
        return "done"
    return "running" if _RUNNING & set(times) else "waiting"


def _waits_for_room(times: Any) -> bool:
    return bool(times) and max(times, key=lambda state: times[state]) == common_pb2.PENDING_NODE_ASSIGNMENT


def cpus_in_use(said: NodeView | None, group_id: str) -> float:
    """How many of a group's CPUs its work holds, according to its node."""
    if said is None:
        return 0.0
    names = (f"CPU_group_{group_id}", f"CPU_group_{LIMIT}_{group_id}")
    of_all, of_the_limit = (said.total.get(name, 0.0) - said.free.get(name, 0.0) for name in names)
    return max(0.0, of_all - of_the_limit)


_LEFTOVERS_TIMEOUT_S: Final = 5.0
_MOST_LOOKS: Final = 5
_SERVE: Final = "ray.serve."
_SERVE_CONTROLLER: Final = "SERVE_CONTROLLER_ACTOR"
_SERVE_KEEPS: Final = {"namespace": b"serve", "key": b"ray-serve-"}
"""Where Ray stores what a Serve controller has deployed; the next controller would deploy it again."""


def end_what_is_left(gcs_address: str, job_ids: tuple[str, ...], lease_group: str) -> list[str]:
    """End the detached actors and groups of these jobs; the names of what was ended. Empty if Ray does not answer."""
    jobs = [bytes.fromhex(job_id) for job_id in job_ids]
    channel = init_grpc_channel(gcs_address)
    try:
        actors = [name for job in jobs for name in _end_actors(channel, job, bytes.fromhex(lease_group))]
        return [f"detached actor {name}" for name in actors] + _end_groups(channel, jobs)
    except grpc.RpcError:
        return []
    finally:
        channel.close()


def _end_actors(channel: Any, job: bytes, lease_group: bytes) -> list[str]:
    """The names of the ended actors. Looks again until none is left: an actor may have started others meanwhile."""
    ended: dict[bytes, str] = {}
    for _ in range(_MOST_LOOKS):
        left = [actor for actor in _left(channel, job, lease_group) if actor.actor_id not in ended]
        for actor in left:
            _end_actor(channel, actor)
            ended[actor.actor_id] = actor.name or actor.class_name
        if not left:
            break
    return list(ended.values())


def _left(channel: Any, job: bytes, lease_group: bytes) -> list[Any]:
    stub = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(channel)
    request = gcs_service_pb2.GetAllActorInfoRequest()
    request.filters.job_id = job
    found = [
        actor
        for actor in stub.GetAllActorInfo(request, timeout=_LEFTOVERS_TIMEOUT_S).actor_table_data
        if actor.state != gcs_pb2.ActorTableData.DEAD
        and actor.is_detached
        and actor.placement_group_id != lease_group
        and not is_rays_helper(actor)
    ]
    return sorted(found, key=lambda actor: actor.name != _SERVE_CONTROLLER)  # first, or it restarts the others


def _end_actor(channel: Any, actor: Any) -> None:
    kill = gcs_service_pb2.KillActorViaGcsRequest(actor_id=actor.actor_id, force_kill=True, no_restart=True)
    gcs_service_pb2_grpc.ActorInfoGcsServiceStub(channel).KillActorViaGcs(kill, timeout=_LEFTOVERS_TIMEOUT_S)
    if actor.name == _SERVE_CONTROLLER:
        forget = gcs_service_pb2.InternalKVDelRequest(**_SERVE_KEEPS, del_by_prefix=True)
        gcs_service_pb2_grpc.InternalKVGcsServiceStub(channel).InternalKVDel(forget, timeout=_LEFTOVERS_TIMEOUT_S)


def is_rays_helper(actor: Any) -> bool:
    """True for an actor of Ray's own libraries that all programs share."""
    module = actor.function_descriptor.python_function_descriptor.module_name
    is_rays = module.startswith("ray.") and not module.startswith(_SERVE)
    return is_rays and not any(actor.required_resources.values())


def _end_groups(channel: Any, jobs: list[bytes]) -> list[str]:
    stub = gcs_service_pb2_grpc.PlacementGroupInfoGcsServiceStub(channel)
    found = stub.GetAllPlacementGroup(gcs_service_pb2.GetAllPlacementGroupRequest(), timeout=_LEFTOVERS_TIMEOUT_S)
    ended = []
    for group in found.placement_group_table_data:
        if (
            group.creator_job_id in jobs
            and group.is_detached
            and group.state != gcs_pb2.PlacementGroupTableData.REMOVED
        ):
            stub.RemovePlacementGroup(
                gcs_service_pb2.RemovePlacementGroupRequest(placement_group_id=group.placement_group_id),
                timeout=_LEFTOVERS_TIMEOUT_S,
            )
            ended.append(f"detached placement group {group.name}".rstrip())
    return ended
