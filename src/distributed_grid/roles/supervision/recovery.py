"""Restarts failed processes of a run as `decide/roles/processes.py` says, in the same place or in another."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from distributed_grid.decide.roles.planner import plan_more
from distributed_grid.decide.roles.processes import Failing, recover, restarts_due
from distributed_grid.errors import GridError, said_by
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.roles.plan import DoesNotFit
from distributed_grid.model.roles.processes import EndAsked, Moved, PlaceMissing, StartFailed
from distributed_grid.roles.supervision.managed import Fault, ManagedProcess
from distributed_grid.roles.supervision.parts import RunParts
from distributed_grid.roles.supervision.places import NotHeld
from distributed_grid.roles.supervision.surveying import Survey

_LOOK_S: Final = 1.0


class Restarts:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._looked_at = 0.0

    def recover(self, faults: Sequence[Fault]) -> str:
        """Handle each fault. Returns why the run cannot continue, or an empty string."""
        process_set = self._p.process_set
        failed = {fault.process.name: fault for fault in faults}
        self._p.failures.update(role for fault in failed.values() for role in fault.process.key)
        failing = {name: Failing(fault.what, fault.why) for name, fault in failed.items()}
        found = recover(process_set.statuses, failing, self._p.failures, self._p.workload, time.monotonic())
        for note in found.notes:
            self._p.note(note)
        if found.fatal:
            return found.fatal
        processes = process_set.by_name
        process_set.send([(processes[name], event) for name, event in found.events])
        for name, event in found.events:
            if isinstance(event, EndAsked):
                self._p.wanted |= {role: process_set.count(role) for role in processes[name].key}
        self._p.give_back_empty()
        self.start_pending(at_once=True)
        return ""

    def start_pending(self, *, at_once: bool = False) -> None:
        """Restart the processes that have places. From time to time, look for places for the others."""
        now = time.monotonic()
        due = restarts_due(self._p.process_set.statuses, now)
        if not due or not (at_once or now - self._looked_at > _LOOK_S):
            return
        self._looked_at = now
        survey = self._p.surveyor.look()
        for group in due:
            processes = [self._p.process_set.by_name[one.name] for one in group]
            for process in processes:
                if not self._has_place(process, survey):
                    survey = self._move(process, survey)
            if all(self._has_place(process, survey) for process in processes):
                self._start(processes, is_gang=group[0].gang is not None)

    def _start(self, processes: Sequence[ManagedProcess], *, is_gang: bool) -> None:
        """If Ray does not accept them, they wait for the next look."""
        try:
            self._p.process_set.start(processes, new_ports=is_gang)
        except Exception as error:  # noqa: BLE001 (Ray is away for a moment, or the error says why in the record)
            failed = StartFailed(f"it could not be started: {said_by(error)}")
            self._p.process_set.send([(process, failed) for process in processes])

    def _has_place(self, process: ManagedProcess, survey: Survey) -> bool:
        """A place that is being reclaimed does not count for a restart."""
        places, held = self._p.places, process.held
        is_there = held.node_id in survey.ids.values() and places.lost(held, ask=True) is None
        return is_there and places.ending_of(held) is None

    def _move(self, process: ManagedProcess, survey: Survey) -> Survey:
        """Move its unit, with all processes in it, to another place if there is one. Returns what is then free."""
        process_set, moving = self._p.process_set, process.status.unit
        others = [unit for unit in self._p.units() if unit != moving]
        found = plan_more(self._p.workload, {process.key[0]: 1}, survey.inventory, others)
        if isinstance(found, DoesNotFit):
            return self._waits(process, survey, found.reasons[0].detail if found.reasons else found.headline)
        (unit,) = found.units
        unit = replace(unit, members=tuple(replace(m, index=process.spec.index) for m in unit.members))
        try:
            (held,) = self._p.hold([unit], survey)
        except (GridError, NotHeld) as error:
            return self._waits(process, survey, str(error))
        mates = [one for one in process_set.by_name.values() if one.status.unit == moving]
        process_set.send([(one, Moved(unit, held)) for one in mates])
        self._p.note(f"{process.name.partition('/')[2]} moves to {unit.node}")
        self._p.give_back_empty()
        return replace(survey, inventory=survey.inventory.with_more({unit.node: ResourceVector() - unit.resources}))

    def _waits(self, process: ManagedProcess, survey: Survey, why: str) -> Survey:
        self._p.process_set.send([(process, PlaceMissing(f"it waits for another node: {why}"))])
        return survey
