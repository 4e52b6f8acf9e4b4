"""Choosing places: one look at the cluster, then every waiting task in order, each with what earlier ones left.

The table of nodes is updated row by row. Free room in a target's reserved boosts counts. Strategies can come from other
packages, by entry point.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import entry_points
from typing import Final

from distributed_grid.decide.leases.ownership import may_change, owned_lease
from distributed_grid.decide.scheduler import BoostRoom, Choice, NodeColumns, Sought, choose_gang, register_strategy
from distributed_grid.decide.scheduler.confidence import Predicted
from distributed_grid.decide.scheduler.feasibility import earmarks_for
from distributed_grid.decide.scheduler.placing import choose_boost, order_of, places_for, promise, refusals
from distributed_grid.execution.port import NodeView
from distributed_grid.leases.ledger import Ledger
from distributed_grid.leases.rules import rules_for
from distributed_grid.leases.state import EngineContext
from distributed_grid.logs import logger
from distributed_grid.model.demand import Demand
from distributed_grid.model.leases import Cause, Lease, LeaseState, Purpose
from distributed_grid.model.nodes import Node, NodeId, NodeName, NodeTable, gpu_part
from distributed_grid.model.plans import Rules
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, ResourceVector, ray_name, total
from distributed_grid.model.scheduling import ScheduledTask
from distributed_grid.monitoring.collector import Collector
from distributed_grid.scheduler.outcomes import Judge


def carries_tasks(lease: Lease) -> bool:
    """Whether tasks can run in this boost: its group exists, and it is not being reclaimed."""
    return (
        lease.purpose is Purpose.BOOST
        and lease.state is LeaseState.ACTIVE
        and lease.placement_group is not None
        and lease.notice is None
    )


def boost_rooms(
    ledger: Ledger,
    nodes: NodeTable,
    view: Mapping[NodeId, NodeView],
    *,
    target: NodeName,
    may_use: Callable[[Lease], bool],
    until: datetime,
    promised: Callable[[str], list[ResourceVector]],
) -> tuple[BoostRoom, ...]:
    """The free room in each boost that lasts until then and that the task's owner may use: what is neither promised to
    a task nor, as Ray shows it, in use.

    The use that Ray shows may come from those same tasks: the larger of the two counts, not both.
    """
    found = []
    for lease in ledger:
        if lease.target != target or lease.expires_at < until or not carries_tasks(lease) or not may_use(lease):
            continue
        if lease.source not in nodes or not nodes[lease.source].alive:
            continue
        used, each = _used(lease, view.get(nodes[lease.source].node_id)), promised(lease.id)
        taken = total(each)
        free = {kind: units - max(used[kind], taken[kind]) for kind, units in lease.resources.items()}
        parts = tuple(filter(None, map(gpu_part, each)))
        found.append(BoostRoom(lease.id, lease.source, lease.resources, ResourceVector(free).at_least_zero(), parts))
    return tuple(sorted(found, key=lambda room: room.id))


def _used(lease: Lease, seen: NodeView | None) -> ResourceVector:
    """The amounts that work holds in the group; nothing, if the node does not show the group."""
    if seen is None:
        return ResourceVector()
    held = {}
    for kind in lease.resources:
        name = f"{ray_name(kind)}_group_{lease.placement_group}"
        if name in seen.total:
            held[ray_name(kind)] = seen.total[name] - seen.free.get(name, 0.0)
    return ResourceVector.from_ray(held)


class SchedulingTable:
    """The table of one cluster's nodes."""

    def __init__(self, parts: EngineContext, collector: Collector | None) -> None:
        self._p = parts
        self._collector = collector
        self._columns = NodeColumns(())
        self._nodes: dict[NodeName, Node] = {}
        self._leases: dict[str, Lease] = {}
        self._looked_at: NodeTable | None = None
        self._rules = Rules()

    @property
    def rules(self) -> Rules:
        """As of the last look, since their forecasts cover every node."""
        return self._rules

    @property
    def last(self) -> NodeColumns:
        """The table as of the last look."""
        return self._columns

    def columns(self, nodes: NodeTable) -> NodeColumns:
        """The table for these nodes, with nothing promised."""
        p = self._p
        new_look = p.last_seen is not self._looked_at
        rules_before = self._rules
        if new_look or frozenset(p.sharing.cordoned) != self._rules.cordoned:
            self._looked_at = p.last_seen
            self._rules = rules_for(p, Ask(next(iter(nodes), ""), CPU, 1))
        leases = {lease.id: lease for lease in p.ledger}
        if tuple(nodes) != self._columns.names:
            self._columns = NodeColumns(nodes)
            changed: Iterable[NodeName] = nodes
        elif self._bounds(rules_before) != self._bounds(self._rules):
            changed = nodes
        else:
            changed = {name for name, node in nodes.items() if self._nodes.get(name) is not node}
            changed |= self._touched(leases)
        for name in changed:
            if name in nodes:
                self._columns.put(nodes[name], p.ledger.usage, self._rules)
        self._nodes, self._leases = dict(nodes), leases
        if new_look and self._collector is not None:
            self._columns.measured(self._collector.snapshots())
            self._columns.waits_for(_waiting_for(self._collector.demand))
        return self._columns

    @staticmethod
    def _bounds(rules: Rules) -> object:
        return rules.headroom, rules.cordoned

    def _touched(self, now: Mapping[str, Lease]) -> set[NodeName]:
        """The nodes of leases that were added, removed or changed."""
        found: set[NodeName] = set()
        for one, other in ((now, self._leases), (self._leases, now)):
            for lease_id, lease in one.items():
                if other.get(lease_id) is not lease:
                    found |= {lease.source, lease.target}
        return found

    def promise(self, flights: Mapping[str, tuple[ResourceVector, tuple[Choice, ...]]]) -> None:
        """Promise what was chosen and is not in the ledger yet, and nothing else."""
        self._columns.forget_promises()
        ours = (lease for lease in self._p.ledger if lease.cause is Cause.SCHEDULED)
        in_ledger = Counter((lease.label, lease.source) for lease in ours)
        for (_, source), count in in_ledger.items():
            if source in self._columns.row:
                self._columns.tasks[self._columns.row[source]] += count
        for task_id, (needs, choices) in flights.items():
            for choice in choices:
                if choice.boost is not None:
                    continue
                if in_ledger[task_id, choice.node] > 0:
                    in_ledger[task_id, choice.node] -= 1
                elif choice.node in self._columns.row:
                    self._columns.promise(self._columns.row[choice.node], needs)


