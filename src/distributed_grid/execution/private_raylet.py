"""The raylets of a private cluster inside a reservation, one in each bundle.

They have exactly what is reserved, and end with it.
"""

import json
import time
from collections import Counter
from typing import Any, Final

import ray

from distributed_grid.errors import ClusterStartFailed, Refused
from distributed_grid.execution.actors import NAMESPACE, find, why_gone
from distributed_grid.execution.groups import asking_for, inside
from distributed_grid.execution.packing import on_node_raylet
from distributed_grid.model.leases import Lease, Share
from distributed_grid.model.nodes import in_words
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, scale

STANDS_STILL_S: Final = 60.0
HOSTED_WITHIN_S: Final = 300.0
"""For the actor that hosts the raylet to come up."""
UP_WITHIN_S: Final = on_node_raylet.MOST_WINDOWS * STANDS_STILL_S + 60.0
"""A raylet that stalls is given up earlier; this limit is for a process that does not even report a stall."""
_GONE_WITHIN_S: Final = 10.0
_DRAINED_WITHIN_S: Final = 20.0
_LEAST_STORE: Final = 100_000_000
_MOST_STORE: Final = 2_000_000_000


def join(lease: Lease, head_address: str) -> None:
    """Start a raylet in each bundle of the lease that joins the Ray at this address; `ClusterStartFailed` says why not.

    An actor that takes the whole bundle holds its raylet: its GPUs are the only ones that the raylet sees. When the
    lease ends, so do the actors, and with them the raylets.
    """
    if any(find(name) is not None for name in _names(lease)):
        raise Refused(
            f"Boost {lease.id[:8]} has a private cluster already",
            because=["it takes all that is reserved"],
            try_next="Wait until that run has ended, or leave out --boost.",
        )
    hosts: list[Any] = []
    for wave in _waves(lease):
        began = {part.source: _host(lease, name, part, head_address) for name, part in wave.items()}
        hosts += began.values()
        failed = [f"{source}: {why}" for source, host in began.items() if (why := _why_not_up(host)) is not None]
        if failed:
            for host in hosts:
                ray.kill(host)
            raise ClusterStartFailed(f"The private cluster did not start on {in_words(lease.sources)}", because=failed)


def _waves(lease: Lease) -> list[dict[str, Share]]:
    """Its bundles by name, in the order in which their raylets start: those of one machine one after the other.

    Raylets of one Ray that start on a machine at the same time may choose the same socket.
    """
    shown = ray._private.state.state.placement_group_table(
        ray.PlacementGroupID(bytes.fromhex(lease.placement_group or ""))
    )
    machines = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    waves: list[dict[str, Share]] = []
    so_far = Counter[str]()
    for name, part in _names(lease).items():
        machine = machines.get(shown.get("bundles_to_node_id", {}).get(part.bundle - 1, ""), "")
        if so_far[machine] == len(waves):
            waves.append({})
        waves[so_far[machine]][name] = part
        so_far[machine] += 1
    return waves


def _host(lease: Lease, name: str, part: Share, head_address: str) -> Any:
    return (
        ray.remote(on_node_raylet.RayletHost)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            scheduling_strategy=inside(lease.placement_group or "", part.bundle),
            **asking_for(part.resources),
        )
        .remote(start_arguments(part.resources, head_address), visible_devices(part.resources))
    )


def _why_not_up(host: Any) -> str | None:
    try:
        ray.get(host.__ray_ready__.remote(), timeout=HOSTED_WITHIN_S)
        why: str | None = ray.get(host.why_not_up.remote(STANDS_STILL_S), timeout=UP_WITHIN_S)
    except ray.exceptions.RayError as error:
        return why_gone(error)
    return why


def leave(lease: Lease) -> None:
    """End its raylets, if there are any. On return the reservation is free again."""
    hosts = [(name, host) for name in _names(lease) if (host := find(name)) is not None]
    for _, host in hosts:
        ray.kill(host)
    deadline = time.monotonic() + _GONE_WITHIN_S
    for name, _ in hosts:
        while find(name) is not None and time.monotonic() < deadline:
            time.sleep(0.02)


def drain(lease: Lease, left_s: float, why: str) -> bool:
    """Tell the programs in a private cluster, through Ray, that its capacity is taken once so much time is over.

    False: there is no private cluster, or nothing in it that Ray would tell; or it did not answer.
    """
    for host in filter(None, map(find, _names(lease))):  # each of them tells all nodes of the private cluster
        try:
            return bool(ray.get(host.drain.remote(left_s, why), timeout=_DRAINED_WITHIN_S))
        except ray.exceptions.RayError:
            continue
    return False


def _names(lease: Lease) -> dict[str, Share]:
    """The bundles of the lease, each by the name of the actor that holds its raylet."""
    shares = lease.shares or (Share(lease.source, lease.units, lease.resources),)
    return {f"grid-raylet-{lease.id}" + (f"-{each.bundle}" if each.bundle > 1 else ""): each for each in shares}


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
