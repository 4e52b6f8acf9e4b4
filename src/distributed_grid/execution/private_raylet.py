"""A raylet of a private cluster inside a reservation: it has exactly what is reserved, and ends with it."""

from typing import Final

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from distributed_grid.errors import ClusterStartFailed
from distributed_grid.execution.by_value import on_node_raylet
from distributed_grid.execution.reservations import group_handle
from distributed_grid.model.leases import Lease
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, scale

UP_WITHIN_S: Final = 60.0
_NAMESPACE: Final = "grid"
_LEAST_STORE: Final = 100_000_000
_MOST_STORE: Final = 2_000_000_000


def join(lease: Lease, head_address: str) -> None:
    """Start a raylet in the lease's bundle that joins the Ray at this address; `ClusterStartFailed` says why not.

    It is held by an actor that takes the whole bundle: its GPUs are the only ones that the raylet sees, and when the
    lease ends, so does the actor, and with it the raylet.
    """
    keeper = (
        ray.remote(_Keeper)
        .options(
            **_whole(lease.resources),
            name=f"grid-raylet-{lease.id}",
            namespace=_NAMESPACE,
            lifetime="detached",
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group_handle(lease.placement_group or "")),
        )
        .remote(start_arguments(lease.resources, head_address), visible_devices(lease.resources))
    )
    try:
        why = ray.get(keeper.why_not_up.remote(UP_WITHIN_S), timeout=2 * UP_WITHIN_S)
    except ray.exceptions.RayError as error:
        why = str(error).splitlines()[0]
    if why is not None:
        ray.kill(keeper)
        raise ClusterStartFailed(f"The private cluster did not start on {lease.source}", because=[why])


def _whole(resources: ResourceVector) -> dict[str, object]:
    """All that the bundle has, in the words of Ray's options."""
    asked = resources.to_ray()
    others = {name: amount for name, amount in asked.items() if name not in ("CPU", "GPU", "memory")}
    return {
        "num_cpus": asked.get("CPU", 0),
        "num_gpus": asked.get("GPU", 0),
        "memory": asked.get("memory"),
        "resources": others,
    }


def start_arguments(resources: ResourceVector, head_address: str) -> list[str]:
    """Of `ray start`: the node's own address is added where it starts."""
    import json

    memory = resources[MEMORY]
    store = min(max(_LEAST_STORE, memory * 3 // 10), _MOST_STORE)
    others = {name: amount for name, amount in resources.to_ray().items() if name not in ("CPU", "GPU", "memory")}
    return [
        *("--address", head_address),
        *("--num-cpus", str(resources[CPU] // scale(CPU))),
        *("--num-gpus", str(resources[GPU] // scale(GPU))),
        *("--memory", str(max(1, memory))),
        *("--object-store-memory", str(store)),
        *("--resources", json.dumps(others)),
        *("--include-log-monitor", "false"),
    ]


def visible_devices(resources: ResourceVector) -> dict[str, str]:
    """For the raylet's environment. What has no GPUs sees none: Ray hides them only from what has asked for some."""
    return {} if resources[GPU] else {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


class _Keeper:
    """Runs on the lender."""

    def __init__(self, arguments: list[str], environment: dict[str, str]) -> None:
        address = ray.util.get_node_ip_address()
        self._ray = on_node_raylet.OwnRay(["--node-ip-address", address, *arguments], environment)

    def why_not_up(self, within_s: float) -> str | None:
        return self._ray.why_not_up(within_s)