def _waiting_for(demand: Iterable[Demand]) -> dict[NodeName, ResourceVector]:
    """Pending demand that only one node may serve."""
    found: dict[NodeName, ResourceVector] = {}
    for one in demand:
        if len(one.wanted_on) == 1:
            (name,) = one.wanted_on
            each = one.pending.shape.needs
            needs = ResourceVector({kind: one.pending.count * units for kind, units in each.items()})
            found[name] = found.get(name, ResourceVector()) + needs
    return found


GROUP: Final = "distributed_grid.strategies"

log = logger()


def load_strategies() -> tuple[str, ...]:
    """Register the installed strategies and return their names. One that cannot be loaded is logged and left out."""
    found = []
    for entry in entry_points(group=GROUP):
        try:
            register_strategy(entry.name)(entry.load())
        except Exception as error:  # noqa: BLE001 - third-party code
            log.error("a strategy could not be loaded", name=entry.name, value=entry.value, error=repr(error))
        else:
            found.append(entry.name)
    return tuple(found)


OVERDUE: Final = timedelta(seconds=30)
"""If a gang waits longer, tasks behind it leave its nodes alone. Single tasks get their places from the queue."""
_MOST_REASONS: Final = 50


@dataclass(frozen=True, slots=True)
class Flight:
    """A place that was chosen and is being made."""

    task: ScheduledTask
    choices: tuple[Choice, ...]
    predicted: Predicted
    nodes: tuple[NodeName, ...] | None = None
    """While others wait: all eligible nodes, the best first, since the chosen one may be earmarked for those ahead."""

    @property
    def needs(self) -> ResourceVector:
        return ResourceVector(self.task.needs)

    def in_boosts(self) -> Iterator[tuple[str, ResourceVector]]:
        for choice in self.choices:
            if choice.boost is not None:
                yield choice.boost.id, self.needs


