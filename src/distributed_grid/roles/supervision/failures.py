"""Handles failed processes of a run as `decide.roles.failures` judges, in the same place or in another."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from distributed_grid.decide.roles.failures import judge_failures, restart_at
from distributed_grid.decide.roles.planner import plan_more
from distributed_grid.errors import GridError, said_by
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.roles.plan import DoesNotFit
from distributed_grid.model.roles.runs import Act, Failure, Verdict
from distributed_grid.roles.supervision.managed import Fault, ManagedProcess, ProcessState
from distributed_grid.roles.supervision.parts import RunParts
from distributed_grid.roles.supervision.places import NotHeld
from distributed_grid.roles.supervision.surveying import Survey

_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class PendingRestart:
    """Processes that restart together, once each of them has a place."""

    processes: tuple[ManagedProcess, ...]
    is_gang: bool
    not_before: float


class Recovery:
    def __init__(self, parts: RunParts) -> None:
        self._p = parts
        self._waiting: list[PendingRestart] = []
        self._looked_at = 0.0

    def recover(self, faults: Sequence[Fault]) -> str:
        """Handle each fault. Returns why the run cannot continue, or an empty string."""
        failed = {fault.process.name: fault for fault in faults}
        self._p.failures.update(role for fault in failed.values() for role in fault.process.key)
        verdicts = judge_failures((self._failure(fault, failed) for fault in failed.values()), self._p.workload)
        for verdict in verdicts:
            self._p.note(verdict.reason)
            if verdict.act is Act.END:
                return verdict.reason
        for verdict in verdicts:
            self._carry_out(verdict, failed)
        self._p.give_back_empty()
        self.start_pending(at_once=True)
        return ""

    def start_pending(self, *, at_once: bool = False) -> None:
        """Start the processes that have places. From time to time, look for places for the others."""
        now = time.monotonic()
        waiting = [pending for pending in self._waiting if now >= pending.not_before]
        if not waiting or not (at_once or now - self._looked_at > _LOOK_S):
            return
        self._looked_at = now
        survey = self._p.surveyor.look()
        for pending in waiting:
            # A process that was scaled away or given up meanwhile is skipped.
            processes = [
                process for process in pending.processes if self._p.process_set.by_name.get(process.name) is process
            ]
            for process in processes:
                if not self._has_place(process, survey):
                    survey = self._move(process, survey)
            if all(self._has_place(process, survey) for process in processes) and self._start(processes, pending):
                self._waiting.remove(pending)

    def _start(self, processes: Sequence[ManagedProcess], pending: PendingRestart) -> bool:
        """Whether Ray accepted them. If not, they wait for the next look."""
        try:
            self._p.process_set.start(processes, new_ports=pending.is_gang)
        except Exception as error:  # noqa: BLE001 (Ray is away for a moment, or the error says why in the record)
            for process in processes:
                self._p.process_set.stop(process, ProcessState.RESTARTING, f"it could not be started: {said_by(error)}")
            return False
        return True

    def _failure(self, fault: Fault, failed: Iterable[str]) -> Failure:
        process = fault.process
        mates = self._p.process_set.of_roles(process.key)
        left = [mate for mate in mates if mate.name not in failed and mate.state is not ProcessState.GONE]
        return Failure(
            role=process.key[0],
            index=process.spec.index,
            restarts=process.restarts,
            failures={role: self._p.failures[role] for role in process.key},
            left=len(left),
            node=process.spec.node,
            what=fault.what,
            why=fault.why,
        )

    def _carry_out(self, verdict: Verdict, failed: dict[str, Fault]) -> None:
        process_set = self._p.process_set
        concerned = process_set.of_roles(verdict.roles)
        if verdict.act is Act.RESTART_GANG:
            self._restart(concerned, in_gang=True)
            return
        mine = [process for process in concerned if process.spec.index == verdict.index and process.name in failed]
        if verdict.act is Act.RESTART:
            self._restart(mine, in_gang=False)
            return
        process_set.end(mine, verdict.reason)
        for role in verdict.roles:
            self._p.wanted[role] = process_set.count(role)

    def _restart(self, processes: Sequence[ManagedProcess], *, in_gang: bool) -> None:
        process_set = self._p.process_set
        gang = frozenset(process.name for process in processes) if in_gang else None
        for process in processes:  # all of them first: while some of a gang end, none may still be called
            for endpoint in process.endpoints:
                endpoint.disconnect("it restarts")
        now = time.monotonic()
        not_before = max(
            (restart_at(process.restarts + 1, began=process.since, now=now) for process in processes), default=now
        )
        why = f"it restarts{f' after {not_before - now:g} s' if not_before > now else ''}"
        for process in processes:
            process_set.stop(process, ProcessState.RESTARTING, why)
            process.restarts += 1
            process.gang = gang
        # A gang that is already waiting to restart does so together with the processes that failed now.
        again = {process.name for process in processes}
        self._waiting = [one for one in self._waiting if not again & {process.name for process in one.processes}]
        self._waiting.append(PendingRestart(tuple(processes), in_gang, not_before))

    def _has_place(self, process: ManagedProcess, survey: Survey) -> bool:
        """A place that is being reclaimed does not count for a restart."""
        places, held = self._p.places, process.held
        is_there = held.node_id in survey.ids.values() and places.lost(held, ask=True) is None
        return is_there and places.asked(held) is None

    def _move(self, process: ManagedProcess, survey: Survey) -> Survey:
        """Move its unit, with all processes in it, to another place if there is one. Returns what is then free."""
        process_set, workload = self._p.process_set, self._p.workload
        others = [unit for unit in self._p.units() if unit != process.unit]
        found = plan_more(workload, {process.key[0]: 1}, survey.inventory, others)
        if isinstance(found, DoesNotFit):
            process.why = f"it waits for another node: {found.reasons[0].detail if found.reasons else found.headline}"
            return survey
        (unit,) = found.units
        unit = replace(unit, members=tuple(replace(m, index=process.spec.index) for m in unit.members))
        try:
            held = self._p.hold([unit], survey)
        except (GridError, NotHeld) as error:
            process.why = f"it waits for another node: {error}"
            return survey
        mates = [one for one in process_set.by_name.values() if one.unit == process.unit]
        for one in mates:
            one.unit, one.held = unit, held[0]
            one.spec = replace(one.spec, node=unit.node)
            for endpoint in one.endpoints:
                endpoint.node = unit.node
        self._p.note(f"{process.name.partition('/')[2]} moves to {unit.node}")
        self._p.give_back_empty()
        return replace(survey, inventory=survey.inventory.with_more({unit.node: ResourceVector() - unit.resources}))
