"""Code that grid runs on other machines. This module travels by value, because grid is not installed there.

So it may import only what Python and Ray ship, and nothing of this package, except its types for mypy.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed_grid.execution.port import MachineFacts


def facts() -> MachineFacts:
    """Facts about this machine, as seen from inside a Ray worker."""
    import ray

    home = os.path.expanduser("~")  # noqa: PTH111 - pathlib would raise without a home
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "ray": ray.__version__,
        "cpus": _cpus(),
        "memory": _memory(),
        "time": time.time(),
        "executable": sys.executable,
        "home": home,
        "home_writable": os.access(home, os.W_OK),
        "machine": _machine_id(),
    }


def _cpus() -> int:
    """The cores that this process may use: affinity and the container's quota count."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/cpu.max") as quota_file:  # noqa: PTH123
        quota, period = quota_file.read().split()
        if quota != "max":
            allowed = min(allowed, max(1, int(quota) // int(period)))
    return allowed


def _memory() -> int:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max") as limit_file:  # noqa: PTH123
        limit = limit_file.read().strip()
        if limit != "max":
            physical = min(physical, int(limit))
    return physical


def _machine_id() -> str:
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as boot_id:  # noqa: PTH123
        return boot_id.read().strip()
    return socket.gethostname()


def kill_workers(pids: list[int]) -> list[int]:
    """End Ray workers of this machine by process id; return those that were signalled.

    Signals only processes that are Ray workers: an id may have been reused since it was read.
    """
    killed = []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as cmdline:  # noqa: PTH123
            if cmdline.read().startswith(b"ray::") and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
    return killed
