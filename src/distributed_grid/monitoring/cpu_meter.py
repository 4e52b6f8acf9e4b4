"""How much CPU time a program takes, measured where the program runs: that may be a machine without a probe."""

import threading
import time
from typing import Final

from distributed_grid.monitoring.on_node_probe.files import read_text
from distributed_grid.monitoring.on_node_probe.own import TICKS_PER_S, boot_ticks, every_process
from distributed_grid.monitoring.on_node_probe.process_tree import CpuTime, tree

_EVERY_S: Final = 1.5
_PART_OF_TIME: Final = 0.01
"""The part of its time that measuring may take, where there are thousands of processes."""


class CpuMeter:
    """The CPU time of a program and of everything that it started."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._lock = threading.Lock()
        self._due_at = 0.0
        self._used = CpuTime(tree(pid, every_process(read_text)).values(), boot_ticks())

    def read(self) -> float | None:
        """Seconds since measuring began; None if it was read a moment ago.

        A process counts even after its parent has ended, if it was seen below the program before.
        """
        with self._lock:
            began = time.monotonic()
            if began < self._due_at:
                return None
            processes = tree(self._pid, every_process(read_text), self._used.known)
            self._used.look_at_all(processes.values(), boot_ticks())
            self._due_at = began + max(_EVERY_S, (time.monotonic() - began) / _PART_OF_TIME)
            return self._used.ticks / TICKS_PER_S
