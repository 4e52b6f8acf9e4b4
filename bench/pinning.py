"""Pins raylets to separate cores, so that nodes on one machine are as independent as two machines."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import psutil

from distributed_grid.cluster.processes import trees
from distributed_grid.cluster.record import load
from distributed_grid.errors import GridError
from distributed_grid.store.home import GridHome


@contextmanager
def pinned(home: GridHome, cores: Mapping[str, set[int]]) -> Iterator[None]:
    """The raylets of these nodes, and all processes that they start, run on these cores."""
    pin(home, cores)
    try:
        yield
    finally:
        everywhere = set(range(psutil.cpu_count() or 1))
        pin(home, dict.fromkeys(cores, everywhere))


def pin(home: GridHome, cores: Mapping[str, set[int]]) -> None:
    """Pins every thread: what a thread starts inherits its cores."""
    record = load(home)
    assert record is not None
    roots = {node.name: psutil.Process(node.pid) for node in record.nodes}
    for name, to in cores.items():
        for process in trees([roots[name]]):
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                for thread in process.threads():
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(thread.id, to)


def two_cores() -> tuple[int, int]:
    """The first two cores that this process may use."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        raise GridError("Two machines cannot be told apart on one core", because=[f"this process has {len(mine)}"])
    return mine[0], mine[1]
