"""The choice of the lender that is left with the most.

This covers the headroom that a lender keeps, and a reason for every node that cannot lend.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from distributed_grid.decide.capacity.delivery import DeliveryChoice, choose_delivery, lent_resources, most_within
from distributed_grid.decide.capacity.quotas import why_over_limit
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import NO_HEADROOM, NO_RULES, Grant, Headroom, Refusal, RefusalCode, Refused, Rules
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import GPU, MEMORY, ResourceVector, amount_of, cut_off, describe, scale, whole


def headroom_of(node: Node, kind: str, free: int, lent: int, headroom: Headroom) -> int:
    """How much of its free capacity a node keeps, in units. GPUs are kept whole: of a single one, no part is."""
    most = 0.0
    if headroom.of_base:
        most = headroom.of_base * node.base[kind]
    if headroom.of_idle:
        most = max(most, headroom.of_idle * (free + lent))
    if headroom.foreseen and (share := headroom.foreseen.get((node.name, kind))) is not None:
        # Capacity that is reserved on the node for others is in use, too, but not by the node's own work.
        own = max(node.base[kind], node.total[kind]) - lent - free
        most = max(most, share * node.base[kind] - own)
    units = max(0, round(most))
    return units - units % scale(GPU) if kind == GPU else units


def why_headroom(kind: str, units: int, headroom: Headroom) -> str:
    """ "balanced keeps 1.6 free for its own work"."""
    return f"{headroom.policy or 'the policy'} keeps {amount_of(kind, units)} free for its own work"


def plan_grant(ask: Ask, nodes: NodeTable, usage: Usage, rules: Rules = NO_RULES) -> Grant | Refused:
    """Choose the delivery and the lender, or say for every node why not. The target must be in the table."""
    offer = Offer.of(ask, nodes, rules)
    over_limit = why_over_limit(ask, offer.need, nodes, usage, rules.teams)
    if over_limit is None:
        best = best_lender(offer, nodes.lenders, usage)
        if offer.prefers_own_to(best) and has_it_itself(offer, nodes[ask.target], usage):
            return offer.from_node(ask.target)
        if best is not None:
            return offer.from_node(best)
    refusals = (why_not(node, offer, usage) for node in nodes.values())
    return Refused(ask, tuple(refusal for refusal in refusals if refusal), over_limit)


def best_lender(offer: "Offer", lenders: Iterable[Node], usage: Usage) -> NodeName | None:
    """Of the nodes that can lend, the one that the request prefers or that has the most left; the name breaks ties.

    A lender whose machine is too busy to carry the work comes after all others.
    """
    able = tuple(lenders)
    if not offer.busy:
        return _most_left(offer, able, usage)
    calm = tuple(node for node in able if node.name not in offer.busy)
    return _most_left(offer, calm, usage) or _most_left(offer, able, usage)


def _most_left(offer: "Offer", lenders: Iterable[Node], usage: Usage) -> NodeName | None:
    kind, most = next(iter(offer.need.items()))
    best: tuple[int, tuple[int, ...], float, NodeName] | None = None
    for node in lenders:
        # Most nodes have less free than the best so far and need no further checks.
        free = free_of(node, kind, usage)
        if free < most or node.name == offer.ask.target:
            continue
        found = (offer.rank(node.name), left_after(node, offer, usage), -node.limits.priority, node.name)
        if (best is None or found < best) and never(node, offer) is None and can_lend(node, offer, usage):
            best, most = found, free if offer.ranks is None else most
    return None if best is None else best[-1]


def has_it_itself(offer: "Offer", target: Node, usage: Usage) -> bool:
    """Whether the target may and can use its own capacity: nothing is lent, so no lending limit applies."""
    return offer.ask.own_too and never(target, offer) is None and can_lend(target, offer, usage)


@dataclass(frozen=True, slots=True)
class Offer:
    """A request with how it would be delivered, and all that a lender gives for it."""

    ask: Ask
    rules: Rules
    choice: DeliveryChoice
    need: ResourceVector
    busy: Mapping[NodeName, str] = field(default_factory=dict)
    """Lenders whose machines are too busy to carry the work, or short of memory: how much, and what that means."""
    used_gpus: Mapping[NodeName, tuple[str, ...]] = field(default_factory=dict)
    """For GPUs: lenders on which programs outside Ray use some."""
    ranks: Mapping[NodeName, int] | None = None
    """If the request names the nodes that may lend: by name, the place among them."""

    @property
    def is_transfer(self) -> bool:
        return self.choice.delivery is Delivery.TRANSFER

    @classmethod
    def of(cls, ask: Ask, nodes: NodeTable, rules: Rules) -> "Offer":
        target = nodes[ask.target]
        choice = choose_delivery(
            ask, target, rules.default_delivery, rules.no_transfers_because, why_not_there=_too_busy(ask, nodes)
        )
        need = lent_resources(ask, choice.delivery, rules.companions)
        reserves = choice.delivery is Delivery.RESERVE
        busy = {
            n.name: _strain(n) for n in nodes.in_use if reserves and n.in_use.crowded and n.machine != target.machine
        }
        gpus = {n.name: n.in_use.gpus for n in nodes.in_use if n.in_use.gpus} if ask.kind == GPU else {}
        ranks = None if ask.nodes is None else {name: rank for rank, name in enumerate(ask.nodes)}
        return cls(ask, rules, choice, need, busy, gpus, ranks)

    def rank(self, name: NodeName) -> int:
        """The lower, the more the request prefers this node; equal for all nodes if it has no preference."""
        return 0 if self.ranks is None else self.ranks.get(name, len(self.ranks))

    def prefers_own_to(self, lender: NodeName | None) -> bool:
        """Whether the target would rather use its own capacity, if it can, than borrow from this lender."""
        return self.ask.own_too and (lender is None or self.rank(self.ask.target) < self.rank(lender))

    def from_node(self, source: NodeName) -> Grant:
        choice = self.choice
        warnings = (*choice.warnings, *self._warnings_about(source))
        return Grant(self.ask, source, self.need, choice.delivery, choice.reason, warnings)

    def _warnings_about(self, source: NodeName) -> Iterator[str]:
        if source in self.busy:
            yield f"{source}: {self.busy[source]}"
        if source in self.used_gpus:
            yield (
                f"{source}: {'; '.join(self.used_gpus[source])}. Ray chooses the device, and may give out one that is "
                f"in use: look at nvidia-smi there before heavy work."
            )


def _strain(node: Node) -> str:
    crowded = node.in_use.crowded
    outcome = "may run out of memory" if MEMORY in crowded else "will be slow"
    return f"{'; '.join(crowded.values())}. The work {outcome} there."


def _too_busy(ask: Ask, nodes: NodeTable) -> str | None:
    """Why capacity should not move onto the target's machine; None if no other machine could do the work."""
    target = nodes[ask.target]
    how_busy = target.in_use.crowded.get(ask.kind)
    if how_busy is None:
        return None
    others = (node for node in nodes.lenders if node.machine != target.machine)
    return f"{target.name}: {how_busy}" if any(ask.kind not in node.in_use.crowded for node in others) else None


