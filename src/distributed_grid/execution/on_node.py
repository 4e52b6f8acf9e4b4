"""Code that grid runs on other machines. This module travels by value, because grid is not installed there.

So it may import only what Python and Ray ship, and nothing of this package, except its types for mypy.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from distributed_grid.execution.port import WorkerFacts


class Surroundings(TypedDict):
    """The environment of a node's raylet, the devices of its machine, and the time there."""

    time: float
    env: dict[str, str]
    token_auth: bool
    gpu_devices: int
    machine: str
    """Identifies the kernel: nodes on one machine have the same."""


def facts() -> WorkerFacts:
    """Facts about this machine, as seen from inside a Ray worker."""
    import ray

    home = os.path.expanduser("~")  # noqa: PTH111 - pathlib would raise without a home
    return {
        "python": platform.python_version(),
        "ray": ray.__version__,
        "cpus": _cpus(),
        "memory": _memory(),
        "home": home,
        "home_writable": os.access(home, os.W_OK),
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


def surroundings(names: Sequence[str]) -> Surroundings:
    """What a checkup asks of a node; `names` are the variables that matter."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    env = _of_the_raylet() or os.environ
    return {
        "time": time.time(),
        "env": {name: env[name] for name in names if name in env},
        "token_auth": is_token_auth_enabled(),
        "gpu_devices": len(list(Path("/dev").glob("nvidia[0-9]*"))),
        "machine": _machine(),
    }


def _of_the_raylet() -> dict[str, str]:
    """A worker's own environment lacks what Ray changes for it, such as the visible GPUs; its parent is the raylet."""
    try:
        pairs = Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename


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


def hold_a_place() -> None:
    """Holds what its task was given, and does nothing, until it is cancelled."""
    while True:
        time.sleep(3600)
