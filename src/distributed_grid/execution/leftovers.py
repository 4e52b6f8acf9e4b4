"""Ends what a run has left outside of its lease: detached actors and placement groups outlive the job that made them.

What is inside ends with the lease. Helpers of Ray's own libraries that reserve nothing stay: all programs share them.
"""

from typing import Any, Final

import grpc
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_pb2, gcs_service_pb2, gcs_service_pb2_grpc

_TIMEOUT_S: Final = 5.0


def end_what_is_left(gcs_address: str, job_ids: tuple[str, ...], lease_group: str) -> list[str]:
    """The names of what was ended, as far as Ray answers."""
    jobs = [bytes.fromhex(job_id) for job_id in job_ids]
    channel = init_grpc_channel(gcs_address)
    try:
        actors = [name for job in jobs for name in _end_actors(channel, job, bytes.fromhex(lease_group))]
        return actors + _end_groups(channel, jobs)
    except grpc.RpcError:
        return []
    finally:
        channel.close()


def _end_actors(channel: Any, job: bytes, lease_group: bytes) -> list[str]:
    stub = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(channel)
    request = gcs_service_pb2.GetAllActorInfoRequest()
    request.filters.job_id = job
    ended = []
    for actor in stub.GetAllActorInfo(request, timeout=_TIMEOUT_S).actor_table_data:
        is_over = actor.state == gcs_pb2.ActorTableData.DEAD
        if is_over or not actor.is_detached or actor.placement_group_id == lease_group or _is_rays_helper(actor):
            continue
        kill = gcs_service_pb2.KillActorViaGcsRequest(actor_id=actor.actor_id, force_kill=True, no_restart=True)
        stub.KillActorViaGcs(kill, timeout=_TIMEOUT_S)
        ended.append(f"detached actor {actor.name or actor.class_name}")
    return ended


def _is_rays_helper(actor: Any) -> bool:
    module = actor.function_descriptor.python_function_descriptor.module_name
    return module.startswith("ray.") and not any(actor.required_resources.values())


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
