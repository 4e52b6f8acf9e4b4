"""One look at the cluster, and what it means for those who want a place: chosen in their order, each on what the ones
before have left.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.scheduling import Choice, NodeColumns, Sought, choose_gang
from distributed_grid.decide.scheduling.calibration import Predicted
from distributed_grid.decide.scheduling.placing import places_for, promise, refusals
from distributed_grid.decide.scheduling.waiting import kept_for
from distributed_grid.execution.port import NodeView
from distributed_grid.model.nodes import NodeId, NodeName, NodeTable
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.monitoring.collector import Collector
from distributed_grid.orchestration.boost_rooms import boost_rooms
from distributed_grid.orchestration.judging_places import Judge
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.scheduling_table import SchedulingTable

OVERDUE: Final = timedelta(seconds=30)
"""For who waits longer, those behind it leave nodes alone."""
_MOST_REASONS: Final = 50


@dataclass(frozen=True, slots=True)
class Flight:
    """A place that was chosen, and is being made true."""

    task: ScheduledTask
    choices: tuple[Choice, ...]
    predicted: Predicted

    @property
    def needs(self) -> ResourceVector:
        return ResourceVector(self.task.needs)

    def in_boosts(self) -> Iterator[tuple[str, ResourceVector]]:
        for choice in self.choices:
            if choice.boost is not None:
                yield choice.boost.id, self.needs


class Chooser:
    """Decides; changes nothing but its own table."""

    def __init__(self, parts: Parts, judge: Judge, collector: Collector | None) -> None:
        self._p = parts
        self._judge = judge
        self.table = SchedulingTable(parts, collector)
        self.not_on: dict[str, set[NodeName]] = {}
        """By task: nodes that had nothing for it after all."""
        self.refusals: dict[str, tuple[str, ...]] = {}
        """Of those who have no place: for every node, why not, as of the last look."""

    def choose(
        self,
        nodes: NodeTable,
        view: Mapping[NodeId, NodeView],
        waiting: Iterable[ScheduledTask],
        flights: dict[str, Flight],
    ) -> list[Flight]:
        """The places that can be had now. What is on its way already counts as taken."""
        columns = self.table.columns(nodes)
        self.table.promise({task_id: (flight.needs, flight.choices) for task_id, flight in flights.items()})
        taken, found = dict(flights), []
        kept: set[NodeName] = set()
        now = self._p.now()
        for task in waiting:
            if task.id in taken:
                continue
            sought = self._sought(task, columns, nodes, view, taken.values(), kept, now)
            choices = choose_gang(sought, task.request.count)
            if choices is None:
                self.refusals[task.id] = self._why_not(sought, task)
                if now - task.asked_at > OVERDUE:
                    kept |= kept_for(sought)
                continue
            flight = Flight(task, choices, self._judge.of_places(task, choices, columns))
            left = sought
            for choice in choices:
                left = promise(left, choice)
            taken[task.id] = flight
            found.append(flight)
        return found

    def _sought(
        self,
        task: ScheduledTask,
        columns: NodeColumns,
        nodes: NodeTable,
        view: Mapping[NodeId, NodeView],
        flights: Iterable[Flight],
        kept: set[NodeName],
        now: datetime,
    ) -> Sought:
        state = self._p.sharing.scheduling
        target = task.request.target or ""
        in_flight = [each for flight in flights for each in flight.in_boosts()]
        rooms = boost_rooms(
            self._p.ledger,
            nodes,
            view,
            target=target,
            team=task.team,
            until=now + timedelta(seconds=task.request.duration_seconds or 0.0),
            promised=lambda boost: state.inside(boost) + total([needs for id_, needs in in_flight if id_ == boost]),
        )
        return Sought(
            task.request,
            ResourceVector(task.needs),
            target,
            columns,
            rooms,
            self._peers(flights) if task.request.near.tasks or task.request.far.tasks else {},
            frozenset(self.not_on.get(task.id, ())),
            frozenset(kept),
        )

    def _peers(self, flights: Iterable[Flight]) -> dict[str, set[NodeName]]:
        found = self._p.sharing.scheduling.peers()
        for flight in flights:
            for name in (flight.task.id, *flight.task.request.tags):
                found.setdefault(name, set()).update(choice.node for choice in flight.choices)
        return found

    def _why_not(self, sought: Sought, task: ScheduledTask) -> tuple[str, ...]:
        told = [f"{node}: {why}" for node, why in refusals(sought).items()]
        more = [f"and {len(told) - _MOST_REASONS} more nodes"] if len(told) > _MOST_REASONS else []
        if task.request.count > 1:
            fit = len(places_for(sought, task.request.count))
            told = [f"only {fit} of {task.request.count} have a place, and none is taken without the others", *told]
        return (*told[:_MOST_REASONS], *more)

    def forget(self, task_id: str) -> None:
        self.not_on.pop(task_id, None)
        self.refusals.pop(task_id, None)
