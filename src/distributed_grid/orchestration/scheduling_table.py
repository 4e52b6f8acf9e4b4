"""The scheduler's table of nodes, kept up with what changes: only rows that changed are set anew."""

from collections import Counter
from collections.abc import Iterable, Mapping

from distributed_grid.decide.scheduling import Choice, NodeColumns
from distributed_grid.model.demand import Demand
from distributed_grid.model.leases import Cause, Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, ResourceVector
from distributed_grid.model.rules import Rules
from distributed_grid.monitoring.collector import Collector
from distributed_grid.orchestration.parts import Parts
from distributed_grid.orchestration.rules_in_force import rules_for


class SchedulingTable:
    """One cluster's columns."""

    def __init__(self, parts: Parts, collector: Collector | None) -> None:
        self._p = parts
        self._collector = collector
        self._columns = NodeColumns(())
        self._nodes: dict[NodeName, Node] = {}
        self._leases: dict[str, Lease] = {}
        self._looked_at: NodeTable | None = None
        self._rules = Rules()

    @property
    def rules(self) -> Rules:
        """As of the last look: what they foresee is asked of every node."""
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
        if new_look or frozenset(p.sharing.cooling) != self._rules.cooling:
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
                self._columns.put(nodes[name], p.ledger.loans, self._rules)
        self._nodes, self._leases = dict(nodes), leases
        if new_look and self._collector is not None:
            self._columns.measured(self._collector.snapshots())
            self._columns.waits_for(_waiting_for(self._collector.demand))
        return self._columns

    @staticmethod
    def _bounds(rules: Rules) -> object:
        return rules.reserve, rules.cooling

    def _touched(self, now: Mapping[str, Lease]) -> set[NodeName]:
        """The nodes of leases that came, went or changed."""
        found: set[NodeName] = set()
        for one, other in ((now, self._leases), (self._leases, now)):
            for lease_id, lease in one.items():
                if other.get(lease_id) is not lease:
                    found |= {lease.source, lease.target}
        return found

    def promise(self, flights: Mapping[str, tuple[ResourceVector, tuple[Choice, ...]]]) -> None:
        """Count what was chosen and is not in the ledger yet; nothing else is promised."""
        for column in self._columns.promised.values():
            column.fill(0)
        self._columns.tasks.fill(0)
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
    """What waits in Ray's queues that only one node may serve."""
    found: dict[NodeName, ResourceVector] = {}
    for one in demand:
        if len(one.wanted_on) == 1:
            (name,) = one.wanted_on
            each = one.pending.shape.needs
            needs = ResourceVector({kind: one.pending.count * units for kind, units in each.items()})
            found[name] = found.get(name, ResourceVector()) + needs
    return found
