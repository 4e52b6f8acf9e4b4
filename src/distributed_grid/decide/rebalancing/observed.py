"""What one round of rebalancing looks at, and what it remembers of the rounds before."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from distributed_grid.decide.demand import only_node
from distributed_grid.decide.hysteresis import Pressed
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.policies import PolicyNumbers
from distributed_grid.decide.shortage import Thresholds
from distributed_grid.model.demand import Demand
from distributed_grid.model.forecasts import Forecast
from distributed_grid.model.leases import Cause, Lease
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.policies import SharingMode
from distributed_grid.model.snapshots import NodeSnapshot
from distributed_grid.model.teams import Teams

Forecasts = Mapping[tuple[NodeName, str], Forecast]

Streaks = Mapping[Hashable, int]
"""For how many rounds on end something has been so."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that a round is decided on."""

    nodes: NodeTable
    snapshots: Mapping[NodeName, NodeSnapshot]
    pressed: Pressed
    demand: tuple[Demand, ...]
    leases: tuple[Lease, ...]
    loans: Loans
    thresholds: Thresholds
    numbers: PolicyNumbers
    mode: SharingMode
    now: datetime
    forecasts: Forecasts = field(default_factory=dict)
    """What is expected, where the policy acts on it."""
    queued: frozenset[str] = frozenset()
    """The kinds that somebody's request waits for: what is free of them is not for grid to take."""
    teams: Teams = field(default_factory=Teams)

    @property
    def acts_by_itself(self) -> bool:
        return self.numbers.acts_by_itself and self.mode is SharingMode.DYNAMIC_BALANCING

    def is_there(self, node: NodeName) -> bool:
        """What was measured, lent or waited for may be about a node that has left since."""
        found = self.nodes.get(node)
        return found is not None and found.alive

    def value(self, node: NodeName, kind: str) -> float | None:
        """How pressed the node is by what it does itself; None: no recent measurement, or it has just left."""
        snapshot = self.snapshots.get(node)
        if not self.is_there(node) or snapshot is None or snapshot.stale or snapshot.pressure is None:
            return None
        return snapshot.pressure.own(kind)

    def foreseen(self, node: NodeName, kind: str) -> float | None:
        """How pressed it is expected to be, under a policy that acts on that."""
        if not self.numbers.foresees:
            return None
        forecast = self.forecasts.get((node, kind))
        return None if forecast is None else forecast.value

    def will_be_pressed(self, node: NodeName, kind: str) -> bool:
        value = self.foreseen(node, kind)
        return value is not None and value >= self.thresholds[kind].high

    def waited_for(self, kind: str) -> set[NodeName]:
        """Nodes for which in particular work waits that needs some of this kind."""
        found = {only_node(one) for one in self.demand if kind in one.pending.shape.needs}
        return {name for name in found if name is not None}

    def is_young(self, lease: Lease) -> bool:
        """No lease is returned or moved before it is older than this."""
        return self.now - lease.allocated_at < timedelta(seconds=self.numbers.min_hold_s)

    def own_leases(self, target: NodeName, kind: str, *causes: Cause) -> list[Lease]:
        """What grid borrowed for a node by itself and has not given back, for these reasons or for any."""
        return [
            lease
            for lease in self.leases
            if (lease.target, lease.kind) == (target, kind)
            and is_own(lease)
            and not lease.is_winding_down
            and (not causes or lease.cause in causes)
        ]


def is_own(lease: Lease) -> bool:
    """Whether grid made the lease without being asked."""
    return lease.cause not in (Cause.ASKED, Cause.SCHEDULED)