def obstacle(node: Node, offer: Offer, usage: Usage) -> tuple[RefusalCode, str] | None:
    """The first obstacle that keeps a node from lending, and the kind that it concerns; None if the node can lend."""
    ask, need = offer.ask, offer.need
    if (code := never(node, offer)) is not None:
        return code, ask.kind
    if can_lend(node, offer, usage):
        return None
    if offer.is_transfer and usage.moved_in(node.name, ask.kind):
        return RefusalCode.IS_BORROWING, ask.kind
    if node.name == ask.target:
        short = next(k for k, units in need.items() if units > own_room(node, k, usage))
        is_used = own_room(node, short, usage) + node.in_use.withheld[short] >= need[short]
        return RefusalCode.GPU_IN_USE if is_used else RefusalCode.NO_CAPACITY, short
    for kind, units in need.items():
        limit = node.limits.limit(kind)
        if limit is not None and usage.lent(node.name, kind) + units > limit:
            return RefusalCode.LENDING_LIMIT_REACHED, kind
    short = next(kind for kind, units in need.items() if units > room(node, kind, usage, offer.rules.headroom))
    if node.in_use.withheld[short] and free_of(node, short, usage) + node.in_use.withheld[short] >= need[short]:
        return RefusalCode.GPU_IN_USE, short
    return RefusalCode.NO_CAPACITY if free_of(node, short, usage) < need[short] else RefusalCode.KEPT_FREE, short


