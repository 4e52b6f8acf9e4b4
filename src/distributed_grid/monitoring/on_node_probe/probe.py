"""The probe: the class of the actor on a node."""

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from distributed_grid.monitoring.on_node_probe.files import read_text
from distributed_grid.monitoring.on_node_probe.gpus import Gpus, nvml_from, visible_to
from distributed_grid.monitoring.on_node_probe.host import CpuCount, Host
from distributed_grid.monitoring.on_node_probe.own import Own, OwnUse

WINDOW_S: Final = 0.25
"""The kernel counts in hundredths of a second. Over a shorter window, "cores busy" would be noise."""


_FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""The kernel's number for the first PID namespace of every machine."""


class Probe:
    """Measures its node when asked. "Cores busy" is the average since the previous call by any caller."""

    def __init__(self, nvml_source: bytes, gpus: int, raylet_pid: int | None = None) -> None:
        raylet = raylet_pid or own_raylet()
        self._host = Host(read_text, raylet)
        self._own = Own(read_text, raylet)
        self._gpus = Gpus(nvml_from(nvml_source), visible_to(read_text(f"/proc/{raylet}/environ")), gpus)
        self._host_busy = Rate()
        self._own_busy = Rate()
        self._count()
        threading.Thread(target=self._own.watch, name="grid-probe-watch", daemon=True).start()

    def about(self) -> dict[str, object]:
        return {"pid": os.getpid()}

    def read(self) -> dict[str, object]:
        """Plain numbers, by the names of `Reading`."""
        cpu, own = self._count()
        while self._host_busy.cores is None or self._own_busy.cores is None:  # measuring has only just begun
            time.sleep(WINDOW_S)
            cpu, own = self._count()
        gpus, no_gpus_because = self._gpus.read(time.monotonic(), own.pids if sees_all_processes() else None)
        return {
            "host": {"cpus": cpu.cpus, "cpu_used": self._host_busy.cores, "load": os.getloadavg()}
            | self._host.levels(),
            "own": {
                "cpu_used": self._own_busy.cores,
                "memory_used": own.memory_used,
                "processes": len(own.pids),
            },
            "workers": [{"pid": pid, "cpu_used": cores} for pid, cores in own.workers.items()],
            "gpus": gpus,
            "no_gpus_because": no_gpus_because,
        }

    def do(self, function: Callable[..., object], *args: object) -> object:
        """Run a function on this node, beside the measuring."""
        return function(*args)

    def _count(self) -> tuple[CpuCount, OwnUse]:
        cpu = self._host.cpu()
        self._host_busy.add(cpu.used_s, time.monotonic(), cpu.counter)
        own = self._own.measure()
        self._own_busy.add(own.used_s, time.monotonic())
        return cpu, own


def sees_all_processes() -> bool:
    """Whether process ids here are the machine's. In a container, the NVIDIA driver reports different ones."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE  # noqa: PTH116
    except OSError:
        return False


class Rate:
    """How fast a counter of CPU seconds rises, in cores."""

    def __init__(self) -> None:
        self.cores: float | None = None
        """None until there are two counts to compare."""
        self._last: tuple[str, float, float] | None = None

    def add(self, used_s: float, now: float, counter: str = "") -> None:
        """Take a count at a time. If the window is too short or the counter is another one, the known rate stays."""
        if self._last is None or self._last[0] != counter or used_s < self._last[1]:
            self._last = counter, used_s, now
            return
        _, before, at = self._last
        if now - at >= WINDOW_S:
            self.cores = (used_s - before) / (now - at)
            self._last = counter, used_s, now


def own_raylet() -> int:
    """The process id of this worker's raylet."""
    pid = os.environ.get("RAY_RAYLET_PID", "")
    return int(pid) if pid.isdigit() and os.path.exists(f"/proc/{pid}") else os.getppid()  # noqa: PTH110
