"""Predictions of what would happen to a request, and why: only from the functions that will decide it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.feasibility import most_of, why_not
from distributed_grid.decide.capacity.lending import largest_now
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import PolicyNumbers
from distributed_grid.decide.queue.admission import NONE_EXPECTED, QueuePlan, Verdict, positions
from distributed_grid.decide.queue.claims import Account, ordered
from distributed_grid.decide.queue.preemption import Preemption
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import Node, NodeName, NodeTable, in_words
from distributed_grid.model.plans import Grant, Refusal, Rules
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import amount_of, describe

CHOSEN: Final = "chosen"
COULD_LEND: Final = "could lend"
_NOT_YET: Final = "~"
"""The id of a request that has not been made: it sorts after all others of the same moment."""


@dataclass(frozen=True, slots=True)
class NodeReason:
    """How one node relates to a request."""

    node: NodeName
    verdict: str
    """`CHOSEN`, `COULD_LEND`, or the code of the refusal."""
    detail: str
    could_lend: int
    """How much of the requested kind the node could lend now, in units."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The prediction for a request that is made now."""

    ask: Ask
    grants: tuple[Grant, ...]
    """One for each part; empty if it is not met now."""
    preemption: Preemption | None
    """The leases that yield, if no node can lend it now and preemption brings it forward."""
    expected_start: datetime | None
    """When its turn would be if it waited; None: no estimate."""
    ahead: int
    """How many waiting requests are ahead of it."""
    largest_now: int
    """The largest amount that would be granted now, in units."""
    largest_sources: tuple[NodeName, ...]
    considered: tuple[NodeReason, ...]
    summary: str
    team_limit: str | None = None
    """Why the team may not have it, whichever node would lend."""

    @property
    def grant(self) -> Grant | None:
        """Of several parts, the first."""
        return self.grants[0] if self.grants else None

    @property
    def largest_source(self) -> NodeName | None:
        return self.largest_sources[0] if self.largest_sources else None


def look_ahead(
    ask: Ask,
    nodes: NodeTable,
    leases: Iterable[Lease],
    usage: Usage,
    waiting: Iterable[Waiting],
    accounts: Mapping[str, Account],
    rules_for: Callable[[Ask], Rules],
    numbers: PolicyNumbers,
    now: datetime,
    *,
    expected_sources: Mapping[str, NodeName] = NONE_EXPECTED,
) -> Outlook:
    """Plan the queue as if this request had just joined it, and report its verdict. Nothing is done."""
    leases, rules = tuple(leases), rules_for(ask)
    mine = Waiting(_NOT_YET, ask, now)
    others = (one for one in waiting if not one.is_over(now))
    queue = ordered((*others, mine), usage, accounts, rules.teams, now, leases)
    upto = queue[: queue.index(mine) + 1]  # no verdict depends on requests behind it
    walk = QueuePlan(nodes, leases, usage, rules_for, now, numbers=numbers)
    *ahead, (position, _) = positions(upto, now)
    before = [walk.decide(one, number, expected_sources.get(one.id)) for number, one in ahead]
    after = Snapshot(nodes, usage)
    for other in before:
        for grant in other.grants:
            after.add(grant)
    largest, largest_sources = largest_now(ask, after, after.usage, rules, walk.lenders_now if before else None)
    verdict = walk.decide(mine, position, explained=True)
    limit = None if verdict.refused is None else verdict.refused.team_limit
    return Outlook(
        ask=ask,
        grants=verdict.grants,
        preemption=verdict.preemption,
        expected_start=verdict.expected_start,
        ahead=position - 1,
        largest_now=largest,
        largest_sources=largest_sources,
        considered=_reasons(verdict, after, rules),
        summary=_summary(ask, verdict, largest, largest_sources),
        team_limit=None if limit is None else limit.detail,
    )


def considered(
    ask: Ask, nodes: NodeTable, usage: Usage, rules: Rules, chosen: Collection[NodeName] = ()
) -> tuple[NodeReason, ...]:
    """How every node relates to the request. For an existing lease, pass the cluster without it."""
    offer = Offer.of(ask, nodes, rules)
    return tuple(_reason(node, offer, usage, chosen) for node in nodes.values())


def _reasons(verdict: Verdict, after: Snapshot, rules: Rules) -> tuple[NodeReason, ...]:
    if verdict.grants:
        return considered(verdict.waiting.ask, after, after.usage, rules, verdict.expected_sources)
    return refused_by(verdict)


def refused_by(verdict: Verdict) -> tuple[NodeReason, ...]:
    """For every node, why it does not lend now; empty if one does, or if the verdict does not say."""
    return () if verdict.refused is None else tuple(_refused(refusal) for refusal in verdict.refused.refusals)


def _reason(node: Node, offer: Offer, usage: Usage, chosen: Collection[NodeName]) -> NodeReason:
    is_chosen = node.name in chosen
    refusal = why_not(node, offer, usage)
    if refusal is not None and not is_chosen:
        return _refused(refusal)
    if refusal is not None and len(chosen) > 1:
        detail = f"it lends a part: no node can lend all of it; {refusal.detail}"
        return NodeReason(node.name, CHOSEN, detail, refusal.could_lend)
    if refusal is not None:
        return NodeReason(node.name, CHOSEN, f"it is the lender; currently: {refusal.detail}", refusal.could_lend)
    kind = offer.ask.kind
    could = most_of(node, offer, usage)
    free = f"{amount_of(kind, max(0, node.free[kind]))} of {describe(kind, node.total[kind])} free"
    in_use = (*offer.used_gpus.get(node.name, ()), *(busy for name, busy in offer.busy.items() if name == node.name))
    detail = "; ".join([f"{free}, it can lend {amount_of(kind, could)}", *in_use])
    if is_chosen:
        why = (
            "it was requested by name"
            if node.name in offer.ask.sources
            else "of the eligible nodes it has the most left"
        )
        return NodeReason(node.name, CHOSEN, f"{detail}; {why}", could)
    return NodeReason(node.name, COULD_LEND, detail, could)


def _refused(refusal: Refusal) -> NodeReason:
    return NodeReason(refusal.node, refusal.code, refusal.detail, refusal.could_lend)


def _summary(ask: Ask, verdict: Verdict, largest: int, largest_sources: tuple[NodeName, ...]) -> str:
    what = ask.describe()
    if grants := verdict.grants:
        lend = "lends it" if len(grants) == 1 else "together lend it"
        return f"{what}: {in_words(verdict.expected_sources)} {lend} now ({grants[0].delivery})"
    said = [what if verdict.is_hopeless else f"{what}: not now", verdict.reason]
    if largest_sources:
        said.append(f"{describe(ask.kind, largest)} would fit now, from {in_words(largest_sources)}")
    return "; ".join(said)
