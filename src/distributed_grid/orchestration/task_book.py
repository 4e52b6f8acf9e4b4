"""The scheduler's book of tasks: who came, has a place, waits, or is done; each change is told to the journal."""

from collections import OrderedDict
from dataclasses import replace
from typing import Final

from distributed_grid.decide.scheduling.calibration import Predicted
from distributed_grid.decide.scheduling.strategies import strategy_named
from distributed_grid.errors import RequestNotFound
from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.model.scheduling import Placement, SchedulingDecision
from distributed_grid.orchestration.choosing_places import Chooser, Flight
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.task_leases import TaskLeases, positions

_REMEMBERED: Final = 1000
"""So many decisions about tasks that are gone can still be asked for."""


class TaskBook:
    def __init__(self, parts: Parts, chooser: Chooser, leases: TaskLeases) -> None:
        """`chooser` knows why the last look had no place for a task, and forgets that with the task."""
        self._p = parts
        self._leases = leases
        self._chooser = chooser
        self.state = parts.sharing.scheduling
        self._ended: OrderedDict[str, SchedulingDecision] = OrderedDict()

    def find(self, task_id: str) -> SchedulingDecision:
        """What was decided about a task last; raises `RequestNotFound` if nobody knows it."""
        task = self.state.tasks.get(task_id)
        if task is not None:
            return task.decision(positions(self._p).get(task_id) if task.waits else None)
        if task_id in self._ended:
            return self._ended[task_id]
        raise RequestNotFound(f"No task with the id {task_id!r}")

    def placed(self, flight: Flight, places: tuple[Placement, ...], *reasons: str) -> None:
        task, first = self.state.tasks.get(flight.task.id, flight.task), flight.choices[0]
        self.state.tasks[task.id] = replace(
            task,
            members=places,
            placed_at=self._p.now(),
            predicted=(*task.predicted, (flight.predicted.model, flight.predicted.said)),
            reasons=reasons or _why(flight),
            alternatives=first.alternatives,
        )
        self._chooser.forget(task.id)
        self.state.results["accepted"] += 1
        where = ", ".join(dict.fromkeys(choice.runs_on for choice in flight.choices))
        told = f"task {task.id} has a place on {where}"
        self._p.journal.note("task_placed", told, who=task.who, node=first.runs_on, task=task.id)

    def queued(self, task: ScheduledTask, said: Predicted) -> None:
        reasons = self._chooser.refusals.get(task.id, ())
        self.state.tasks[task.id] = replace(task, predicted=((said.model, said.said),), reasons=reasons)
        self.state.results["queued"] += 1
        self._p.journal.note("task_queued", f"task {task.id} waits for a place", who=task.who, task=task.id)

    def rejected(self, task: ScheduledTask, *first: str) -> SchedulingDecision:
        reasons = (*first, *self._chooser.refusals.get(task.id, task.reasons))
        self.state.results["rejected"] += 1
        told = f"task {task.id} has no place: {'; '.join(reasons)}"
        self._p.journal.note("task_rejected", told, who=task.who, task=task.id, because=list(reasons))
        return self.ended(task, *reasons)

    def done(self, task: ScheduledTask, *, who: str) -> None:
        what = "was taken back before it had a place" if task.waits else "is done"
        self._p.journal.note("task_done", f"task {task.id} {what}", who=who, task=task.id)
        self.ended(task, f"it {what}")

    def lost(self, task: ScheduledTask, gone: list[Placement]) -> None:
        """What is left of a gang is kept: whoever runs it decides what becomes of that."""
        told = f"task {task.id} has lost its place on {gone[0].runs_on}"
        self._p.journal.note("task_lost", told, who=task.who, node=gone[0].runs_on, task=task.id)
        left = tuple(member for member in task.members if member not in gone)
        if left:
            self.state.tasks[task.id] = replace(task, members=left, is_judged=True)
        else:
            self.ended(task, told)

    def ended(self, task: ScheduledTask, *reasons: str) -> SchedulingDecision:
        self.state.tasks.pop(task.id, None)
        self._leases.withdraw(task.id)
        self._chooser.forget(task.id)
        decision = self._ended[task.id] = SchedulingDecision(task.id, accepted=False, reasons=reasons)
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return decision


def _why(flight: Flight) -> tuple[str, ...]:
    first, name = flight.choices[0], str(flight.task.request.strategy)
    where = f"boost {first.boost.id[:8]} has room for it" if first.boost else "it has room for it"
    others = f"{first.could} node{'s' * (first.could != 1)} could carry it"
    gang = () if len(flight.choices) == 1 else (f"all {len(flight.choices)} have a place",)
    return (f"{first.node}: {where}", f"{name}: {strategy_named(name).told}", others, *gang)
