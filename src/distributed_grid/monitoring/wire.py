"""What a probe says, as data of ours. Pure: it is plain numbers that travel."""

from collections.abc import Mapping
from typing import Any

from distributed_grid.model.snapshots import GpuProcess, GpuReading, HostReading, OwnUse, Reading


def reading_from(said: Mapping[str, Any]) -> Reading:
    host = dict(said["host"])
    return Reading(
        host=HostReading(**host | {"load": tuple(host["load"])}),
        own=OwnUse(**said["own"]),
        gpus=tuple(_gpu(gpu) for gpu in said["gpus"]),
        no_gpus_because=said["no_gpus_because"],
    )


def _gpu(said: Mapping[str, Any]) -> GpuReading:
    processes = said["processes"]
    told = None if processes is None else tuple(GpuProcess(*process) for process in processes)
    return GpuReading(**dict(said) | {"processes": told})
