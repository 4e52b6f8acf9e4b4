"""How much of the memory of forked processes is their own.

A fork shares its parent's pages until one of them writes. Counted one by one, a program with sixteen data loaders would
seem to use its memory seventeen times. The kernel knows each process's proportional share, but must walk all its pages
to compute it, which takes a second for some tens of gigabytes. So the kernel is asked within a time budget, and its
answer serves as a ratio in between.
"""

import time
from collections.abc import Iterable
from typing import Final

from distributed_grid.monitoring.on_node_probe.files import Read, numbers
from distributed_grid.monitoring.on_node_probe.process_tree import Process

_PART_OF_TIME: Final = 0.002
_AT_FIRST_S: Final = 0.1
_S_PER_BYTE: Final = 100e-9 / 4096
"""Walking one page takes up to 100 ns."""
_AT_MOST_S: Final = 0.3
"""No reading waits for a longer walk."""


class Copies:
    """The share of its anonymous memory that each process of a forked family counts with."""

    def __init__(self, read: Read, now: float) -> None:
        self._read = read
        self._budget_s = _AT_FIRST_S
        self._at = now
        self._part: dict[tuple[int, int], tuple[float, float]] = {}
        """When the kernel was asked, and its answer."""

    def parts(self, processes: Iterable[Process], anonymous: dict[int, int], now: float) -> dict[int, float]:
        """For each process, 0..1; 1 for a process that is not a copy and has none."""
        processes = tuple(processes)
        copied = {process.parent for process in processes if process.is_copy}
        families = [process for process in processes if process.is_copy or process.pid in copied]
        self._budget_s = min(self._budget_s + (now - self._at) * _PART_OF_TIME, _AT_FIRST_S + _AT_MOST_S)
        self._at = now
        self._part = {process.key: self._part[process.key] for process in families if process.key in self._part}
        for process in sorted(families, key=lambda one: self._part.get(one.key, (0.0, 0.0))[0]):
            expected_s = anonymous.get(process.pid, 0) * _S_PER_BYTE
            if expected_s <= min(_AT_MOST_S, self._budget_s):
                self._ask(process, now)
        # A process that was never measured counts as at its start: a parent in full, a copy with nothing of its own.
        begins_with = {process.key: 0.0 if process.is_copy else 1.0 for process in processes}
        return {process.pid: self._part.get(process.key, (0.0, begins_with[process.key]))[1] for process in processes}

    def _ask(self, process: Process, now: float) -> None:
        began = time.thread_time()
        said = numbers(self._read(f"/proc/{process.pid}/smaps_rollup"))
        self._budget_s -= time.thread_time() - began
        anonymous = said.get("Anonymous", 0)
        if anonymous and "Pss_Anon" in said:
            self._part[process.key] = now, min(1.0, said["Pss_Anon"] / anonymous)
