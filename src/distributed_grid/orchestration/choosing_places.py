"""One look at the cluster, and what it means for those who want a place: chosen in their order, each on what the ones
before have left.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from distributed_grid.decide.permissions import may_change, owned_lease
from distributed_grid.decide.scheduling import BoostRoom, Choice, NodeColumns, Sought, choose_gang
from distributed_grid.decide.scheduling.calibration import Predicted
from distributed_grid.decide.scheduling.placing import choose_boost, order_of, places_for, promise, refusals
from distributed_grid.decide.scheduling.waiting import kept_for
from distributed_grid.execution.port import NodeView
from distributed_grid.model.leases import Cause, Lease
from distributed_grid.model.nodes import NodeId, NodeName, NodeTable
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.model.scheduled import ScheduledTask
from distributed_grid.monitoring.collector import Collector
from distributed_grid.orchestration.boost_rooms import boost_rooms
from distributed_grid.orchestration.judging_places import Judge
from distributed_grid.orchestration.logs import logger
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.scheduling_table import SchedulingTable

log = logger()

OVERDUE: Final = timedelta(seconds=30)
"""For a gang that waits longer, tasks behind it leave nodes alone. Single tasks have their places from the queue."""
_MOST_REASONS: Final = 50


@dataclass(frozen=True, slots=True)
class Flight:
    """A place that was chosen, and is being made true."""

    task: ScheduledTask
    choices: tuple[Choice, ...]
    predicted: Predicted
    nodes: tuple[NodeName, ...] | None = None
    """Where others wait: all nodes that will do, the best first, since the chosen one may be kept for those ahead."""

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
        """The places that can be had now. What is on its way already counts as taken.

        While others wait in the queue, a single task that may wait has its lease from there, and here only boosts.
        """
        columns = self.table.columns(nodes)
        self.table.promise({task_id: (flight.needs, flight.choices) for task_id, flight in flights.items()})
        taken, found = dict(flights), []
        kept: set[NodeName] = set()
        now = self._p.now()
        for task in waiting:
            if task.id in taken:
                continue
            rooms = self._boost_rooms(task, nodes, view, taken.values(), now)
            sought = self._sought(task, columns, rooms, taken.values(), kept)
            is_single, others_wait = task.request.count == 1, bool(self._p.sharing.waiting)
            if is_single and others_wait and task.request.wait:
                choices = choose_boost(sought)
            else:
                choices = choose_gang(sought, task.request.count)
            if choices is None:
                self.refusals[task.id] = self._why_not(sought, task)
                if now - task.asked_at > OVERDUE and not is_single:
                    kept |= kept_for(sought)
                continue
            order = order_of(sought) if is_single and others_wait else None
            flight = Flight(task, choices, self._judge.of_places(task, choices, columns), order)
            left = sought
            for choice in choices:
                left = promise(left, choice)
            taken[task.id] = flight
            found.append(flight)
        return found

    def orders(
        self, nodes: NodeTable, waiting: Iterable[ScheduledTask], wanted: Container[str], flights: dict[str, Flight]
    ) -> dict[str, tuple[NodeName, ...]]:
        """By task, of those wanted: the nodes that will do for it, the best first, as its own conditions and its
        strategy say. What is kept for gangs ahead of it is left out. `waiting`: all tasks that wait, in their order.
        """
        columns = self.table.columns(nodes)
        self.table.promise({task_id: (flight.needs, flight.choices) for task_id, flight in flights.items()})
        kept: set[NodeName] = set()
        found: dict[str, tuple[NodeName, ...]] = {}
        for task in waiting:
            if task.id in wanted:
                found[task.id] = self._order(self._sought(task, columns, (), flights.values(), kept))
            elif task.request.count > 1 and task.id not in flights and self._p.now() - task.asked_at > OVERDUE:
                kept |= kept_for(self._sought(task, columns, (), flights.values(), kept))
        return found

    def may_be_on(self, task: ScheduledTask, node: NodeName, flights: Iterable[Flight]) -> bool:
        """Whether its own conditions still allow a node, after other tasks have got their places."""
        if not (task.request.near.tasks or task.request.far.tasks):
            return True
        return node in self._order(self._sought(task, self.table.last, (), flights, set()))

    @staticmethod
    def _order(sought: Sought) -> tuple[NodeName, ...]:
        try:
            return order_of(sought)
        except Exception:
            log.exception("a strategy failed; its task waits", strategy=str(sought.request.strategy))
            return ()

    def _boost_rooms(
        self,
        task: ScheduledTask,
        nodes: NodeTable,
        view: Mapping[NodeId, NodeView],
        flights: Iterable[Flight],
        now: datetime,
    ) -> tuple[BoostRoom, ...]:
        """In boosts that the task's owner may change: who may not put a program into one gets no task in there."""
        state = self._p.sharing.scheduling
        owner = Principal(task.who, task.team, frozenset({Scope.LEND}))
        in_flight = [each for flight in flights for each in flight.in_boosts()]

        def may_use(lease: Lease) -> bool:
            return may_change(owner, owned_lease(lease), self._p.config.owners_of(lease.source))

        return boost_rooms(
            self._p.ledger,
            nodes,
            view,
            target=task.request.target or "",
            may_use=may_use,
            until=now + timedelta(seconds=task.request.duration_seconds or 0.0),
            promised=lambda boost: state.inside(boost) + total([needs for id_, needs in in_flight if id_ == boost]),
        )

    def _sought(
        self,
        task: ScheduledTask,
        columns: NodeColumns,
        rooms: tuple[BoostRoom, ...],
        flights: Iterable[Flight],
        kept: set[NodeName],
    ) -> Sought:
        return Sought(
            task.request,
            ResourceVector(task.needs),
            task.request.target or "",
            columns,
            rooms,
            self._peers(flights) if task.request.near.tasks or task.request.far.tasks else {},
            frozenset(self.not_on.get(task.id, ())),
            frozenset(kept),
        )

    def _peers(self, flights: Iterable[Flight]) -> dict[str, set[NodeName]]:
        """Where tasks have their places, or are about to have them: the queue may have granted one a moment ago."""
        state = self._p.sharing.scheduling
        found = state.peers()
        for lease in self._p.ledger:
            if lease.cause is Cause.SCHEDULED and (task := state.tasks.get(lease.label)) is not None and task.waits:
                for name in (task.id, *task.request.tags):
                    found.setdefault(name, set()).add(lease.source)
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
