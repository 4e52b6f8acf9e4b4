"""Ends what a run has left outside of its lease: detached actors and placement groups outlive the job that made them.

What is inside ends with the lease. Helpers of Ray's own libraries that reserve nothing stay: all programs share them.
Not so those of Ray Serve: a Serve that a run has started would outlive it, and stand in the way of other programs.
"""

from typing import Any, Final

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc

_TIMEOUT_S: Final = 5.0
_MOST_LOOKS: Final = 5
_SERVE: Final = "ray.serve."
_SERVE_CONTROLLER: Final = "SERVE_CONTROLLER_ACTOR"
_SERVE_KEEPS: Final = {"namespace": b"serve", "key": b"ray-serve-"}
"""Where Ray keeps what a Serve controller has deployed; the next controller would deploy it again."""


def end_what_is_left(gcs_address: str, job_ids: tuple[str, ...], lease_group: str) -> list[str]:
    """The names of what was ended, as far as Ray answers."""
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
    """Their names. Looks again until nothing is left: what was ended last may have started others meanwhile."""
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
        for actor in stub.GetAllActorInfo(request, timeout=_TIMEOUT_S).actor_table_data
        if actor.state != gcs_pb2.ActorTableData.DEAD
        and actor.is_detached
        and actor.placement_group_id != lease_group
        and not is_rays_helper(actor)
    ]
    return sorted(found, key=lambda actor: actor.name != _SERVE_CONTROLLER)  # first, or it brings the others back


def _end_actor(channel: Any, actor: Any) -> None:
    kill = gcs_service_pb2.KillActorViaGcsRequest(actor_id=actor.actor_id, force_kill=True, no_restart=True)
    gcs_service_pb2_grpc.ActorInfoGcsServiceStub(channel).KillActorViaGcs(kill, timeout=_TIMEOUT_S)
    if actor.name == _SERVE_CONTROLLER:
        forget = gcs_service_pb2.InternalKVDelRequest(**_SERVE_KEEPS, del_by_prefix=True)
        gcs_service_pb2_grpc.InternalKVGcsServiceStub(channel).InternalKVDel(forget, timeout=_TIMEOUT_S)


def is_rays_helper(actor: Any) -> bool:
    """An actor of Ray's own libraries that all programs share."""
    module = actor.function_descriptor.python_function_descriptor.module_name
    is_rays = module.startswith("ray.") and not module.startswith(_SERVE)
    return is_rays and not any(actor.required_resources.values())


def _end_groups(channel: Any, jobs: list[bytes]) -> list[str]:
    stub = gcs_service_pb2_grpc.PlacementGroupInfoGcsServiceStub(channel)
    found = stub.GetAllPlacementGroup(gcs_service_pb2.GetAllPlacementGroupRequest(), timeout=_TIMEOUT_S)
    ended = []
    for group in found.placement_group_table_data:
        if (
            group.creator_job_id in jobs
            and group.is_detached
            and group.state != gcs_pb2.PlacementGroupTableData.REMOVED
        ):
            stub.RemovePlacementGroup(
                gcs_service_pb2.RemovePlacementGroupRequest(placement_group_id=group.placement_group_id),
                timeout=_TIMEOUT_S,
            )
            ended.append(f"detached placement group {group.name}".rstrip())
    return ended
