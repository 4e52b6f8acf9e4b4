"""What the scheduler keeps in mind: tasks, and how good what it said of their places was."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.decide.scheduling.calibration import Calibrator, Outcome, Predicted
from distributed_grid.decide.scheduling.confidence import StartDelays
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.model.scheduled import ScheduledTask, SchedulingRecord

# All are rewritten with every task, so only so many are kept over a restart.
_OUTCOMES_KEPT: Final = 200
_DELAYS_KEPT: Final = 50


@dataclass
class SchedulingState:
    """Owned by the one writer."""

    tasks: dict[str, ScheduledTask] = field(default_factory=dict)
    """By id: those that have a place, and those that wait, in the order in which they came."""
    calibrator: Calibrator = field(default_factory=Calibrator)
    delays: StartDelays = field(default_factory=StartDelays)
    results: Counter[str] = field(default_factory=Counter)
    """How often it was said: accepted, queued, rejected."""

    def take(self, record: SchedulingRecord) -> None:
        """Go on from what was on disk."""
        self.tasks = {task.id: task for task in record.tasks}
        found = (Outcome(Predicted(model, said), happened) for model, said, happened in record.outcomes)
        self.calibrator, self.delays = Calibrator(found), StartDelays(record.start_delays_s)

    def record(self) -> SchedulingRecord:
        last = list(self.calibrator.outcomes)[-_OUTCOMES_KEPT:]
        return SchedulingRecord(
            tuple(task for task in self.tasks.values() if not task.waits or task.request.wait),
            tuple((round(o.predicted.model, 4), round(o.predicted.said, 4), o.happened) for o in last),
            tuple(round(delay, 3) for delay in list(self.delays.known)[-_DELAYS_KEPT:]),
        )

    @property
    def placed(self) -> list[ScheduledTask]:
        return [task for task in self.tasks.values() if not task.waits]

    @property
    def waiting(self) -> list[ScheduledTask]:
        """In the order in which they came; whose turn it is, the order of claims says."""
        return [task for task in self.tasks.values() if task.waits]

    def peers(self) -> dict[str, set[NodeName]]:
        """Where tasks count as placed, by their ids and tags."""
        found: dict[str, set[NodeName]] = {}
        for task in self.placed:
            for name in (task.id, *task.request.tags):
                found.setdefault(name, set()).update(member.node for member in task.members)
        return found

    def inside(self, boost_id: str) -> ResourceVector:
        """What tasks were promised in a boost."""
        return total([needs for where, needs in self._in_boosts() if where == boost_id])

    def _in_boosts(self) -> Iterator[tuple[str, ResourceVector]]:
        for task in self.placed:
            for member in task.members:
                if member.boost_id is not None:
                    yield member.boost_id, ResourceVector(task.needs)
