"""A cluster without work of its own in which requests wait, are admitted as the queue's plan says, and end in time.

Where a policy's numbers are given, leases yield as the plan says, and each holder uses up its grace period.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from builders import NOON

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import PolicyNumbers
from distributed_grid.decide.queue.admission import Verdict, plan_queue
from distributed_grid.decide.queue.preemption import Preemption
from distributed_grid.model.lease_changes import split
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import NO_RULES, Grant, Rules
from distributed_grid.model.requests import Waiting
from distributed_grid.model.resources import total


@dataclass
class World:
    """`bases`: the nodes when nothing is lent."""

    bases: list[Node]
    rules: Rules = NO_RULES
    now: datetime = NOON
    queue: list[Waiting] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    admitted: dict[str, datetime] = field(default_factory=dict)
    told: dict[str, NodeName] = field(default_factory=dict)
    """Where those who wait were told that their place is."""
    numbers: PolicyNumbers | None = None
    grace_s: float = 30.0
    uses_up_grace: bool = False
    """Whether work keeps a lease that expires until its grace period is over, too."""

    def nodes(self) -> NodeTable:
        usage = Usage.of(self.leases.values())
        return NodeTable(self._seen(node, usage) for node in self.bases)

    def _seen(self, node: Node, usage: Usage) -> Node:
        moved_in = usage.moved_to(node.name)
        free = node.base - usage.lent_by(node.name) + moved_in
        moved = [one for one in self.leases.values() if one.source == node.name and one.delivery is Delivery.TRANSFER]
        out = total([one.resources for one in moved])
        return replace(node, total=node.base - out + moved_in, free=free.at_least_zero())

    def plan(self, queue: Iterable[Waiting], depth: int = 100) -> tuple[Verdict, ...]:
        leases = tuple(self.leases.values())
        return plan_queue(
            queue, self.nodes(), leases, Usage.of(leases), lambda _: self.rules, self.now, depth=depth,
            expected_sources=self.told, numbers=self.numbers,
        )  # fmt: skip

    def admit(self, verdicts: Sequence[Verdict]) -> None:
        """All that a plan grants, one after the other; each must still be right."""
        for verdict in verdicts:
            if verdict.grant is not None:
                self._lend(verdict.waiting, verdict.grant)
        for verdict in verdicts:
            if verdict.preemption is not None and verdict.preemption.at <= self.now:
                self._reclaim(verdict.preemption)
        self.told = {verdict.waiting.id: verdict.expected_source for verdict in verdicts if verdict.expected_source}

    def _lend(self, waiting: Waiting, grant: Grant) -> None:
        ask = waiting.ask
        allowed = plan_grant(
            replace(ask, sources=(grant.source,)), self.nodes(), Usage.of(self.leases.values()), self.rules
        )
        assert isinstance(allowed, Grant), f"{waiting.id}: {allowed}"
        self.leases[waiting.id] = Lease(
            id=waiting.id, source=grant.source, target=ask.target, kind=ask.kind, units=ask.units,
            resources=grant.resources, priority=ask.priority, delivery=Delivery(grant.delivery), delivery_reason="",
            state=LeaseState.ACTIVE, allocated_at=self.now, expires_at=self.now + timedelta(seconds=ask.duration_s),
            duration_s=ask.duration_s, team=ask.team,
            grace_s=self.grace_s if ask.grace_s is None else ask.grace_s,
        )  # fmt: skip
        self.admitted[waiting.id] = self.now
        self.queue.remove(waiting)

    def _reclaim(self, preemption: Preemption) -> None:
        for victim in preemption.due(self.now):
            units = preemption.takes[victim.id]
            assert self.leases[victim.id] == victim, "no holder is asked twice"
            if units < victim.units:
                kept, given = split(victim, units, f"{victim.id}-{len(self.leases)}")
                self.leases[victim.id] = kept
            else:
                given = victim
            self.leases[given.id] = replace(given, state=LeaseState.RECLAIMING, release_asked_at=self.now)

    def release(self, id: str, grace_s: float) -> None:
        """Its holder gives it back, and its work uses up the grace period."""
        self.leases[id] = replace(
            self.leases[id], state=LeaseState.RELEASING, release_asked_at=self.now, grace_s=grace_s
        )

    def go_on_to(self, now: datetime) -> None:
        self.now = now
        if self.uses_up_grace:
            self.leases = {id: _expired(lease, now) for id, lease in self.leases.items()}
        self.leases = {id: lease for id, lease in self.leases.items() if _home_at(lease) > now}

    def next_end(self) -> datetime | None:
        return min((_home_at(lease) for lease in self.leases.values()), default=None)


def _expired(lease: Lease, now: datetime) -> Lease:
    if lease.state is not LeaseState.ACTIVE or now < lease.expires_at:
        return lease
    return replace(lease, state=LeaseState.RELEASING, release_asked_at=lease.expires_at)


def _home_at(lease: Lease) -> datetime:
    if lease.release_asked_at is None:
        return lease.expires_at
    return lease.release_asked_at + timedelta(seconds=lease.grace_s)
