"""The choice of the lender that is left with the most; and the largest amount that could be lent instead."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import nlargest

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.decide.capacity.feasibility import (
    can_lend,
    free_of,
    is_borrowing,
    may_lend,
    never,
    room_now,
    why_not,
)
from distributed_grid.decide.capacity.parts import Room, divide
from distributed_grid.decide.capacity.quotas import why_over_limit
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import NO_RULES, Grant, Part, Refused, Rules, TeamLimit
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask, Layout, command
from distributed_grid.model.resources import GPU, cut_off, describe, is_given_out, scale, whole


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
    return _refused(offer, nodes, usage, over_limit)


def _refused(offer: Offer, nodes: NodeTable, usage: Usage, over_limit: TeamLimit | None) -> Refused:
    refusals = (why_not(node, offer, usage) for node in nodes.values())
    return Refused(offer.ask, tuple(refusal for refusal in refusals if refusal), over_limit)


def plan_parts(ask: Ask, nodes: NodeTable, usage: Usage, rules: Rules = NO_RULES) -> tuple[Grant, ...] | Refused:
    """The same for a request that several nodes may meet together, if no single node can, or that has members."""
    if ask.members > 1:
        offer = Offer.of(ask, nodes, rules)
        over_limit = why_over_limit(ask, offer.need, nodes, usage, rules.teams)
        parts = None if over_limit is not None else several_lenders(offer, nodes, usage)
        return _refused(offer, nodes, usage, over_limit) if parts is None else offer.from_parts(parts)
    plan = plan_grant(ask, nodes, usage, rules)
    if isinstance(plan, Grant):
        return (plan,)
    if plan.team_limit is not None or not ask.may_be_divided:
        return plan
    offer = Offer.of(ask, nodes, rules)
    parts = several_lenders(offer, nodes, usage)
    return plan if parts is None else offer.from_parts(parts)


def several_lenders(offer: Offer, nodes: NodeTable, usage: Usage) -> tuple[Part, ...] | None:
    """The nodes that can lend this together now, and how much each lends."""
    kind, units = offer.ask.kind, offer.ask.units
    if not offer.ask.may_be_divided or not _may_be_free(kind, units, offer, nodes):
        return None
    return divide(offer, rooms_now(offer, nodes, usage))


def _may_be_free(kind: str, units: int, offer: Offer, nodes: NodeTable) -> bool:
    """Quick: whether all nodes together have that much free, lent or not. If not, no division can work."""
    own = nodes[offer.ask.target].free[kind]
    return own + sum(node.free[kind] for node in nodes.lenders) >= units


def rooms_now(offer: Offer, nodes: NodeTable, usage: Usage) -> Iterator[Room]:
    """What each node that may lend a part of this has room for now."""
    able = (node for node in may_lend(nodes, offer) if not is_borrowing(node, offer, usage))
    return (room_now(node, offer, usage) for node in able)


def best_lender(offer: Offer, lenders: Iterable[Node], usage: Usage) -> NodeName | None:
    """Of the nodes that can lend, the one that the request prefers or that has the most left; then by the node's
    priority, then by name.

    A lender whose machine is too busy to carry the work comes after all others.
    """
    able = tuple(lenders)
    if not offer.busy:
        return _most_left(offer, able, usage)
    calm = tuple(node for node in able if node.name not in offer.busy)
    return _most_left(offer, calm, usage) or _most_left(offer, able, usage)


Preference = tuple[bool, int, bool, tuple[int, ...], float, NodeName]


def preference(offer: Offer, node: Node, left: tuple[int, ...]) -> Preference:
    """The order of nodes that can all lend this, now or at one later moment: the lowest comes first.

    `left`: by kind, how much is asked above what the node has free then.
    """
    name = node.name
    return name in offer.busy, offer.rank(name), name == offer.ask.target, left, -node.limits.priority, name


def _most_left(offer: Offer, lenders: Iterable[Node], usage: Usage) -> NodeName | None:
    (kind, units), *others = offer.need.items()
    most = units
    best: Preference | None = None
    for node in lenders:
        # Most nodes have less free than the best so far and need no further checks.
        free = free_of(node, kind, usage)
        if free < most or node.name == offer.ask.target:
            continue
        # By kind, how much more is requested than the node has free: the lowest leaves the most.
        left = (units - free, *[more - free_of(node, other, usage) for other, more in others])
        found = preference(offer, node, left)
        if (best is None or found < best) and never(node, offer) is None and can_lend(node, offer, usage):
            best, most = found, free if offer.ranks is None else most
    return None if best is None else best[-1]


def has_it_itself(offer: Offer, target: Node, usage: Usage) -> bool:
    """Whether the target may and can use its own capacity: nothing is lent, so no lending limit applies."""
    return offer.ask.own_too and never(target, offer) is None and can_lend(target, offer, usage)


def counter_offer(refused: Refused) -> str | None:
    """The largest amount that could be lent instead, and how the caller requests it; the name breaks ties."""
    ask = refused.ask
    if ask.members > 1:
        return _fewer_members(refused)
    if ask.max_sources > 1 and (offer := _from_several(refused)) is not None:
        return offer
    best = min(refused.refusals, key=lambda r: (-r.could_lend, r.node == ask.target, r.node), default=None)
    if best is None or best.could_lend <= 0 or best.could_lend >= ask.units:
        return None
    if (units := cut_off(ask.kind, best.could_lend)) == 0:
        return None
    how = command(replace(ask, units=units, sources=(best.node,))) or "request that amount"
    return f"{describe(ask.kind, units)} can be lent by {best.node}: {how}"


def _fewer_members(refused: Refused) -> str | None:
    """The counter-offer to a request whose members need a node each: as many members as nodes have room for one."""
    ask, able = refused.ask, sum(r.code is RefusalCode.TOO_FEW_FIT for r in refused.refusals)
    if ask.layout is not Layout.STRICT_SPREAD or not 0 < able < ask.members:
        return None
    how = command(ask.member.times(able, ask.layout)) or "request that many"
    return f"{able} of {ask.members} nodes have room for {ask.member.amounts}: {how}"


def _from_several(refused: Refused) -> str | None:
    """The counter-offer of several lenders together; None if no more than one could lend a part."""
    ask, step = refused.ask, scale(refused.ask.kind) if whole(refused.ask.kind, refused.ask.units) else 1
    able = sorted((r for r in refused.refusals if r.could_lend >= step), key=lambda r: (-r.could_lend, r.node))
    parts = [r.could_lend - r.could_lend % step for r in able[: ask.max_sources]]
    units = cut_off(ask.kind, sum(parts))
    if len(parts) < 2 or not 0 < units < ask.units:
        return None
    how = command(replace(ask, units=units)) or "request that amount"
    return f"{describe(ask.kind, units)} can be lent by {len(parts)} nodes together: {how}"


Lenders = Callable[[Ask], Sequence[NodeName]]
"""The nodes that would lend this now; none, if it would not be granted."""


def largest_now(
    ask: Ask, nodes: NodeTable, usage: Usage, rules: Rules, lenders_of: Lenders | None = None
) -> tuple[int, tuple[NodeName, ...]]:
    """The largest amount that would be granted now, in units, and its lenders; zero: nothing would be granted.

    Whole GPUs, unless the request is for a part of one; other kinds in amounts that people can write. `lenders_of`
    gives the queue's answer where other requests wait.
    """
    if ask.members > 1:
        return 0, ()  # a smaller amount would be another number of members, or smaller ones
    together = _largest_together(ask, nodes, usage, rules, lenders_of) if ask.max_sources > 1 else (0, ())
    ask = replace(ask, max_sources=1)
    alone = _largest_of_one(ask, nodes, usage, rules, lenders_of)
    return max(alone, together, key=lambda found: found[0])


def _largest_together(
    ask: Ask, nodes: NodeTable, usage: Usage, rules: Rules, lenders_of: Lenders | None
) -> tuple[int, tuple[NodeName, ...]]:
    """The same from several nodes, in whole amounts: what those with the most room can lend, up to the team's limit."""
    one = scale(ask.kind)
    every = max(1, sum(node.base[ask.kind] for node in nodes.lenders) // one)
    offer = Offer.of(replace(ask, units=every * one), nodes, rules)
    rooms = nlargest(ask.max_sources, (room.most(offer) for room in rooms_now(offer, nodes, usage)))
    most = sum(rooms) // one

    def is_over_limit(count: int) -> bool:
        smaller = offer.part(count * one)
        return why_over_limit(smaller.ask, smaller.need, nodes, usage, rules.teams) is not None

    units = bisect_left(range(1, most + 1), True, key=is_over_limit) * one
    if not units:
        return 0, ()
    smaller = replace(ask, units=units)
    if lenders_of is not None:
        sources = tuple(lenders_of(smaller))
    else:
        sources = tuple(part.source for part in several_lenders(Offer.of(smaller, nodes, rules), nodes, usage) or ())
    return (units, sources) if sources else (0, ())


def _largest_of_one(
    ask: Ask, nodes: NodeTable, usage: Usage, rules: Rules, lenders_of: Lenders | None
) -> tuple[int, tuple[NodeName, ...]]:
    step = scale(GPU) if ask.kind == GPU and whole(GPU, ask.units) else 1
    most = max((node.base[ask.kind] for node in nodes.lenders), default=0) // step

    def offer(steps: int) -> Offer:
        return Offer.of(replace(ask, units=steps * step), nodes, rules)

    def lenders(steps: int) -> tuple[NodeName, ...]:
        smaller = offer(steps)
        if lenders_of is not None:
            return tuple(lenders_of(smaller.ask))
        if why_over_limit(smaller.ask, smaller.need, nodes, usage, rules.teams) is not None:
            return ()
        one = best_lender(smaller, nodes.lenders, usage)
        return () if one is None else (one,)

    # `auto` transfers what the target's machine can carry and reserves larger amounts. Each delivery has a largest
    # amount of its own, so each is searched separately.
    transfers = bisect_left(range(1, most + 1), True, key=lambda steps: not offer(steps).is_transfer)
    for amounts in (range(transfers + 1, most + 1), range(1, transfers + 1)):
        if granted := bisect_left(amounts, True, key=lambda steps: not lenders(steps)):
            units = cut_off(ask.kind, amounts[granted - 1] * step)
            if not is_given_out(ask.kind, units):
                units -= units % scale(GPU)
            if units and (sources := lenders(units // step)):
                return units, sources
    return 0, ()
