"""Choosing places: one look at the cluster, then a round of decisions (`decide/scheduler/round.py`).

The table of nodes is updated row by row. Strategies can come from other packages, by entry point.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cache, partial
from importlib import metadata
from typing import Final

from distributed_grid.decide.scheduler import Choice, NodeColumns, Sought, register_strategy
from distributed_grid.decide.scheduler.round import (
    Boosts,
    Eligible,
    Flight,
    TaskWorld,
    choose_places,
    eligible,
    may_be_on,
)
from distributed_grid.execution.port import NodeView
from distributed_grid.leases.rules import rules_for
from distributed_grid.leases.state import EngineContext
from distributed_grid.logs import logger
from distributed_grid.model.demand import Demand
from distributed_grid.model.leases import Cause, Lease
from distributed_grid.model.nodes import Node, NodeId, NodeName, NodeTable
from distributed_grid.model.plans import Rules
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, ResourceVector, ray_name
from distributed_grid.model.scheduling import ScheduledTask
from distributed_grid.monitoring.collector import Collector
from distributed_grid.scheduler.outcomes import Judge


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
                    found |= {*lease.sources, lease.target}
        return found

    def promise(self, flights: Mapping[str, tuple[ResourceVector, tuple[Choice, ...]]]) -> None:
        """Promise what was chosen and is not in the ledger yet, and nothing else."""
        self._columns.forget_promises()
        ours = (lease for lease in self._p.ledger if lease.cause is Cause.SCHEDULED)
        in_ledger = Counter((lease.label, part.source) for lease in ours for part in lease.shares or (lease,))
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


@cache
def entry_points(*, group: str) -> metadata.EntryPoints:
    """What is installed. It reads the files of all packages: once per process, however many engines start in it."""
    return metadata.entry_points(group=group)


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
        flights: Mapping[str, Flight],
    ) -> list[Flight]:
        """The places that are available now; the reasons of the other tasks are in `refusals`."""
        columns = self._columns(nodes, flights)

        def used(lease: Lease) -> ResourceVector:
            return _used(lease, view.get(nodes[lease.source].node_id))

        boosts = Boosts(used, self._p.config.owners_of)
        predict = partial(self._judge.of_places, columns=columns)
        found, without = choose_places(self._world(columns, nodes), boosts, waiting, flights, predict)
        self.refusals |= without
        return found

    def eligible(
        self, nodes: NodeTable, tasks: Iterable[ScheduledTask], flights: Mapping[str, Flight]
    ) -> dict[str, Eligible]:
        """For each of these tasks, where it may have its lease."""
        world = self._world(self._columns(nodes, flights), nodes)
        return {task.id: eligible(world, task, flights, _eligible) for task in tasks}

    def may_be_on(self, task: ScheduledTask, nodes: Collection[NodeName], flights: Mapping[str, Flight]) -> bool:
        """Whether the task's conditions still allow these nodes, after other tasks got their places."""
        return may_be_on(self._world(self.table.last, self._p.last_seen), task, nodes, flights, _eligible)

    def _columns(self, nodes: NodeTable, flights: Mapping[str, Flight]) -> NodeColumns:
        columns = self.table.columns(nodes)
        self.table.promise({task_id: (flight.needs, flight.choices) for task_id, flight in flights.items()})
        return columns

    def _world(self, columns: NodeColumns, nodes: NodeTable) -> TaskWorld:
        p = self._p
        return TaskWorld(
            columns,
            nodes,
            p.ledger.snapshot(),
            p.ledger.usage,
            p.teams,
            p.sharing.scheduling.tasks,
            p.now(),
            self.not_on,
            frozenset(each.ask.label if each.is_for_a_task else each.id for each in p.sharing.waiting.values()),
        )

    def forget(self, task_id: str) -> None:
        self.not_on.pop(task_id, None)
        self.refusals.pop(task_id, None)


def _eligible(sought: Sought) -> Eligible:
    try:
        return Eligible.of(sought)
    except Exception:
        log.exception("a strategy failed; its task waits", strategy=str(sought.request.strategy))
        return Eligible(())
