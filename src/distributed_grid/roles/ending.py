"""Ending a run: each step is taken whatever became of the others, so that nothing stays for want of something else."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import ray

from distributed_grid.errors import Unavailable, said_by
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.model.roles.runs import Record
from distributed_grid.roles.keeping.parts import RunParts

logger = logging.getLogger(__name__)

_TRIES: Final = 3


def let_go(parts: RunParts, give_back_boosts: Callable[[], object]) -> None:
    """All processes and all that is held for them. Who was interrupted in it calls it again, for what is left."""
    for post in [*parts.crew.posts.values()]:
        attempt(parts, partial(parts.crew.dismiss, [post], parts.why))
    for one in list(parts.held):
        attempt(parts, partial(parts.places.give_back, [one]))
        parts.held = [other for other in parts.held if other is not one]
    attempt(parts, give_back_boosts)
    attempt(parts, parts.places.close)


def leave_record(parts: RunParts, records: RoleRecords, record: Record, *, forget: bool) -> None:
    """Why a run failed is of use to somebody who asks; one that ended as it should leaves nothing."""
    write = partial(records.remove_same if forget else records.write_record, record)
    attempt(parts, lambda: _insist(records, record, write))


def attempt(parts: RunParts, step: Callable[[], object]) -> None:
    try:
        step()
    except Exception as error:  # noqa: BLE001 (the other steps are to be taken all the same)
        told = said_by(error)
        parts.note(f"while it ended: {told}")
        logger.warning("%s did not end as it should; what is left of it ends with this process: %s", parts.name, told)


def _insist(records: RoleRecords, record: Record, write: Callable[[], object]) -> None:
    if not ray.is_initialized():
        try:
            records.owner_is_dead(record)  # this is answered at once, or not at all
        except Unavailable:
            return  # the cluster has gone as well, with all its records
    for left in reversed(range(_TRIES)):
        try:
            write()
            return
        except Unavailable:
            if not left:
                raise
