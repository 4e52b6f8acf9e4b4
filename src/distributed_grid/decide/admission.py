"""Who of those that wait is admitted now, and when the others' turn will be.

Conservative backfill: everyone in the queue gets the first place in time, on one node, that delays nobody ahead. What
is granted now are the places that begin now; so a small and short request passes a big one only where it is gone
before the big one's turn.
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from distributed_grid.decide.lending import Offer
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.places import Place, Places
from distributed_grid.decide.queue_order import is_overdue
from distributed_grid.decide.queue_words import too_far_back, why_it_waits, why_nobody_knows, why_team_waits
from distributed_grid.errors import GridError
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.plans import Grant, Refused
from distributed_grid.model.requests import Ask
from distributed_grid.model.rules import Rules
from distributed_grid.model.waiting import Waiting

DEPTH: Final = 100
"""So many get a place in time. Those behind them may still be admitted now, where they delay none of these."""

NOBODY_WAS_TOLD: Final[Mapping[str, NodeName]] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the queue's plan says about one request."""

    waiting: Waiting
    position: int
    """1 is first."""
    grant: Grant | None = None
    """What it gets now."""
    reason: str = ""
    """Why it waits, in words."""
    expected_start: datetime | None = None
    """None: nobody can know."""
    expected_source: NodeName | None = None
    refused: Refused | None = None
    """For every node why it does not lend now; None if it is granted, or nobody wanted to know."""


def plan_queue(
    ordered_waiting: Iterable[Waiting],
    nodes: NodeTable,
    leases: Iterable[Lease],
    loans: Loans,
    rules_for: Callable[[Ask], Rules],
    now: datetime,
    *,
    depth: int = DEPTH,
    explain: Container[str] | None = None,
    told: Mapping[str, NodeName] = NOBODY_WAS_TOLD,
) -> tuple[Verdict, ...]:
    """A verdict for everyone, in the given order: nobody's depends on those behind.

    `explain`: for whom the verdict says of every node why it does not lend, by id; None: for all. It is most of the
    work where many wait, so who only wants to admit asks for none. `told`: by id, the expected source of the last
    plan; who keeps its place there cannot get into the way of others' places.
    """
    walk = QueuePlan(nodes, leases, loans, rules_for, now, depth)
    return tuple(
        walk.decide(waiting, position, told.get(waiting.id), explained=explain is None or waiting.id in explain)
        for position, waiting in enumerate(ordered_waiting, start=1)
    )


class QueuePlan:
    """A walk through the queue, from its head: what was decided bounds what comes after.

    It may be kept while nothing has come back, for who comes last: nobody ahead has to be asked again.
    """

    def __init__(
        self,
        nodes: NodeTable,
        leases: Iterable[Lease],
        loans: Loans,
        rules_for: Callable[[Ask], Rules],
        now: datetime,
        depth: int,
    ) -> None:
        self._nodes, self._rules_for, self._now, self._depth = nodes, rules_for, now, depth
        self._places = Places(nodes, leases, loans, now)
        self._placed = 0
        """How many have a place in time; they are ahead of all that follow."""
        self._keeps_a_node = False

    def decide(
        self, waiting: Waiting, position: int, told: NodeName | None = None, *, explained: bool = False
    ) -> Verdict:
        """Its verdict; with it, what it gets or has a place for is taken."""
        target = self._nodes.get(waiting.ask.target)
        if target is None or not target.alive:
            return Verdict(waiting, position, reason=f"its target {waiting.ask.target} is not in the cluster now")
        try:
            offer = Offer.of(waiting.ask, self._nodes, self._rules_for(waiting.ask))
        except GridError as error:  # the rules have changed since it was accepted
            return Verdict(waiting, position, reason=str(error))
        ahead = self._placed
        found = self._place(offer, waiting, position, told)
        if isinstance(found, str):
            verdict = Verdict(waiting, position, reason=found)
        elif found.begin <= self._now:
            grant = offer.from_node(found.source)
            return Verdict(waiting, position, grant, f"{found.source} has it now", self._now, found.source)
        else:
            back = self._places.comes_back(found, waiting.ask.kind)
            reason = why_it_waits(offer, found, back, ahead, self._now)
            verdict = Verdict(waiting, position, None, reason, found.begin, found.source)
        return replace(verdict, refused=self._places.present.refused(offer, ahead)) if explained else verdict

    def _place(self, offer: Offer, waiting: Waiting, position: int, told: NodeName | None) -> Place | str:
        """The place that it has from now on; or why it has none."""
        places, now = self._places, self._now
        turn = places.team_turn(offer, now)
        if turn is None or turn > now:
            # Others may pass it; of its own team, only who is done before its turn.
            if turn is not None:
                places.take_for_team(offer, turn)
            return why_team_waits(offer, places.present.loans, turn, now)
        is_too_far_back = self._placed >= self._depth
        place = places.first(offer, until=now if is_too_far_back else None, known=told)
        if place is not None:
            places.take(offer, place)
            self._placed += place.begin > now
            return place
        if is_too_far_back:
            return too_far_back(position - 1)
        kept = None
        others_keep = places.present.others_keep(offer)
        if is_overdue(waiting, now) and not self._keeps_a_node and others_keep is None:
            # Its turn has come, and what others go on taking there it could never have. One node at a time.
            kept = places.keep(offer)
            self._keeps_a_node = kept is not None
        return others_keep or why_nobody_knows(offer, self._nodes, kept)
