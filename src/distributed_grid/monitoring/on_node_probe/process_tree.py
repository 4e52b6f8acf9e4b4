"""Arithmetic over processes: which belong to a node, and how much CPU time they took. Pure, except for its memory."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

FORKED: Final = 0x40
"""PF_FORKNOEXEC: the process is a copy of its parent, and shares the parent's memory until one of them writes."""


class Process(NamedTuple):
    pid: int
    parent: int
    born: int
    """Ticks from boot to its start. Together with the pid, this identifies a process for good."""
    own: int
    """CPU ticks."""
    reaped: int
    """CPU ticks of its ended children that it waited for, and of theirs."""
    is_copy: bool
    """Made by a fork, and has not run another program since."""

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.born


def parse_stat(text: str) -> Process:
    """`/proc/PID/stat`. The name may contain anything, including spaces and brackets, so the last bracket counts."""
    fields = text[text.rindex(")") + 2 :].split()
    return Process(
        pid=int(text[: text.index("(")]),
        parent=int(fields[1]),
        born=int(fields[19]),
        own=int(fields[11]) + int(fields[12]),
        reaped=int(fields[13]) + int(fields[14]),
        is_copy=bool(int(fields[6]) & FORKED),
    )


def tree(root: int, everything: Mapping[int, Process], known: Iterable[tuple[int, int]] = ()) -> dict[int, Process]:
    """A process and all below it, plus known processes that outlived their parent, with all below them."""
    children: dict[int, list[int]] = {}
    for process in everything.values():
        children.setdefault(process.parent, []).append(process.pid)
    left = [pid for pid, born in known if pid in everything and everything[pid].born == born]
    left.append(root)
    found: dict[int, Process] = {}
    while left:
        pid = left.pop()
        if pid in everything and pid not in found:
            found[pid] = everything[pid]
            left += children.get(pid, ())
    return found


class CpuTime:
    """Adds up the CPU time of a changing set of processes. The sum never falls when a process ends."""

    def __init__(self, processes: Iterable[Process], at: float) -> None:
        """CPU time used so far is not counted. `at` is in ticks since boot."""
        self._seen = {process.key: process for process in processes}
        self._all_seen_at = at
        self.ticks = 0

    @property
    def known(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._seen)

    def look(self, processes: Iterable[Process]) -> None:
        """Look at some processes between full looks: their CPU time counts even if they end before the next full look.

        A raylet does not wait for its workers, so their last CPU time cannot be read after they end.
        """
        for process in processes:
            before = self._seen.get(process.key)
            self.ticks += self._own_since(process, before)
            # The next full look compares the time of reaped children, since it knows which processes ended.
            self._seen[process.key] = process._replace(reaped=before.reaped if before else 0)

    def look_at_all(self, processes: Iterable[Process], at: float) -> None:
        """Everything that belongs to the set now. A process that is missing has ended."""
        now = {process.key: process for process in processes}
        known_of_ended = self._ended(now)
        for key, process in now.items():
            before = self._seen.get(key)
            self.ticks += self._own_since(process, before)
            reaped_before = before.reaped if before else (0 if self._is_new(process) else process.reaped)
            # Of the reaped time, the part that was seen while the children lived is counted already. A process that
            # does not wait for its children (SIGCHLD ignored, as by a raylet) has none.
            self.ticks += max(0, process.reaped - reaped_before - known_of_ended.get(process.pid, 0))
        self._seen = now
        self._all_seen_at = at

    def _own_since(self, process: Process, before: Process | None) -> int:
        if before is not None:
            return max(0, process.own - before.own)
        return process.own if self._is_new(process) else 0

    def _is_new(self, process: Process) -> bool:
        """Born since the last full look. An older process came from elsewhere, and its earlier CPU time is not ours."""
        return process.born >= self._all_seen_at

    def _ended(self, now: Mapping[tuple[int, int], Process]) -> dict[int, int]:
        """The time that was counted for ended processes, by the nearest living process above them."""
        living = {process.pid for process in now.values()}
        above = {process.pid: process.parent for key, process in self._seen.items() if key not in now}
        counted: dict[int, int] = {}
        for key, process in self._seen.items():
            if key in now:
                continue
            heir = process.parent
            for _ in above:  # bounded: pids are reused, so this could go round in circles
                if heir in living or heir not in above:
                    break
                heir = above[heir]
            counted[heir] = counted.get(heir, 0) + process.own + process.reaped
        return counted


class TreeRates:
    """How busy each child of a process is, with everything below it, between two looks."""

    def __init__(self, shortest: float) -> None:
        """`shortest`: the ticks between two looks below which the rates of the look before stay."""
        self._shortest = shortest
        self._seen: dict[tuple[int, int], int] = {}
        self._at = 0.0
        self._rates: dict[int, float] = {}

    def look(self, root: int, processes: Mapping[int, Process], at: float) -> dict[int, float]:
        """Busy cores by pid; a child that the look before did not show is left out. `at` is in ticks since boot.

        The time of an ended process counts with the parent that waited for it, perhaps twice.
        """
        if at - self._at < self._shortest:
            return self._rates
        used: dict[int, int] = {}
        children = {process.pid for process in processes.values() if process.parent == root}
        for process in processes.values():
            if (child := _child_above(process, children, processes)) is not None:
                spent = process.own + process.reaped
                used[child] = used.get(child, 0) + max(0, spent - self._seen.get(process.key, 0))
        known = {pid for pid in children if processes[pid].key in self._seen}
        self._rates = {pid: used[pid] / (at - self._at) for pid in known}
        self._seen = {process.key: process.own + process.reaped for process in processes.values()}
        self._at = at
        return self._rates


def _child_above(process: Process, children: set[int], processes: Mapping[int, Process]) -> int | None:
    """The child that a process is, or is below of; None for the root and for one that outlived its parent."""
    for _ in processes:  # bounded: pids are reused, so this could go round in circles
        if process.pid in children:
            return process.pid
        if process.parent not in processes:
            return None
        process = processes[process.parent]
    return None
