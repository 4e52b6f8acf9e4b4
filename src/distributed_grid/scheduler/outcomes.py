"""Confidence of placements: predicted when a place is given, and later compared with what happened."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from distributed_grid.decide.scheduler import Choice, NodeColumns
from distributed_grid.decide.scheduler.confidence import START_LIMIT_S, Predicted, gets_a_place, horizon_of, stays_below
from distributed_grid.leases.state import EngineContext
from distributed_grid.model.leases import LeaseState
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import BUILT_IN, ResourceVector
from distributed_grid.model.scheduling import ScheduledTask
from distributed_grid.model.series import Forecast
from distributed_grid.monitoring.collector import Collector, settings_of


class Judge:
    """Predicts before, and checks the outcome after."""

    def __init__(self, parts: EngineContext, collector: Collector | None) -> None:
        self._p = parts
        self._collector = collector
        thresholds = settings_of(parts.config).thresholds
        self._high = {kind: thresholds[kind].high for kind in BUILT_IN}

    # -- before ---------------------------------------------------------------------------------------------

    def of_places(self, task: ScheduledTask, choices: Iterable[Choice], columns: NodeColumns) -> Predicted:
        """The confidence that all places start in time, on nodes that stay below the high threshold."""
        state, needs = self._p.sharing.scheduling, ResourceVector(task.needs)
        likely = state.delays.within(self._left_to_start(task))
        horizon = horizon_of(task.request.duration_seconds)
        for (node, in_boost), count in _by_node(choices).items():
            if node in columns.row:
                added = ResourceVector({kind: count * units for kind, units in needs.items()})
                likely *= stays_below(
                    columns, columns.row[node], added, self._high, self._ahead(node, horizon), is_there=in_boost
                )
        return state.calibrator.predict(likely)

    def of_waiting(self, task: ScheduledTask) -> Predicted:
        """The confidence that a waiting task gets a place in time."""
        now, state = self._p.now(), self._p.sharing.scheduling
        ends = [(end - now).total_seconds() for one in state.placed if (end := one.expected_end) is not None]
        wait_s = max(0.0, min(ends)) if ends else None
        return state.calibrator.predict(gets_a_place(task.request.deadline_seconds, wait_s))

    def _left_to_start(self, task: ScheduledTask) -> float:
        waited = 0.0 if task.request.deadline_seconds is None else (self._p.now() - task.asked_at).total_seconds()
        return max(0.0, _start_limit_s(task) - waited)

    def _ahead(self, node: NodeName, horizon_s: float) -> dict[str, Forecast]:
        if self._p.forecast is None:
            return {}
        found = {kind: self._p.forecast(node, kind, horizon_s) for kind in BUILT_IN}
        return {kind: forecast for kind, forecast in found.items() if forecast is not None}

    # -- after ----------------------------------------------------------------------------------------------

    def is_due(self, task: ScheduledTask) -> bool:
        """Whether the task was watched for long enough."""
        return (
            not task.is_judged
            and task.placed_at is not None
            and self._p.now() >= task.placed_at + timedelta(seconds=horizon_of(task.request.duration_seconds))
        )

    def settle(self, task: ScheduledTask, happened: bool | None = None) -> None:
        """Compare the prediction with what happened; without a measurement, nothing is learnt."""
        if task.is_judged:
            return
        came_true = self.came_true(task) if happened is None else happened
        if came_true is None:
            return
        for model, said in task.predicted:
            self._p.sharing.scheduling.calibrator.happened(Predicted(model, said), came_true)

    def came_true(self, task: ScheduledTask) -> bool | None:
        """Whether the prediction came true; None if that was not measured."""
        if task.placed_at is None:
            return False
        since = task.asked_at if task.request.deadline_seconds is not None else task.placed_at
        if (task.started_at or task.placed_at) - since > timedelta(seconds=_start_limit_s(task)):
            return False
        until = min(self._p.now(), task.placed_at + timedelta(seconds=horizon_of(task.request.duration_seconds)))
        below = [self._stayed_below(node, task.placed_at, until) for node in {m.runs_on for m in task.members}]
        return None if None in below else all(below)

    def _stayed_below(self, node: NodeName, since: datetime, until: datetime) -> bool | None:
        if self._collector is None:
            return None
        values = [value for kind in BUILT_IN for value in self._values(node, kind, since, until)]
        return all(values) if values else None

    def _values(self, node: NodeName, kind: str, since: datetime, until: datetime) -> list[bool]:
        """For each sample in that time, whether it was below; without samples, for the last measurement."""
        assert self._collector is not None
        series = self._collector.history.of(node, kind).known().since(since.timestamp())
        values = [
            float(value) for at, value in zip(series.times, series.values, strict=True) if at <= until.timestamp()
        ]
        if not values:
            seen = self._collector.snapshots().get(node)
            pressure = None if seen is None else seen.own_pressure(kind)
            values = [] if pressure is None else [pressure]
        return [value < self._high[kind] for value in values]

    def is_lost(self, lease_id: str) -> bool:
        """Whether the place was lost with its node."""
        lease = self._p.ledger.get(lease_id)
        return lease is not None and lease.state is LeaseState.LOST


def _start_limit_s(task: ScheduledTask) -> float:
    """Counted from the request, if the task has a deadline; else from its placement."""
    return START_LIMIT_S if task.request.deadline_seconds is None else task.request.deadline_seconds


def _by_node(choices: Iterable[Choice]) -> dict[tuple[NodeName, bool], int]:
    found: dict[tuple[NodeName, bool], int] = {}
    for choice in choices:
        key = (choice.runs_on, choice.boost is not None)
        found[key] = found.get(key, 0) + 1
    return found