def can_lend(node: Node, offer: Offer, usage: Usage) -> bool:
    """Whether the node can lend, by amounts and by what it borrows itself."""
    if offer.is_transfer and usage.moved_in(node.name, offer.ask.kind):
        return False
    if node.name == offer.ask.target:
        return all(units <= own_room(node, kind, usage) for kind, units in offer.need.items())
    headroom = offer.rules.headroom
    return all(units <= room(node, kind, usage, headroom) for kind, units in offer.need.items())


def left_after(node: Node, offer: Offer, usage: Usage) -> tuple[int, ...]:
    """By kind, how much is asked above what the node has free: the lowest leaves the most."""
    return tuple(units - free_of(node, kind, usage) for kind, units in offer.need.items())


def never(node: Node, offer: Offer) -> RefusalCode | None:
    """Why a node cannot lend, however much comes back to it; None if only amounts matter."""
    ask = offer.ask
    is_own = node.name == ask.target
    if is_own and not (ask.own_too and not offer.is_transfer):
        return RefusalCode.IS_TARGET
    if ask.source is not None and node.name != ask.source:
        return RefusalCode.NOT_THE_SOURCE
    if offer.ranks is not None and node.name not in offer.ranks:
        return RefusalCode.RULED_OUT
    if not node.alive:
        return RefusalCode.NODE_DOWN
    if node.silent is not None:
        return RefusalCode.STALE
    if not node.limits.can_share and not is_own:
        return RefusalCode.SHARING_DISABLED
    cordoned = offer.rules.cordoned
    if cordoned and (node.name in cordoned or ask.target in cordoned):
        return RefusalCode.COOLING_DOWN
    return None


def why_not(node: Node, offer: Offer, usage: Usage) -> Refusal | None:
    """The first reason why this node cannot lend what is asked, companions included; None if it can."""
    found = obstacle(node, offer, usage)
    if found is None:
        return None
    code, kind = found
    could = min(offer.ask.units, most_of(node, offer, usage)) if code in BY_AMOUNT else 0
    return Refusal(node.name, code, _in_words(node, code, kind, offer, usage), could)


BY_AMOUNT: Final = (
    RefusalCode.LENDING_LIMIT_REACHED,
    RefusalCode.NO_CAPACITY,
    RefusalCode.KEPT_FREE,
    RefusalCode.GPU_IN_USE,
)
"""Refusals that depend only on the amount: such a node can lend less, or more after a return."""


def _in_words(node: Node, code: RefusalCode, kind: str, offer: Offer, usage: Usage) -> str:
    asked = f"{amount_of(kind, offer.need[kind])} asked"
    free = own_room(node, kind, usage) if node.name == offer.ask.target else free_of(node, kind, usage)
    lent = usage.lent(node.name, kind)
    shown = f"{amount_of(kind, max(0, free))} of {describe(kind, node.total[kind])} free"
    match code:
        case RefusalCode.IS_TARGET:
            return "it is the target itself"
        case RefusalCode.NOT_THE_SOURCE:
            return f"only {offer.ask.source} was asked to lend"
        case RefusalCode.RULED_OUT:
            return "the task's own conditions rule it out: its node, and what it must be near to or far from"
        case RefusalCode.NODE_DOWN:
            return "it is not connected to the cluster"
        case RefusalCode.STALE:
            return f"no recent measurement: {node.silent}"
        case RefusalCode.SHARING_DISABLED:
            return "its configuration says can_share: false"
        case RefusalCode.COOLING_DOWN:
            out = node.name if node.name in offer.rules.cordoned else offer.ask.target
            return f"{out} is cooling down; to end that: grid cooldown {out} --off"
        case RefusalCode.IS_BORROWING:
            return f"it borrows {kind} itself"
        case RefusalCode.LENDING_LIMIT_REACHED:
            limit = describe(kind, node.limits.limit(kind) or 0)
            return f"{amount_of(kind, lent)} of at most {limit} lent, {asked}"
        case RefusalCode.GPU_IN_USE:
            free += node.in_use.withheld[kind]
            shown = f"{amount_of(kind, max(0, free))} of {describe(kind, node.total[kind])} free for Ray"
            return f"{shown}, but {'; '.join(node.in_use.gpus)}; {asked}"
        case RefusalCode.KEPT_FREE:
            units = headroom_of(node, kind, free, lent, offer.rules.headroom)
            return f"{shown}, of which {why_headroom(kind, units, offer.rules.headroom)}, {asked}"
        case _:
            return f"{shown}, {asked}"


