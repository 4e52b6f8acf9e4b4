"""What a program says when it connects to Ray: meant for a cluster of its own, or for the lease's."""

from collections.abc import Mapping
from typing import Any

from .captured import Captured, describe

ONLY_FOR_A_NEW_CLUSTER = (
    "num_cpus",
    "num_gpus",
    "resources",
    "labels",
    "object_store_memory",
    "_system_config",
    "_enable_object_reconstruction",
    "_node_name",
)
"""What `ray.init` refuses when it is to connect to a cluster that is there."""


def is_the_lease_s(address: str | None, ray_address: str) -> bool:
    """Whether `ray.init` with this address goes to the cluster that RAY_ADDRESS names."""
    return bool(ray_address) and (address in (None, "auto") or address == ray_address)


def arguments(captured: Captured, address: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those that Ray takes; a script that was written for one machine need not be changed."""
    if not is_the_lease_s(address, captured.ray_address):
        return dict(given)
    dropped = {name: given[name] for name in ONLY_FOR_A_NEW_CLUSTER if given.get(name) is not None}
    if dropped:
        shown = ", ".join(f"{name}={describe(value)}" for name, value in dropped.items())
        captured.reports.rewritten(f"ray.init({shown})", "the program runs in a lease, which is as large as it is")
    return {name: value for name, value in given.items() if name not in dropped}
