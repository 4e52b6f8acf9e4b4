"""Measured use of a node beyond what Ray counts: a busy machine, a full disk, and GPUs that other programs use.

Ray counts what it has promised. It does not see a program that was started beside it, so what is free for Ray may be in
use all the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from distributed_grid.decide.monitoring.pressure import Threshold, machine_use
from distributed_grid.model.nodes import NOT_IN_USE, MeasuredUse
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.resources import CPU, GB, GPU, MEMORY, ResourceVector, describe, scale
from distributed_grid.model.snapshots import GpuReading, HostReading, NodeSnapshot

MEMORY_PART: Final = 0.1
"""Other programs use a device if they hold this part of its memory: the next program may find too little."""
KERNELS_PART: Final = 0.5
"""Or if the device computes for this part of the time, and none of the node's own work is on it."""
DISK_PART: Final = 0.95
"""From here on Ray creates no objects on a node (its `local_fs_capacity_threshold`): borrowed work would fail."""


def measured_use(
    snapshot: NodeSnapshot, thresholds: Mapping[str, Threshold], *, withholds_gpus: bool = True
) -> MeasuredUse:
    """The measured use in a node's last reading. A stale reading shows none: such a node lends nothing anyway."""
    if snapshot.measured is None or snapshot.stale:
        return NOT_IN_USE
    host = snapshot.measured.host
    crowded = {
        kind: _how_busy(host, kind) for kind in (CPU, MEMORY) if machine_use(host, kind) >= thresholds[kind].high
    }
    given_out = -(-snapshot.used[GPU] // scale(GPU))
    devices = gpus_in_use(snapshot.measured.gpus, given_out)
    withheld = ResourceVector({GPU: len(devices) * scale(GPU)} if withholds_gpus else {})
    is_full = bool(host.disk_total) and host.disk_used >= DISK_PART * host.disk_total
    refuses = {RefusalCode.DISK_FULL: _how_full(host)} if is_full else {}
    return MeasuredUse(crowded, tuple(_how_used(gpu) for gpu in devices), withheld, refuses)


def gpus_in_use(gpus: Sequence[GpuReading], given_out: int) -> tuple[GpuReading, ...]:
    """The devices that other programs use and that Ray has not given out, so that it may give them out next.

    A device that runs the node's own work is given out. Where the driver does not report which processes are the node's
    own (as in containers), as many busy devices as Ray has given out count as its own.
    """
    others: list[GpuReading] = []
    unsure: list[GpuReading] = []
    for gpu in gpus:
        if _is_busy(gpu):
            known = {process.ours for process in gpu.processes or ()}
            if True not in known:
                (others if known == {False} else unsure).append(gpu)
    explained = given_out - sum(1 for gpu in gpus if any(process.ours for process in gpu.processes or ()))
    return (*others, *unsure[max(0, explained) :])


def _is_busy(gpu: GpuReading) -> bool:
    full = gpu.memory_used is not None and bool(gpu.memory_total) and gpu.memory_used >= MEMORY_PART * _total(gpu)
    return full or (gpu.utilisation or 0.0) >= KERNELS_PART


def _total(gpu: GpuReading) -> int:
    return gpu.memory_total or 0


# -- in words -------------------------------------------------------------------------------------------------


def _how_busy(host: HostReading, kind: str) -> str:
    if kind == CPU:
        return (
            f"its machine is busy: {host.cpu_used:.1f} of {describe(CPU, round(host.cpus * scale(CPU)))} in use, "
            f"load {host.load[0]:.1f}"
        )
    return f"its machine is short of memory: {host.memory_used / GB:.1f} of {host.memory_total / GB:.1f} GB in use"


def _how_full(host: HostReading) -> str:
    return f"its disk is nearly full: {host.disk_used / GB:.1f} of {host.disk_total / GB:.1f} GB in use"


def _how_used(gpu: GpuReading) -> str:
    """ "GPU 0 is in use outside Ray: 100.0 of 140.0 GB, 100 % busy, pid 4711"."""
    which = "a GPU" if gpu.index is None else f"GPU {gpu.index}"
    return f"{which} is in use outside Ray: {', '.join(_use_of(gpu))}"


def _use_of(gpu: GpuReading) -> Iterator[str]:
    if gpu.memory_used is not None and gpu.memory_total is not None:
        yield f"{gpu.memory_used / GB:.1f} of {gpu.memory_total / GB:.1f} GB"
    if gpu.utilisation is not None:
        yield f"{gpu.utilisation:.0%} busy"
    pids = [str(process.pid) for process in gpu.processes or () if not process.ours]
    if pids:
        yield f"pid {', '.join(pids[:3])}{' and others' if len(pids) > 3 else ''}"
