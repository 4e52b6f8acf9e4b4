"""Named points where a test can stop, delay or end the process: between any two steps that a crash may separate.

Unused, a point costs one comparison. With `GRID_FAULTS=FILE` in its environment, a process reads FILE at every point:

    grant.written kill              # as a power cut would
    store.renamed delay 0.5
    capacity.shrunk stop            # until it receives SIGCONT
    capacity.grown kill 0 3         # the third time it gets there

An order is carried out once: FILE becomes FILE.done first, so that a restarted process gets past it. Passed points are
noted in FILE.passed. A test that runs grid in its own process registers a callback for every point instead: `watched`.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path


class Point(StrEnum):
    """In the order in which a boost passes them."""

    GRANT_PLANNED = "grant.planned"
    GRANT_WRITTEN = "grant.written"
    GROUP_MADE = "group.made"
    CAPACITY_SHRUNK = "capacity.shrunk"
    CAPACITY_SHOWN = "capacity.shown"
    CAPACITY_GROWN = "capacity.grown"
    MARKERS_LOWERED = "markers.lowered"
    GRANT_DELIVERED = "grant.delivered"

    RENEW_BEGUN = "renew.begun"
    RENEW_WRITTEN = "renew.written"

    NOTICE_GIVEN = "notice.given"
    RELEASE_SPLIT = "release.split"
    RELEASE_BEGUN = "release.begun"
    RELEASE_WRITTEN = "release.written"
    GROUP_CANCELLED = "group.cancelled"
    GROUP_REMOVED = "group.removed"
    RELEASE_HOME = "release.home"

    CHANGE_WRITTEN = "change.written"
    CHANGE_DURABLE = "change.durable"
    STORE_WRITTEN = "store.written"
    STORE_SYNCED = "store.synced"
    STORE_PREVIOUS_KEPT = "store.previous_kept"
    STORE_RENAMED = "store.renamed"
    STORE_DURABLE = "store.durable"


def fault_point(point: Point) -> None:
    if _at_point is not None:
        _at_point(point)


@contextmanager
def watched(at_point: Callable[[Point], None]) -> Iterator[None]:
    """Call `at_point` for every point that this process passes meanwhile; an exception from it ends the work there."""
    global _at_point
    before, _at_point = _at_point, at_point
    try:
        yield
    finally:
        _at_point = before


def _obey(point: Point, orders: Path) -> None:
    passed = orders.with_name(orders.name + ".passed")
    with passed.open("a") as notes:
        notes.write(f"{point}\n")
    try:
        where, action, seconds, turn = [*orders.read_text().split(), "0", "1"][:4]
    except (OSError, ValueError):
        return
    if where != point or passed.read_text().split().count(point) < int(turn):
        return
    orders.replace(orders.with_name(orders.name + ".done"))
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "delay":
            time.sleep(float(seconds))


_at_point: Callable[[Point], None] | None = None
if "GRID_FAULTS" in os.environ:
    _at_point = partial(_obey, orders=Path(os.environ["GRID_FAULTS"]))
