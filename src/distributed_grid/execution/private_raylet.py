"""A raylet of a private cluster inside a reservation: it has exactly what is reserved, and ends with it."""

import json
import time
from typing import Final

import ray

from distributed_grid.errors import ClusterStartFailed, Refused
from distributed_grid.execution.actors import NAMESPACE, find, why_gone
from distributed_grid.execution.groups import asking_for, inside
from distributed_grid.execution.packing import on_node_raylet
from distributed_grid.model.leases import Lease
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, scale

STANDS_STILL_S: Final = 60.0
HOSTED_WITHIN_S: Final = 300.0
"""For the actor that hosts the raylet to come up."""
UP_WITHIN_S: Final = on_node_raylet.MOST_WINDOWS * STANDS_STILL_S + 60.0
"""A raylet that stalls is given up earlier; this limit is for a process that does not even report a stall."""
_GONE_WITHIN_S: Final = 10.0
_LEAST_STORE: Final = 100_000_000
_MOST_STORE: Final = 2_000_000_000


def join(lease: Lease, head_address: str) -> None:
    """Start a raylet in the lease's bundle that joins the Ray at this address; `ClusterStartFailed` says why not.

    An actor that takes the whole bundle holds the raylet: its GPUs are the only ones that the raylet sees. When the
    lease ends, so does the actor, and with it the raylet.
    """
    if find(_name(lease)) is not None:
        raise Refused(
            f"Boost {lease.id[:8]} has a private cluster already",
            because=["it takes all that is reserved"],
            try_next="Wait until that run has ended, or leave out --boost.",
        )
    host = (
        ray.remote(on_node_raylet.RayletHost)
        .options(
            name=_name(lease),
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            scheduling_strategy=inside(lease.placement_group or ""),
            **asking_for(lease.resources),
        )
        .remote(start_arguments(lease.resources, head_address), visible_devices(lease.resources))
    )
    try:
        ray.get(host.__ray_ready__.remote(), timeout=HOSTED_WITHIN_S)
        why = ray.get(host.why_not_up.remote(STANDS_STILL_S), timeout=UP_WITHIN_S)
    except ray.exceptions.RayError as error:
        why = why_gone(error)
    if why is not None:
        ray.kill(host)
        raise ClusterStartFailed(f"The private cluster did not start on {lease.source}", because=[why])


def leave(lease: Lease) -> None:
    """End the raylet, if there is one. On return its reservation is free again."""
    host = find(_name(lease))
    if host is None:
        return
    ray.kill(host)
    deadline = time.monotonic() + _GONE_WITHIN_S
    while find(_name(lease)) is not None and time.monotonic() < deadline:
        time.sleep(0.02)


def _name(lease: Lease) -> str:
    return f"grid-raylet-{lease.id}"


def start_arguments(resources: ResourceVector, head_address: str) -> list[str]:
    """The arguments of `ray start`; the node's own address is added where it starts."""
    memory = resources[MEMORY]
    store = min(max(_LEAST_STORE, memory * 3 // 10), _MOST_STORE)
    return [
        *("--address", head_address),
        *("--num-cpus", str(resources[CPU] // scale(CPU))),
        *("--num-gpus", str(resources[GPU] // scale(GPU))),
        *("--memory", str(max(1, memory))),
        *("--object-store-memory", str(store)),
        *("--resources", json.dumps(asking_for(resources)["resources"])),
        *("--include-log-monitor", "false"),
    ]


def visible_devices(resources: ResourceVector) -> dict[str, str]:
    """For the raylet's environment. Without GPUs it sees none: Ray hides GPUs only from work that asked for some."""
    return {} if resources[GPU] else {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
