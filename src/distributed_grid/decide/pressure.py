"""How hard a node is pressed: from what was measured, by the project's one formula."""

from collections.abc import Mapping
from typing import Final

from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, scale
from distributed_grid.model.snapshots import GpuReading, Pressure, Reading

WEIGHTS: Final[Mapping[str, float]] = {CPU: 0.3, MEMORY: 0.3, GPU: 0.4}


def pressure_of(reading: Reading, total: ResourceVector, *, shares_its_host: bool) -> Pressure:
    """A node that has its machine to itself is pressed as the machine is, whoever uses it. Of nodes that share one,
    each is pressed by what its own processes use of what it has; and none has more than the machine.
    """
    host, own = reading.host, reading.own
    if shares_its_host:
        cpu = _part(own.cpu_used, min(host.cpus, total[CPU] / scale(CPU)))
        memory = _part(own.memory_used, min(host.memory_total, total[MEMORY]))
    else:
        cpu = _part(host.cpu_used, host.cpus)
        memory = _part(host.memory_used, host.memory_total)
    return combined(cpu, memory, gpu_pressure(reading.gpus))


def combined(cpu: float, memory: float, gpu: float | None) -> Pressure:
    """One number: a node without (measured) GPUs shares their weight between the other two."""
    weights = {**WEIGHTS, GPU: 0.0} if gpu is None else WEIGHTS
    weighed = weights[CPU] * cpu + weights[MEMORY] * memory + weights[GPU] * (gpu or 0.0)
    return Pressure(round(weighed / sum(weights.values()), 6), cpu, memory, gpu)


def gpu_pressure(gpus: tuple[GpuReading, ...]) -> float | None:
    """The mean over the devices; each is pressed by its kernels or by what fills its memory, whichever is more.

    A device of which the driver tells neither has no part in it.
    """
    each = [pressed for gpu in gpus if (pressed := _pressed(gpu)) is not None]
    return sum(each) / len(each) if each else None


def _pressed(gpu: GpuReading) -> float | None:
    known = [] if gpu.utilisation is None else [gpu.utilisation]
    if gpu.memory_used is not None and gpu.memory_total is not None:
        known.append(_part(gpu.memory_used, gpu.memory_total))
    return max(known, default=None)


def _part(used: float, of: float) -> float:
    return min(1.0, max(0.0, used / of)) if of > 0 else 0.0