class Chooser:
    """Decides; changes nothing but its own table."""

    def __init__(self, parts: EngineContext, judge: Judge, collector: Collector | None) -> None:
        self._p = parts
        self._judge = judge
        self.table = SchedulingTable(parts, collector)
        self.not_on: dict[str, set[NodeName]] = {}
        """By task: nodes that could not give it a place after all."""
        self.refusals: dict[str, tuple[str, ...]] = {}
        """By task without a place: why each node refused it at the last look."""

    def choose(
        self,
        nodes: NodeTable,
        view: Mapping[NodeId, NodeView],
        waiting: Iterable[ScheduledTask],
        flights: dict[str, Flight],
    ) -> list[Flight]:
        """The places that are available now. Places that are being made count as taken.

        While others wait in the queue, a single task that may wait gets its lease from there, and here only room in
        boosts.
        """
        columns = self.table.columns(nodes)
        self.table.promise({task_id: (flight.needs, flight.choices) for task_id, flight in flights.items()})
        taken, found = dict(flights), []
        earmarked: set[NodeName] = set()
        now = self._p.now()
        for task in waiting:
            if task.id in taken:
                continue
            rooms = self._boost_rooms(task, nodes, view, taken.values(), now)
            sought = self._sought(task, columns, rooms, taken.values(), earmarked)
            is_single, others_wait = task.request.count == 1, bool(self._p.sharing.waiting)
            if is_single and others_wait and task.request.wait:
                choices = choose_boost(sought)
            else:
                choices = choose_gang(sought, task.request.count)
            if choices is None:
                self.refusals[task.id] = self._why_not(sought, task)
                if now - task.asked_at > OVERDUE and not is_single:
                    earmarked |= earmarks_for(sought)
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
        """For each wanted task, the eligible nodes, the best first, by its own conditions and its strategy.

        Nodes earmarked for gangs ahead of it are left out. `waiting`: all waiting tasks, in order.
        """
        columns = self.table.columns(nodes)
        self.table.promise({task_id: (flight.needs, flight.choices) for task_id, flight in flights.items()})
        earmarked: set[NodeName] = set()
        found: dict[str, tuple[NodeName, ...]] = {}
        for task in waiting:
            if task.id in wanted:
                found[task.id] = self._order(self._sought(task, columns, (), flights.values(), earmarked))
            elif task.request.count > 1 and task.id not in flights and self._p.now() - task.asked_at > OVERDUE:
                earmarked |= earmarks_for(self._sought(task, columns, (), flights.values(), earmarked))
        return found

    def may_be_on(self, task: ScheduledTask, node: NodeName, flights: Iterable[Flight]) -> bool:
        """Whether the task's conditions still allow a node, after other tasks got their places."""
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
        """Room in boosts that the task's owner may change.

        An owner who may not run a program in a boost gets no task in there.
        """
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
            promised=lambda boost: [*state.inside(boost), *(needs for id_, needs in in_flight if id_ == boost)],
        )

    def _sought(
        self,
        task: ScheduledTask,
        columns: NodeColumns,
        rooms: tuple[BoostRoom, ...],
        flights: Iterable[Flight],
        earmarked: set[NodeName],
    ) -> Sought:
        return Sought(
            task.request,
            ResourceVector(task.needs),
            task.request.target or "",
            columns,
            rooms,
            self._peers(flights) if task.request.near.tasks or task.request.far.tasks else {},
            frozenset(self.not_on.get(task.id, ())),
            frozenset(earmarked),
        )

    def _peers(self, flights: Iterable[Flight]) -> dict[str, set[NodeName]]:
        """Where tasks have their places, or are about to: the queue may have granted one a moment ago."""
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
        reasons = [f"{node}: {why}" for node, why in refusals(sought).items()]
        more = [f"and {len(reasons) - _MOST_REASONS} more nodes"] if len(reasons) > _MOST_REASONS else []
        if task.request.count > 1:
            fit = len(places_for(sought, task.request.count))
            reasons = [f"only {fit} of {task.request.count} fit, and a gang is placed all or nothing", *reasons]
        return (*reasons[:_MOST_REASONS], *more)

    def forget(self, task_id: str) -> None:
        self.not_on.pop(task_id, None)
        self.refusals.pop(task_id, None)
