"""The use by a node's own processes: its raylet and everything below it.

Below the raylet are its workers and the processes that they start, Ray's agents on the node, this probe, and grid's
controller where it runs. The control service, the dashboard and drivers are not: they serve the cluster or a user and
take nothing of what the node offers to tasks. They show in the usage of the whole machine.

`psutil` would take twice as long for this, and the kernel's proportional share of each process's memory (PSS) twenty
times.
"""

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from distributed_grid.monitoring.on_node_probe.files import Read, numbers
from distributed_grid.monitoring.on_node_probe.process_tree import CpuTime, Process, TreeRates, parse_stat, tree

_LOOK_S: Final = 1.0
_LOOK_PART: Final = 0.0005
"""The share of one core that looks between readings may take."""
_SHORTEST_S: Final = 0.25
"""Over a shorter time, the kernel's count is too coarse to say that a process is quiet."""
_STORES_S: Final = 60.0
"""How often the raylet's open files are searched for its object store. A busy raylet has thousands."""
_PART_OF_TIME: Final = 0.002
_AT_FIRST_S: Final = 0.1
_S_PER_BYTE: Final = 100e-9 / 4096
"""Walking one page takes up to 100 ns."""
_AT_MOST_S: Final = 0.3
"""No reading waits for a longer walk."""


TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def boot_ticks() -> float:
    """The present moment, as the kernel counts the starts of processes."""
    return float(int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_S))


def every_process(read: Read) -> dict[int, Process]:
    """All processes of this machine, or of this container, by process id."""
    pids = (name for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    return {process.pid: process for pid in pids if (process := _process(read, pid)) is not None}


def _process(read: Read, pid: str) -> Process | None:
    text = read(f"/proc/{pid}/stat")
    return parse_stat(text) if text else None


class Copies:
    """The share of its anonymous memory that each process of a forked family counts with.

    A fork shares its parent's pages until one of them writes. Counted one by one, a program with sixteen data loaders
    would seem to use its memory seventeen times. The kernel knows each process's proportional share, but must walk all
    its pages to compute it, which takes a second for some tens of gigabytes. So the kernel is asked within a time
    budget, and its answer serves as a ratio in between.
    """

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


class OwnUse(NamedTuple):
    used_s: float
    """CPU seconds since measuring began."""
    memory_used: int
    pids: frozenset[int]
    workers: dict[int, float]
    """By the pid of each child of the raylet: busy cores, with all below it, since the previous reading."""


class Own:
    """Measures a raylet and everything below it."""

    def __init__(self, read: Read, raylet_pid: int) -> None:
        self._read = read
        self._raylet = raylet_pid
        self._lock = threading.Lock()
        at = boot_ticks()
        self._cpu = CpuTime(tree(raylet_pid, self._everything()).values(), at)
        self._rates = TreeRates(_SHORTEST_S * TICKS_PER_S)
        self._rates.look(raylet_pid, tree(raylet_pid, self._everything()), at)
        self._copies = Copies(read, time.monotonic())
        self._stores: list[str] = []
        self._stores_at = -_STORES_S

    def measure(self) -> OwnUse:
        with self._lock:
            at = boot_ticks()
            ours = tree(self._raylet, self._everything(), self._cpu.known)
            self._cpu.look_at_all(ours.values(), at)
            used_s = self._cpu.ticks / TICKS_PER_S
            workers = self._rates.look(self._raylet, ours, at)
            return OwnUse(used_s, self._memory(ours), frozenset(ours), workers)

    def watch(self) -> None:
        """Look at the raylet's children every second or two, for ever: see `CpuTime.look`."""
        while True:
            began = time.thread_time()
            with self._lock:
                self._cpu.look(self._children())
            time.sleep(max(_LOOK_S, (time.thread_time() - began) / _LOOK_PART))

    def _memory(self, ours: dict[int, Process]) -> int:
        """Anonymous memory with each page counted once, plus shared memory, also counted once.

        Shared memory is at least what the object store takes, and at least what any one process sees of it. File pages
        do not count, since the kernel can drop them.
        """
        anonymous, shared = {}, self._object_store()
        for pid in ours:
            status = numbers(self._read(f"/proc/{pid}/status"))
            anonymous[pid] = status.get("RssAnon", 0)
            shared = max(shared, status.get("RssShmem", 0))
        parts = self._copies.parts(ours.values(), anonymous, time.monotonic())
        return shared + round(sum(anonymous[pid] * parts[pid] for pid in ours))

    def _object_store(self) -> int:
        """Bytes of the raylet's object store that are really in memory: what the workers wrote, not only the raylet."""
        now = time.monotonic()
        if now - self._stores_at > _STORES_S:
            self._stores_at = now
            self._stores = [path for link, path in self._open_files() if link.startswith("/dev/shm/plasma")]
        found = 0
        for path in self._stores:
            with contextlib.suppress(OSError):
                found += os.stat(path).st_blocks * 512  # noqa: PTH116 - a link to a file that no longer has a name
        return found

    def _open_files(self) -> Iterator[tuple[str, str]]:
        folder = f"/proc/{self._raylet}/fd"
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):  # noqa: PTH208 - there may be thousands
                with contextlib.suppress(OSError):
                    yield os.readlink(f"{folder}/{name}"), f"{folder}/{name}"  # noqa: PTH115

    def _everything(self) -> dict[int, Process]:
        return every_process(self._read)

    def _children(self) -> list[Process]:
        """The raylet's children, found without reading all processes; empty on kernels that do not list them."""
        found = []
        try:
            threads = os.listdir(f"/proc/{self._raylet}/task")  # noqa: PTH208
        except OSError:
            return []
        for thread in threads:
            for pid in (self._read(f"/proc/{self._raylet}/task/{thread}/children") or "").split():
                if (process := _process(self._read, pid)) is not None:
                    found.append(process)
        return found
