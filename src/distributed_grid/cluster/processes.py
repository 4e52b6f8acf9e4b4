"""Finding the processes of a cluster, and ending exactly these.

Every process is identified by pid and creation time, so a reused pid is never hit.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

import psutil

from distributed_grid.errors import GridError
from distributed_grid.execution.ray_start import PATIENCE_S

MARKER: Final = "GRID_EMBEDDED_CLUSTER"
"""The environment variable that all processes of an embedded cluster inherit; it says which cluster."""

NODE_MARKER: Final = "GRID_EMBEDDED_NODE"
"""The same for one start of one node."""

# Ray keeps its sockets below the temporary folder, and the kernel takes at most 107 characters for their paths.
_LONGEST_TMPDIR: Final = 30

_POLL_S: Final = 0.05
_KILLED_WITHIN_S: Final = 10.0

# The creation time is computed from the boot time, which moves a little when the clock is set.
_SAME_TIME_S: Final = 1.0


def child_environment(environ: Mapping[str, str], marker: str) -> dict[str, str]:
    """The caller's environment, adapted for a raylet of an embedded cluster."""
    kept = {name: value for name, value in environ.items() if name != "RAY_ADDRESS"}
    if "RAY_TMPDIR" not in kept and len(kept.get("TMPDIR", "")) > _LONGEST_TMPDIR:
        kept["RAY_TMPDIR"] = "/tmp"
    return kept | {
        # Without this setting, Ray's head uses a token that it finds in the user's home, where `ray.init()` leaves one.
        # Other processes do not use it, so no node and no program would get in.
        "RAY_AUTH_MODE": kept.get("RAY_AUTH_MODE") or "disabled",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        # Raylets report changed totals to the cluster this often; a grant waits until they have. Ray's own default of
        # 100 ms would be most of the cost of a boost.
        "RAY_raylet_report_resources_period_milliseconds": "10",
        # A raylet gives up after 15 s without its agents, which need longer on a machine that starts many nodes.
        "RAY_agent_register_timeout_ms": str(round(PATIENCE_S * 1000)),
        "RAY_raylet_start_wait_time_s": str(round(PATIENCE_S)),
        "RAY_USAGE_STATS_ENABLED": "0",
        MARKER: marker,
    }


def find(pid: int, create_time: float, marker: str) -> psutil.Process | None:
    """The living process that was recorded with this pid, never a later one."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - create_time) < _SAME_TIME_S or carries(process, marker)
    except psutil.Error:
        return None
    return process if same and alive(process) else None


def alive(process: psutil.Process) -> bool:
    """False for a zombie too: it only waits for its parent to reap it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def carries(process: psutil.Process, marker: str, variable: str = MARKER) -> bool:
    try:
        return process.environ().get(variable) == marker
    except (psutil.Error, OSError):
        return False


def carrying(marker: str, variable: str = MARKER) -> set[psutil.Process]:
    """All living processes with this marker. Processes that rename themselves, as Ray's workers do, may hide it."""
    return {p for p in psutil.process_iter() if carries(p, marker, variable) and alive(p)}


def trees(roots: Iterable[psutil.Process]) -> set[psutil.Process]:
    """The roots and all their living descendants. (Process groups would miss Ray's workers.)"""
    found: set[psutil.Process] = set()
    for root in roots:
        with suppress(psutil.NoSuchProcess):
            found |= {root, *root.children(recursive=True)}
    return {p for p in found if alive(p)}


def end(
    roots: Iterable[psutil.Process], *, gently: str, grace_s: float, strays: Callable[[], set[psutil.Process]]
) -> int:
    """End the roots' process trees and the strays; return their number once all of them are gone.

    The processes named `gently` get SIGTERM first and some seconds to end their children; then everything left is
    killed. The trees are read before the first signal: an orphan has no root.
    """
    ours = _others(trees(roots) | strays())
    gentle = [p for p in ours if _name(p) == gently]
    below = trees(gentle)
    for process in gentle:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _wait_until_gone(below, grace_s)

    killed_by = time.monotonic() + _KILLED_WITHIN_S
    left = _others(trees(ours) | strays())
    while left:
        if time.monotonic() > killed_by:
            raise GridError("Some processes do not end", because=[f"pid {p.pid}" for p in left])
        ours |= left
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        _wait_until_gone(left, _KILLED_WITHIN_S)
        left = _others(trees(left) | strays())  # some may have been started meanwhile
    return len(ours)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _others(processes: set[psutil.Process]) -> set[psutil.Process]:
    """Without this very process, which may itself run inside the cluster that it ends."""
    return {p for p in processes if p.pid != os.getpid()}


def _wait_until_gone(processes: set[psutil.Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(map(alive, processes)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
