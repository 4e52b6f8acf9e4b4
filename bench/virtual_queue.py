"""A simulated cluster with its own clock: requests arrive, are decided, wait and end.

The controller's own code makes all decisions, and none is left out. A request is decided when it arrives, unless
another request waits for a slot; then it is decided in the queue's next round. There is one round each second.
"""

import heapq
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.lending import best_lender
from distributed_grid.decide.capacity.quotas import why_above_its_most, why_over_limit
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.queue.admission import Verdict, plan_queue
from distributed_grid.decide.queue.claims import Account, charged, ordered
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.nodes import Node, NodeTable, SharingLimits
from distributed_grid.model.plans import Grant, Headroom, Rules
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, scale, total
from distributed_grid.model.teams import Team, Teams

MEAN_S: Final = 60.0
"""Of a lease's duration."""
FITS_PER_NODE: Final = 0.25
"""Requests per second that a node's capacity carries: a lease takes 2.6 CPUs of the 48 that four of five nodes lend."""

_ROUND: Final = timedelta(seconds=1)
_CHARGED_EVERY: Final = timedelta(seconds=60)
_ASKS: Final = ((CPU, (1, 2, 4, 8), 0.6), (GPU, (1, 2), 0.2), (MEMORY, (4, 8, 16, 32), 0.2))
_PRIORITIES: Final = tuple(AllocationPriority)


class VirtualQueue:
    """Nodes and teams under a load that is a fraction of their capacity. A fifth of the nodes request more."""

    def __init__(self, nodes: int, teams: int, load: float) -> None:
        self.nodes = NodeTable(_node(number) for number in range(nodes))
        self.rules = Rules(default_delivery="auto", headroom=Headroom("balanced", 0.2), teams=_teams(teams, nodes))
        self.now = datetime(2025, 6, 1, tzinfo=UTC)
        self.usage = Usage()
        self.leases: dict[str, Lease] = {}
        self.waiting: dict[str, Waiting] = {}
        self._places = 0
        self._held_teams: set[str] = set()
        self._ends: list[tuple[datetime, str]] = []
        self._accounts: dict[str, Account] = {}
        self._totals = total([node.base for node in self.nodes.values()])
        self._charged_at, self._next_round = self.now, self.now
        self._chance = random.Random(0)
        self._every = timedelta(seconds=1 / (load * FITS_PER_NODE * nodes))
        self._came = 0

    def asks(self, count: int) -> list[Ask]:
        """The next requests; created before the timing starts."""
        return [self._ask() for _ in range(count)]

    def come(self, asks: list[Ask]) -> None:
        """The requests arrive one after the other, each at its time."""
        for ask in asks:
            self.now += self._every
            while self._next_round <= self.now:
                self.round()
                self._next_round += _ROUND
            self._came += 1
            self._decide(Waiting(f"r{self._came}", ask, self.now))

    def _decide(self, request: Waiting) -> None:
        self._end_what_is_over()
        ask = request.ask
        if not self._places and ask.team not in self._held_teams:
            offer = Offer.of(ask, self.nodes, self.rules)
            if why_over_limit(ask, offer.need, self.nodes, self.usage, self.rules.teams) is None:
                source = best_lender(offer, self.nodes.lenders, self.usage)
                if source is not None:
                    return self._lend(request, offer.from_node(source))
        self.waiting[request.id] = request
        return None

    def round(self) -> None:
        """End what is over, and admit what fits."""
        self._end_what_is_over()
        if self.now - self._charged_at >= _CHARGED_EVERY:
            self._accounts = charged(self._accounts, self.leases.values(), self._totals, self.now)
            self._charged_at = self.now
        if self.waiting:
            verdicts = self.plan()
            for verdict in verdicts:
                if verdict.grant is not None:
                    del self.waiting[verdict.waiting.id]
                    self._lend(verdict.waiting, verdict.grant)
            left = [verdict for verdict in verdicts if verdict.grant is None]
            self._places = sum(self._holds_a_slot(verdict) for verdict in left)
            self._held_teams = {verdict.waiting.ask.team for verdict in left}
        else:
            self._places, self._held_teams = 0, set()

    def _holds_a_slot(self, verdict: Verdict) -> bool:
        """Whether requests behind it wait, too; other teams' requests pass one that is above its team's limit."""
        ask = verdict.waiting.ask
        if verdict.expected_start is None:
            return False
        need = Offer.of(ask, self.nodes, self.rules).need
        return why_above_its_most(ask, need, self.usage, self.rules.teams) is None

    def plan(self, *, explained: bool = False) -> tuple[Verdict, ...]:
        queue = ordered(self.waiting.values(), self.usage, self._accounts, self.rules.teams, self.now)
        leases, explain = self.leases.values(), None if explained else ()
        return plan_queue(queue, self.nodes, leases, self.usage, lambda _: self.rules, self.now, explain=explain)

    def _lend(self, request: Waiting, grant: Grant) -> None:
        ask, end = request.ask, self.now + timedelta(seconds=request.ask.duration_s)
        lease = Lease(
            id=request.id, source=grant.source, target=ask.target, kind=ask.kind, units=ask.units,
            resources=grant.resources, priority=ask.priority, delivery=grant.delivery,
            delivery_reason=grant.delivery_reason, state=LeaseState.ACTIVE, allocated_at=self.now, expires_at=end,
            duration_s=ask.duration_s, team=ask.team,
        )  # fmt: skip
        self.leases[lease.id] = lease
        self.usage.count(lease)
        heapq.heappush(self._ends, (end, lease.id))

    def _end_what_is_over(self) -> None:
        while self._ends and self._ends[0][0] <= self.now:
            self.usage.count(self.leases.pop(heapq.heappop(self._ends)[1]), -1)

    def _ask(self) -> Ask:
        chance = self._chance
        kind, amounts, _ = chance.choices(_ASKS, weights=[weight for *_, weight in _ASKS])[0]
        return Ask(
            target=f"node-{chance.randrange(len(self.nodes) // 5)}",
            kind=kind,
            units=chance.choice(amounts) * scale(kind),
            priority=chance.choice(_PRIORITIES),
            duration_s=chance.uniform(0.2, 1.8) * MEAN_S,
            team=f"team-{chance.randrange(len(self.rules.teams))}",
            delivery=chance.choice(("transfer", "reserve")) if kind != GPU else None,
        )


def _node(number: int) -> Node:
    base = ResourceVector.of(cpu=64, gpu=8, memory=512)
    limits = SharingLimits(max_share_cpu=48 * scale(CPU))
    return Node(f"node-{number}", f"id-{number}", base, base, base, limits=limits)


def _teams(count: int, nodes: int) -> Teams:
    """A third of what nodes lend is guaranteed; every second team has a limit above that, every tenth keeps half."""
    return Teams(_each_team(count, 16 * nodes * scale(CPU) // count))


def _each_team(count: int, guaranteed: int) -> Iterator[Team]:
    for number in range(count):
        limit = {CPU: 16 * scale(CPU)} if number % 2 else {}
        keeps = {CPU: guaranteed // 2} if number % 10 == 0 else {}
        yield Team(f"team-{number}", ResourceVector({CPU: guaranteed}), limit, keeps, weight=1.0 + number % 3)
