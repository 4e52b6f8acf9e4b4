"""Pressure: one formula over measured use, with hysteresis.

The high threshold begins pressure and the low one ends it; in between, nothing changes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector, scale
from distributed_grid.model.snapshots import GpuReading, HostReading, NodeSnapshot, Pressure, Reading

WEIGHTS: Final[Mapping[str, float]] = {CPU: 0.3, MEMORY: 0.3, GPU: 0.4}


def pressure_of(reading: Reading, total: ResourceVector, *, shares_its_host: bool) -> Pressure:
    """A node is pressed at least as much as its machine, whichever programs use it: work on a busy machine is slow.

    A node that shares its machine is also pressed by what its own processes use of its capacity (which is at most the
    machine's). That part is kept, since only it tells such nodes apart.
    """
    host, own = reading.host, reading.own
    cpu, memory = machine_use(host, CPU), machine_use(host, MEMORY)
    gpu = gpu_pressure(reading.gpus)
    if not shares_its_host:
        return combined(cpu, memory, gpu)
    own_cpu = _part(own.cpu_used * scale(CPU), measured_over(reading, total, CPU, shares_its_host=True))
    own_memory = _part(own.memory_used, measured_over(reading, total, MEMORY, shares_its_host=True))
    shown = combined(max(cpu, own_cpu), max(memory, own_memory), gpu)
    return replace(shown, own_cpu=own_cpu, own_memory=own_memory)


def measured_over(reading: Reading, total: ResourceVector, kind: str, *, shares_its_host: bool) -> float:
    """The capacity, in units, of which the pressure by a node's own work is a part."""
    if kind == GPU:
        return float(len(reading.gpus) * scale(GPU))
    host = reading.host.cpus * scale(CPU) if kind == CPU else float(reading.host.memory_total)
    return min(host, total[kind]) if shares_its_host else host


def machine_use(host: HostReading, kind: str) -> float:
    """0..1: the part of a machine's CPUs or memory that is in use, by any program."""
    if kind == CPU:
        return _part(host.cpu_used, host.cpus)
    return _part(host.memory_used, host.memory_total)


def combined(cpu: float, memory: float, gpu: float | None) -> Pressure:
    """One number. On a node without (measured) GPUs, the other two kinds share the weight of GPUs."""
    weights = {**WEIGHTS, GPU: 0.0} if gpu is None else WEIGHTS
    weighed = weights[CPU] * cpu + weights[MEMORY] * memory + weights[GPU] * (gpu or 0.0)
    return Pressure(round(weighed / sum(weights.values()), 6), cpu, memory, gpu)


def gpu_pressure(gpus: tuple[GpuReading, ...]) -> float | None:
    """The mean over the devices. Each is pressed by its kernels or by its memory in use, whichever is more.

    A device for which the driver reports neither is left out.
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


Pressed = frozenset[tuple[NodeName, str]]
"""The (node, kind) pairs that are under pressure."""


@dataclass(frozen=True, slots=True)
class Threshold:
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PressureChange:
    """One node came under pressure of one kind, or is relieved of it."""

    node: NodeName
    kind: str
    value: float
    is_high: bool

    def describe(self) -> str:
        what = "is under pressure" if self.is_high else "is no longer under pressure"
        return f"{self.node} {what}: {self.kind} at {self.value:.0%}"


PressureCallback = Callable[[PressureChange], None]


def pressure_changes(
    snapshots: Iterable[NodeSnapshot], before: Pressed, thresholds: Mapping[str, Threshold]
) -> tuple[tuple[PressureChange, ...], Pressed]:
    """The changes, and the nodes that are under pressure now. Stale or missing measurements change nothing.

    A node that is gone is under no pressure, and its relief is not reported.
    """
    changes: list[PressureChange] = []
    pressed: set[tuple[NodeName, str]] = set()
    for snapshot in snapshots:
        for kind in BUILT_IN:
            was = (snapshot.name, kind) in before
            value = snapshot.own_pressure(kind)
            limit = thresholds[kind]
            now = was if value is None else value >= limit.high or (was and value > limit.low)
            if now:
                pressed.add((snapshot.name, kind))
            if value is not None and now is not was:
                changes.append(PressureChange(snapshot.name, kind, value, is_high=now))
    return tuple(changes), frozenset(pressed)
