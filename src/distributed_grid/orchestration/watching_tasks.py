"""Tasks while time passes: a deadline goes by, a place is lost, what was said of one can be judged."""

from dataclasses import replace

from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.model.scheduling import Placement
from distributed_grid.orchestration.judging_places import Judge
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.task_book import TaskBook
from distributed_grid.orchestration.task_leases import TaskLeases


class TaskWatch:
    def __init__(self, parts: Parts, judge: Judge, book: TaskBook, leases: TaskLeases) -> None:
        self._p = parts
        self._leases = leases
        self._judge = judge
        self._book = book

    def look_at(self, task: ScheduledTask) -> bool:
        """Whether something about it has changed."""
        return self._give_up_if_late(task) if task.waits else self._see_to_its_place(task)

    def _give_up_if_late(self, task: ScheduledTask) -> bool:
        if not task.request.wait or task.start_by is None or self._p.now() < task.start_by:
            return False
        if self._leases.of(task.id, who=task.who):  # it is just being given its place
            return False
        self._judge.settle(task, happened=False)
        self._book.rejected(task, "its deadline has passed")
        return True

    def _see_to_its_place(self, task: ScheduledTask) -> bool:
        gone = [member for member in task.members if not self._is_held(member)]
        if gone:
            lost = any(self._judge.is_lost(_lease_of(member)) for member in gone)
            self._judge.settle(task, happened=False if lost else None)
            self._book.lost(task, gone)
        elif task.is_forgotten(self._p.now()):
            self._judge.settle(task)
            self._book.done(task, who="grid")
        elif self._judge.is_due(task):
            self._judge.settle(task)
            self._p.sharing.scheduling.tasks[task.id] = replace(task, is_judged=True)
        else:
            return False
        return True

    def _is_held(self, member: Placement) -> bool:
        lease = self._p.ledger.get(_lease_of(member))
        return lease is not None and not lease.is_winding_down


def _lease_of(member: Placement) -> str:
    """One of its own, or the boost that it is in."""
    return member.lease_id or member.boost_id or ""
