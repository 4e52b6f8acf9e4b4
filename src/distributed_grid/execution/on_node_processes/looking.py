"""Which processes of a node are heavy, the facts about one, and which files it would find on this node."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, TypedDict

from distributed_grid.execution.on_node_processes.details import describe
from distributed_grid.execution.on_node_processes.proc import (
    TICKS,
    Stat,
    children_in,
    environment_of,
    everything,
    family_of,
    file_facts,
    machine,
    mounts_here,
    own_raylet,
    same,
    tree,
    user_name,
    waited_s,
)

WINDOW_S: Final = 0.5
"""The kernel counts CPU time in hundredths of a second."""
_MOST: Final = 60


class NodeProcesses(TypedDict):
    """Some processes of a node."""

    machine: str
    processes: list[dict[str, object]]
    """As `ProcessFacts` has it."""


class NodeFiles(TypedDict):
    """The user that work runs as on a node, and the files that it finds there."""

    machine: str
    uid: int
    user: str
    files: dict[str, dict[str, object]]
    """As `Elsewhere` has it."""


def scan(whole_machine: bool, heavy_cores: float, heavy_memory: int, raylet: int | None = None) -> NodeProcesses:
    """The heavy processes of this node: those below its raylet; with `whole_machine` also all below no raylet.

    On a machine that is too busy, a heavy process gets little: it is judged by what it would use.
    """
    raylet = raylet or own_raylet()
    stats, cores, wanted = _measured(lambda seen: _ours(seen, raylet, whole_machine))
    ours = _ours(stats, raylet, whole_machine)
    children = children_in(stats)
    weights = [(stat, *_weight(family_of(stat.pid, stats, children), wanted)) for stat in ours]
    heavy = [one for one in weights if one[1] >= heavy_cores or one[2] >= heavy_memory]
    heavy.sort(key=lambda one: (-one[1], -one[2], one[0].pid))
    mounts, texts = mounts_here(), dict[str, str]()
    described = (describe(stat, stats, cores, wanted, mounts, texts) for stat, _, _ in heavy[:_MOST])
    return {"machine": machine(), "processes": [one for one in described if one is not None]}


def look_at(pid: int) -> NodeProcesses:
    """The same facts for one process, heavy or not; empty if there is no such process."""
    stats, cores, wanted = _measured(lambda seen: tree(pid, seen))
    stat = stats.get(pid)
    described = None if stat is None or stat.is_kernel else describe(stat, stats, cores, wanted, mounts_here(), {})
    return {"machine": machine(), "processes": [] if described is None else [described]}


def find_here(paths: list[str]) -> NodeFiles:
    """The user that work runs as on this node, and which of these files exist here."""
    mounts = mounts_here()
    found = {path: file_facts(path, mounts) for path in paths}
    return {
        "machine": machine(),
        "uid": os.getuid(),
        "user": user_name(os.getuid()),
        "files": {path: facts for path, facts in found.items() if facts is not None},
    }


def environment(pid: int, created_at: float, names: list[str]) -> dict[str, str]:
    """The values of these variables in a process's environment; raises if the process has ended."""
    found = environment_of(pid)
    if same(pid, created_at) is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return {name: found[name] for name in names if name in found}


def _measured(
    meant: Callable[[dict[int, Stat]], list[Stat]],
) -> tuple[dict[int, Stat], dict[int, float], dict[int, float]]:
    """All processes, how many cores each used over a moment, and how many it would have used on an idle machine.

    The last is measured for the `meant` ones only: the kernel tells it for each thread in a file of its own.
    """
    before, began = everything(), time.monotonic()
    waited = {stat.pid: waited_s(stat.pid) for stat in meant(before)}
    waits_began = time.monotonic()
    time.sleep(WINDOW_S)
    waits_s = time.monotonic() - waits_began
    waits = {pid: max(0.0, waited_s(pid) - so_far) / waits_s for pid, so_far in waited.items()}
    after, seconds = everything(), time.monotonic() - began
    cores = {
        pid: (stat.ticks - before[pid].ticks) / TICKS / seconds
        for pid, stat in after.items()
        if pid in before and before[pid].born == stat.born
    }
    return after, cores, {pid: used + waits.get(pid, 0.0) for pid, used in cores.items()}


def _ours(stats: dict[int, Stat], raylet: int, whole_machine: bool) -> list[Stat]:
    children = children_in(stats)
    below = {stat.pid for stat in tree(raylet, stats, children)}
    raylets = [stat.pid for stat in stats.values() if stat.name == "raylet"]
    others = {one.pid for other in raylets for one in tree(other, stats, children)} - below
    return [
        stat
        for stat in stats.values()
        if not stat.is_kernel and (stat.pid in below or (whole_machine and stat.pid not in others))
    ]


def _weight(family: list[Stat], wanted: dict[int, float]) -> tuple[float, int]:
    return sum(wanted.get(one.pid, 0.0) for one in family), max(one.memory for one in family)
