"""Ends a run. Each step is taken even if others failed, so that nothing is left behind.

A run ends before its process leaves Ray.
"""

import atexit
import logging
import os
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial, wraps
from queue import SimpleQueue
from typing import Any, Final

import ray

from distributed_grid.errors import Unavailable, said_by
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.model.roles.runs import Record
from distributed_grid.roles.supervision.parts import RunParts

logger = logging.getLogger(__name__)

_TRIES: Final = 3


class RayExit:
    """The runs that this process must end before it leaves Ray, by `ray.shutdown()` or by exiting.

    Ray ends a process with exit code 1 if one of its threads calls Ray afterwards. And only before that can a run give
    back what it holds in good order.
    """

    def __init__(self) -> None:
        self._ends: dict[object, Callable[[], object]] = {}
        self._pid = os.getpid()

    def add(self, one: object, end: Callable[[], object]) -> None:
        """`end` returns once no thread of `one` calls Ray any more. It may be called again."""
        _hook_into_ray()
        self._ends[one] = end

    def drop(self, one: object) -> None:
        self._ends.pop(one, None)

    def __iter__(self) -> Iterator[object]:
        return iter([*self._ends])

    def end_all(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child, which owns none of this
        for end in reversed([*self._ends.values()]):
            try:
                end()
            except Exception as error:  # noqa: BLE001 (the others must end all the same, and so must Ray)
                logger.warning("Not everything ended before this process left Ray: %s", said_by(error))


RAY_EXIT: Final = RayExit()


@cache
def _hook_into_ray() -> None:
    """Every way out of Ray goes through `disconnect`: `ray.shutdown()`, however imported, and Ray's own exit hook."""
    from ray._private import worker

    leave = worker.disconnect

    @wraps(leave)
    def disconnect(*args: Any, **kwargs: Any) -> Any:
        RAY_EXIT.end_all()
        return leave(*args, **kwargs)

    worker.disconnect = disconnect
    atexit.register(RAY_EXIT.end_all)


def uninterrupted(work: Callable[[], object]) -> None:
    """Run `work` in a thread of its own, and wait for it.

    Signal handlers run in the main thread, between any two of its lines, and may call `ray.shutdown()`, which waits for
    this very work: in the main thread it would wait for itself. The waiting thread may be interrupted; the work
    continues.
    """
    outcome: SimpleQueue[BaseException | None] = SimpleQueue()  # a signal may interrupt its calls; they hold no lock

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (for the waiting thread)
            outcome.put(error)
        else:
            outcome.put(None)

    try:
        threading.Thread(target=run, name="grid-roles-ending", daemon=True).start()
    except RuntimeError:
        run()  # Python itself is ending, and starts no more threads
    if (error := outcome.get()) is not None:
        raise error


def let_go(parts: RunParts, give_back_boosts: Callable[[], object]) -> None:
    """End all processes and release all that is held for them. After an interruption, call it again for the rest."""
    for process in [*parts.process_set.by_name.values()]:
        attempt(parts, partial(parts.process_set.end, [process], parts.why))
    for one in list(parts.held):
        attempt(parts, partial(parts.places.give_back, [one]))
        parts.held = [other for other in parts.held if other is not one]
    attempt(parts, give_back_boosts)
    attempt(parts, parts.places.close)


def leave_record(parts: RunParts, records: RoleRecords, record: Record, *, forget: bool) -> None:
    """A failed run leaves its record, which says why it failed. A run that ended normally leaves nothing."""
    write = partial(records.remove_same if forget else records.write_record, record)
    attempt(parts, lambda: _insist(records, record, write))


def attempt(parts: RunParts, step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 (the other steps must be taken all the same)
        message = said_by(error)
        parts.note(f"while it ended: {message}")
        logger.warning("%s did not shut down cleanly; the rest ends with this process: %s", parts.name, message)


def _insist(records: RoleRecords, record: Record, write: Callable[[], object]) -> None:
    if not ray.is_initialized():
        try:
            records.owner_is_dead(record)  # this answers at once, or not at all
        except Unavailable:
            return  # the cluster is gone as well, with all its records
    for left in reversed(range(_TRIES)):
        try:
            write()
            return
        except Unavailable:
            if not left:
                raise
