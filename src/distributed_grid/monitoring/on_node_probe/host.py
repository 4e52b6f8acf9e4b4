"""The machine that a node runs on, or its container if that has limits of its own."""

import os
import sys
from collections.abc import Collection
from types import ModuleType
from typing import NamedTuple

from distributed_grid.monitoring.on_node_probe.cgroups import Cgroups
from distributed_grid.monitoring.on_node_probe.files import Read


class CpuCount(NamedTuple):
    cpus: float
    """The usable cores."""
    used_s: float
    """The CPU seconds used so far."""
    counter: str
    """What counted them."""


class Host:
    """Measures what a process (the raylet) and all processes beside it may use, and do use."""

    def __init__(self, read: Read, pid: int) -> None:
        self._read = read
        self._pid = pid
        self._cgroups = Cgroups(read, pid)
        self._psutil = find_psutil()
        self._folder = session_folder(read(f"/proc/{pid}/cmdline"))

    def cpu(self) -> CpuCount:
        allowed = os.sched_getaffinity(self._pid)
        limit = self._cgroups.cpu_limit()
        if limit is not None:
            return CpuCount(min(limit.cores, len(allowed)), limit.used_s, limit.group)
        used_s = busy_seconds(self._read("/proc/stat") or "", allowed, os.sysconf("SC_CLK_TCK"))
        return CpuCount(float(len(allowed)), used_s, f"the machine's CPUs {sorted(allowed)}")

    def levels(self) -> dict[str, int]:
        """Totals and use in bytes, by the field names of `HostReading`."""
        return self._memory() | self._disk()

    def _memory(self) -> dict[str, int]:
        machine, swap = self._psutil.virtual_memory(), self._psutil.swap_memory()
        found = {
            "memory_total": machine.total,
            "memory_used": machine.total - machine.available,
            "swap_total": swap.total,
            "swap_used": swap.used,
        }
        limit = self._cgroups.memory_limit(machine.total)
        if limit is not None:
            found |= {"memory_total": limit.total, "memory_used": limit.used}
            if limit.swap_used is not None:  # without its own limit, the group may fill the machine's swap
                most = swap.total if limit.swap_total is None else min(swap.total, limit.swap_total)
                found |= {"swap_total": most, "swap_used": min(most, limit.swap_used)}
        return found

    def _disk(self) -> dict[str, int]:
        """The file system of the session folder, to which Ray spills objects. What only root may use counts as used."""
        try:
            found = os.statvfs(self._folder)
        except OSError:
            return {}
        total = found.f_blocks * found.f_frsize
        return {"disk_total": total, "disk_used": total - found.f_bavail * found.f_frsize}


def session_folder(cmdline: str | None) -> str:
    """The folder of Ray's session that a raylet's command line names."""
    options = (word.partition("--session_dir=") for word in (cmdline or "").split("\0"))
    return next((folder for before, sign, folder in options if sign and not before), "/tmp")


def busy_seconds(stat: str, allowed: Collection[int], ticks_per_s: int) -> float:
    """`/proc/stat`: CPU seconds since boot in which the allowed CPUs were busy.

    Waiting for a disk is not work, and time that a hypervisor gave to other machines is not ours. (Guest time is part
    of user time.)
    """
    ticks = {}
    for line in stat.splitlines():
        name, *values = line.split() or [""]
        if not name.startswith("cpu"):
            break
        user, nice, system, _idle, _waiting, irq, softirq = map(int, values[:7])
        ticks[name] = user + nice + system + irq + softirq
    ours = [f"cpu{number}" for number in allowed]
    # Some containers show their CPUs under other numbers: then only the sum is meaningful.
    if len(ours) < len(ticks) - 1 and all(name in ticks for name in ours):
        return sum(ticks[name] for name in ours) / ticks_per_s
    return ticks.get("cpu", 0) / ticks_per_s


def find_psutil() -> ModuleType:
    """The psutil that Ray ships (it is on the path once ray is imported), or one that is installed."""
    try:
        import psutil
    except ImportError:
        import importlib.util

        ray = importlib.util.find_spec("ray")
        if ray is None or ray.origin is None:
            raise
        sys.path.append(os.path.join(os.path.dirname(ray.origin), "thirdparty_files"))  # noqa: PTH118, PTH120
        import psutil
    return psutil
