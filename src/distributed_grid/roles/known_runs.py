"""The runs of a cluster as any process sees them, and the requests that any process may make of them.

The owner of a run carries requests out. A run whose owner is gone is lost: the controller frees what it holds. Without
a controller, the next run that starts does that. The record is removed when a caller ends the run, or when a new run
takes its name.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

from distributed_grid.client import GridClient
from distributed_grid.decide.roles.runs import counts_for, is_old, left_behind, not_ended, short_run
from distributed_grid.errors import GridError, RoleRunNotFound
from distributed_grid.execution.role_records import RoleRecords
from distributed_grid.model.roles.runs import Record, RunState, as_seen, is_over

if TYPE_CHECKING:
    from distributed_grid.wire.roles import RoleRun, RoleRunDown, RoleRunShort

_LOOK_S: Final = 0.1
SURE_S: Final = 1.0
"""Ray may not know a process yet that has only just started."""


class KnownRuns:
    """Reads records and leaves requests. Calls block for a moment.

    `find_controller`: for processes other than the controller's own, since only the controller returns leases at once.
    """

    def __init__(self, records: RoleRecords, find_controller: Callable[[], GridClient | None] = lambda: None) -> None:
        self._records = records
        self._find_controller = find_controller

    def all(self) -> list[RoleRunShort]:
        """A summary of each run, the youngest first."""
        read = map(self._records.read_record, self._records.names())
        found = [record for record in read if record is not None]  # None: the record was removed meanwhile
        dead = self._records.with_dead_owners(record for record in found if not is_over(record))
        seen = [as_seen(record, owner_is_dead=record["name"] in dead) for record in found]
        return sorted(map(short_run, seen), key=lambda run: (run["began_at"], run["name"]), reverse=True)

    def one(self, name: str) -> RoleRun:
        """Its record, and the requests that its owner has not seen yet."""
        record = self._records.read_record(name)
        if record is None:
            raise RoleRunNotFound(f"No run of roles has the name {name!r:.120}", try_next="grid roles status")
        dead = not is_over(record) and self._records.owner_is_dead(record)
        return {**as_seen(record, owner_is_dead=dead), "pending_command": self._records.pending_command(name)}

    def scale(self, name: str, role: str, count: int) -> RoleRun:
        """Ask for another count of a role, and of the roles that share its place."""
        self._records.send_command(name, counts=counts_for(self.one(name), role, count))
        return self.one(name)

    def down(self, name: str, *, only_over: bool = False) -> tuple[RoleRunDown, list[str]]:
        """Ask a run to end. If it has already ended, clean up what is left and remove its record.

        Also returns the leases that a run which is over has left behind.

        `only_over`: do not ask a running run to end: another run may have taken the name meanwhile.
        """
        seen = self.one(name)
        if is_over(seen):
            self._records.clear_away(seen)
            return {"name": name, "state": seen["state"], "removed": True}, left_behind(seen)
        if not only_over:
            self._records.send_command(name, down=True)
        return {"name": name, "state": seen["state"], "removed": False}, []

    def end(self, name: str, within_s: float | None) -> None:
        """Ask a run to end, and wait until it has. Raises if it has not after `within_s`; None: no limit."""
        deadline = None if within_s is None else time.monotonic() + within_s
        is_requested = False
        while (seen := self._seen(name)) is not None and not is_over(seen):
            if not is_requested:
                self._records.send_command(name, down=True)
                is_requested = True
            if within_s is not None and deadline is not None and time.monotonic() >= deadline:
                raise not_ended(seen, within_s)
            time.sleep(_LOOK_S)
        if seen is not None and seen["state"] == RunState.LOST:
            self._clear_away(name)

    def register(self, record: Record) -> Record | None:
        """For a run that starts: None if it now has its name, else the record of the run that has it."""
        there = self._records.register(record)
        if there is not None and self._records.owner_is_dead(there):
            self._clear_away(record["name"])
            there = self._records.register(record)
        return there

    def forget_old(self, now: datetime) -> None:
        """Remove the records of runs that ended long ago, so that they do not pile up."""
        for run in self.all():
            if is_old(run, now):
                self._records.clear_away(run)

    def free_lost(self) -> None:
        """Free what lost runs still hold, as a controller does where one runs. Two looks must agree here, too."""
        held = frozenset(run for run in self._records.lost() if self._records.has_groups(run))
        if held:
            time.sleep(SURE_S)
            for run in held & self._records.lost():
                self._records.remove_groups(run)

    def _seen(self, name: str) -> RoleRun | None:
        try:
            return self.one(name)
        except RoleRunNotFound:
            return None

    def _clear_away(self, lost: str) -> None:
        if (controller := self._find_controller()) is not None:
            with closing(controller), suppress(GridError):  # if the controller fails, the leases soon end by themselves
                controller.role_run_down(lost, only_over=True)
        seen = self._seen(lost)
        if seen is not None and is_over(seen):
            self._records.clear_away(seen)