def free_of(node: Node, kind: str, usage: Usage) -> int:
    """What a node has free, without what other programs use.

    Ray's view of what is free may be a moment old; grid's count of what it has lent is not.
    """
    return min(node.free[kind], node.base[kind] - usage.taken(node.name, kind)) - node.in_use.withheld[kind]


def own_room(node: Node, kind: str, usage: Usage) -> int:
    """How much a node can set aside for itself: capacity that was moved to it counts as its own."""
    moved_in = usage.moved_in(node.name, kind)
    has = node.base[kind] + moved_in - usage.taken(node.name, kind)
    return min(node.free[kind], has) - node.in_use.withheld[kind]


def room(node: Node, kind: str, usage: Usage, headroom: Headroom) -> int:
    """How much of one kind a node could lend, given what is free, its headroom and its limit."""
    return room_of(node, kind, free_of(node, kind, usage), usage.lent(node.name, kind), headroom)


def room_of(node: Node, kind: str, free: int, lent: int, headroom: Headroom) -> int:
    """The same for a moment at which `free` is free and `lent` is lent."""
    left = free if headroom is NO_HEADROOM else free - headroom_of(node, kind, free, lent, headroom)
    limit = node.limits.limit(kind)
    return left if limit is None or left < limit - lent else limit - lent


def most_of(node: Node, offer: Offer, usage: Usage) -> int:
    """How much of the asked kind a node could lend now, in units: the companions must fit, too."""
    ask, rules = offer.ask, offer.rules
    is_own = node.name == ask.target
    rooms = {
        kind: max(0, own_room(node, kind, usage) if is_own else room(node, kind, usage, rules.headroom))
        for kind in offer.need
    }
    most = most_within(ask, offer.choice.delivery, rules.companions, rooms)
    # A request for whole GPUs is offered no part of one.
    return most - most % scale(GPU) if ask.kind == GPU and whole(GPU, ask.units) else most


def counter_offer(refused: Refused) -> str | None:
    """The largest amount that one node could lend instead, as the command that requests it."""
    ask = refused.ask
    best = max(refused.refusals, key=lambda r: (r.could_lend, r.node), default=None)
    if best is None or best.could_lend <= 0 or best.could_lend >= ask.units:
        return None
    if (units := cut_off(ask.kind, best.could_lend)) == 0:
        return None
    amount = amount_of(ask.kind, units)
    delivery = f" --delivery {ask.delivery}" if ask.delivery else ""
    return (
        f"{describe(ask.kind, units)} can be lent by {best.node}: "
        f"grid boost request {ask.target} {ask.kind} {amount} --source {best.node}{delivery}"
    )


Lender = Callable[[Ask], NodeName | None]
"""The node that would lend this now."""


def largest_now(
    ask: Ask, nodes: NodeTable, usage: Usage, rules: Rules, lender_of: Lender | None = None
) -> tuple[int, NodeName | None]:
    """The largest amount that would be granted now, in units, and its lender; zero: nothing would be granted.

    Whole GPUs, unless the request is for a part of one; other kinds in amounts that people can write. `lender_of` gives
    the queue's answer where other requests wait.
    """
    step = scale(GPU) if ask.kind == GPU and whole(GPU, ask.units) else 1
    most = max((node.base[ask.kind] for node in nodes.lenders), default=0) // step

    def offer(steps: int) -> Offer:
        return Offer.of(replace(ask, units=steps * step), nodes, rules)

    def lender(steps: int) -> NodeName | None:
        asked = offer(steps)
        if lender_of is not None:
            return lender_of(asked.ask)
        over_limit = why_over_limit(asked.ask, asked.need, nodes, usage, rules.teams)
        return best_lender(asked, nodes.lenders, usage) if over_limit is None else None

    # `auto` transfers what the target's machine can carry and reserves larger amounts. Each delivery has a largest
    # amount of its own, so each is searched separately.
    transfers = bisect_left(range(1, most + 1), True, key=lambda steps: not offer(steps).is_transfer)
    for amounts in (range(transfers + 1, most + 1), range(1, transfers + 1)):
        if granted := bisect_left(amounts, True, key=lambda steps: lender(steps) is None):
            units = cut_off(ask.kind, amounts[granted - 1] * step)
            if units and (source := lender(units // step)) is not None:
                return units, source
    return 0, None
