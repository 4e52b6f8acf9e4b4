"""The limits of the container that a process runs in: control groups of version 1, version 2, or both.

A limit may be set at any level between the process and the visible top. The tightest one counts, together with the
usage of its level.
"""

import posixpath
from collections.abc import Iterator
from typing import Final, NamedTuple

from distributed_grid.monitoring.on_node_probe.files import Read, numbers

V2: Final = ""
"""The name of the version 2 tree in `/proc/PID/cgroup`."""


class CpuLimit(NamedTuple):
    cores: float
    used_s: float
    """CPU seconds since the group was created."""
    group: str


class MemoryLimit(NamedTuple):
    total: int
    used: int
    """Without what the kernel drops as soon as the space is needed."""
    swap_total: int | None
    """None: the group does not count its swap."""
    swap_used: int | None


class Mount(NamedTuple):
    at: str
    root: str
    """The group at this mount; inside a container, that is not always the top."""
    controllers: frozenset[str]
    """Only `V2` for version 2, where all controllers are in one tree."""


class Level(NamedTuple):
    """One group above a process."""

    folder: str
    below: str
    """Its path under its mount: the same in all trees of version 1."""
    is_v2: bool


class Cgroups:
    """The groups above one process."""

    def __init__(self, read: Read, pid: int) -> None:
        self._read = read
        self._pid = pid
        self._mounts = parse_mounts(read("/proc/self/mountinfo") or "")

    def cpu_limit(self) -> CpuLimit | None:
        """The tightest quota and its usage; None without any."""
        quotas = [(cores, level) for level in self._levels("cpu") if (cores := _quota(self._read, level)) is not None]
        if not quotas:
            return None
        cores, level = min(quotas)
        used_s = self._used_s(level)
        return None if used_s is None else CpuLimit(cores, used_s, level.folder)

    def memory_limit(self, machine_total: int) -> MemoryLimit | None:
        """The tightest limit and its usage; None where only the machine's memory is the limit."""
        limits = []
        for level in self._levels("memory"):
            total = _amount(self._read(f"{level.folder}/memory.{'max' if level.is_v2 else 'limit_in_bytes'}"))
            if total is not None and total < machine_total:
                limits.append((total, level))
        if not limits:
            return None
        total, level = min(limits)
        return (_memory_v2 if level.is_v2 else _memory_v1)(self._read, level.folder, total)

    def _used_s(self, level: Level) -> float | None:
        if level.is_v2:
            used_us = numbers(self._read(f"{level.folder}/cpu.stat")).get("usage_usec")
            return None if used_us is None else used_us / 1e6
        for counting in self._levels("cpuacct"):
            if counting.below == level.below:
                used_ns = _amount(self._read(f"{counting.folder}/cpuacct.usage"))
                return None if used_ns is None else used_ns / 1e9
        return None

    def _levels(self, controller: str) -> Iterator[Level]:
        """From the process's own group up to the visible top."""
        groups = parse_groups(self._read(f"/proc/{self._pid}/cgroup") or "")
        tree = controller if controller in groups else V2
        for mount in self._mounts:
            if tree in groups and tree in mount.controllers:
                below = _below(groups[tree], mount.root)
                while True:
                    yield Level(posixpath.join(mount.at, below).rstrip("/"), below, tree == V2)
                    if not below:
                        return
                    below = posixpath.dirname(below)


def _memory_v2(read: Read, folder: str, total: int) -> MemoryLimit | None:
    used = _amount(read(f"{folder}/memory.current"))
    if used is None:
        return None
    stat = numbers(read(f"{folder}/memory.stat"))
    droppable = sum(stat.get(name, 0) for name in ("active_file", "inactive_file", "slab_reclaimable"))
    swap_used = _amount(read(f"{folder}/memory.swap.current"))
    return MemoryLimit(total, max(0, used - droppable), _amount(read(f"{folder}/memory.swap.max")), swap_used)


def _memory_v1(read: Read, folder: str, total: int) -> MemoryLimit | None:
    used = _amount(read(f"{folder}/memory.usage_in_bytes"))
    if used is None:
        return None
    stat = numbers(read(f"{folder}/memory.stat"))
    droppable = sum(stat.get(name, 0) for name in ("total_active_file", "total_inactive_file"))
    # Version 1 counts memory and swap together.
    both_total = _amount(read(f"{folder}/memory.memsw.limit_in_bytes"))
    both_used = _amount(read(f"{folder}/memory.memsw.usage_in_bytes"))
    return MemoryLimit(
        total,
        max(0, used - droppable),
        None if both_total is None else max(0, both_total - total),
        None if both_used is None else max(0, both_used - used),
    )


def _below(group: str, root: str) -> str:
    """The path of a group below a mount. A group outside the mount is the mount itself, as seen from in here."""
    relative = posixpath.relpath(group, root)
    return "" if relative == "." or relative.startswith("..") else relative


def parse_groups(text: str) -> dict[str, str]:
    """`/proc/PID/cgroup`: controller -> group."""
    groups = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for controller in controllers.split(","):
            groups[controller] = group
    return groups


def parse_mounts(text: str) -> list[Mount]:
    """`/proc/PID/mountinfo`: where control groups are mounted."""
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, *_, options = after.split() or [""]
        if kind in ("cgroup", "cgroup2"):
            _, _, _, root, at, *_ = before.split()
            controllers = options.split(",") if kind == "cgroup" else [V2]
            mounts.append(Mount(at, root, frozenset(controllers)))
    return mounts


def _quota(read: Read, level: Level) -> float | None:
    """Cores; None without a quota."""
    if level.is_v2:
        quota, _, period = (read(f"{level.folder}/cpu.max") or "").strip().partition(" ")
    else:
        quota = (read(f"{level.folder}/cpu.cfs_quota_us") or "").strip()
        period = (read(f"{level.folder}/cpu.cfs_period_us") or "").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _amount(text: str | None) -> int | None:
    """A number; None for "max", for -1, and for a missing file."""
    text = (text or "").strip()
    return int(text) if text.isdigit() else None
