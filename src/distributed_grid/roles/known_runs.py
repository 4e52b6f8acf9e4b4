"""The runs of a cluster as anybody sees them, and what anybody may ask of them.

Their owners do it. A run whose owner is gone is lost: the controller frees what it holds, or, without one, the next run
that starts does; its record is removed by whoever ends it, or takes its name.
"""

import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime
from typing import Any, Final

from distributed_grid.client import GridClient
from distributed_grid.decide.roles.runs import counts_for, down_answer, is_old, not_ended, short_run
from distributed_grid.errors import GridError, RoleRunNotFound
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.model.roles.runs import Record, RunState, as_seen, is_over

_LOOK_S: Final = 0.1
_SURE_S: Final = 1.0
"""A process that began just now may not be known to Ray yet."""


class KnownRuns:
    """Reads records and leaves wishes. Calls block for a moment.

    `find_controller`: for processes other than the controller's own, since only that gives leases back at once.
    """

    def __init__(self, records: RoleRecords, find_controller: Callable[[], GridClient | None] = lambda: None) -> None:
        self._records = records
        self._find_controller = find_controller

    def all(self) -> list[dict[str, Any]]:
        """Each in short, the youngest first."""
        read = map(self._records.read_record, self._records.names())
        found = [record for record in read if record is not None]  # None: it was removed meanwhile
        dead = self._records.with_dead_owners(record for record in found if not is_over(record))
        seen = [as_seen(record, owner_is_dead=record["name"] in dead) for record in found]
        return sorted(map(short_run, seen), key=lambda run: (run["began_at"], run["name"]), reverse=True)

    def one(self, name: str) -> dict[str, Any]:
        """Its record, and what is wished of it that its owner has not heard yet."""
        record = self._records.read_record(name)
        if record is None:
            raise RoleRunNotFound(f"No run of roles has the name {name!r:.120}", try_next="grid roles status")
        dead = not is_over(record) and self._records.owner_is_dead(record)
        return {**as_seen(record, owner_is_dead=dead), "wished": self._records.wished(name)}

    def scale(self, name: str, role: str, count: int) -> dict[str, Any]:
        """Ask for another count of a role, and of those that share its place."""
        self._records.wish(name, counts=counts_for(self.one(name), role, count))
        return self.one(name)

    def down(self, name: str, *, only_over: bool = False) -> dict[str, Any]:
        """Ask a run to end; of one that is over, clear away what is left, and forget it.

        `only_over`: but for another one, which may have taken its name meanwhile.
        """
        seen = self.one(name)
        if is_over(seen):
            self._records.clear_away(seen)
            return down_answer(seen, removed=True)
        if not only_over:
            self._records.wish(name, down=True)
        return down_answer(seen, removed=False)

    def end(self, name: str, within_s: float | None) -> None:
        """Ask a run to end, and wait until it has; raises if it has not after so long. None: as long as it takes."""
        deadline = None if within_s is None else time.monotonic() + within_s
        asked = False
        while (seen := self._seen(name)) is not None and not is_over(seen):
            if not asked:
                self._records.wish(name, down=True)
                asked = True
            if within_s is not None and deadline is not None and time.monotonic() >= deadline:
                raise not_ended(seen, within_s)
            time.sleep(_LOOK_S)
        if seen is not None and seen["state"] == RunState.LOST:
            self._clear_away(name)

    def claim(self, record: Record) -> Record | None:
        """For a run that begins: None if it has its name now, or the record of the run that has it."""
        there = self._records.claim(record)
        if there is not None and self._records.owner_is_dead(there):
            self._clear_away(record["name"])
            there = self._records.claim(record)
        return there

    def forget_old(self, now: datetime) -> None:
        """Those that have long been over, so that they do not pile up."""
        for run in self.all():
            if is_old(run, now):
                self._records.clear_away(run)

    def free_lost(self) -> None:
        """What lost runs still hold, as the controller does where there is one. Two looks must agree here, too."""
        held = frozenset(run for run in self._records.lost() if self._records.has_groups(run))
        if held:
            time.sleep(_SURE_S)
            for run in held & self._records.lost():
                self._records.remove_groups(run)

    def _seen(self, name: str) -> dict[str, Any] | None:
        try:
            return self.one(name)
        except RoleRunNotFound:
            return None

    def _clear_away(self, lost: str) -> None:
        if (controller := self._find_controller()) is not None:
            with closing(controller), suppress(GridError):  # where it does not, its leases end by themselves soon
                controller.role_run_down(lost, only_over=True)
        seen = self._seen(lost)
        if seen is not None and is_over(seen):
            self._records.clear_away(seen)
