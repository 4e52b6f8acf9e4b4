"""Who lends: feasibility with a reason for every node that cannot, then the one left with the most."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from distributed_grid.decide.delivery import DEFAULT_COMPANIONS, Companions, choose_delivery, lent_resources
from distributed_grid.decide.loans import Loans
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Grant, Refusal, RefusalCode, Refused
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import GPU, ResourceVector, amount_of, describe, scale, whole

Lends = Callable[[int], ResourceVector]
"""All that is lent, by how much of the asked kind: a GPU brings CPUs along."""


def plan_grant(
    ask: Ask,
    nodes: NodeTable,
    leases: tuple[Lease, ...],
    *,
    default_delivery: str | None = None,
    companions: Companions = DEFAULT_COMPANIONS,
    no_transfers_because: str | None = None,
) -> Grant | Refused:
    """Choose how and from whom, or say for every node why not. The target must be in the table."""
    choice = choose_delivery(ask, nodes[ask.target], default_delivery, no_transfers_because)

    def lends(units: int) -> ResourceVector:
        return lent_resources(replace(ask, units=units), choice.delivery, companions)

    need = lends(ask.units)
    loans = Loans.of(leases)
    refusals = tuple(
        refusal for node in nodes.values() if (refusal := why_not(node, ask, lends, loans, delivery=choice.delivery))
    )
    refused = {refusal.node for refusal in refusals}
    willing = [node for node in nodes.values() if node.name not in refused]
    if not willing:
        return Refused(ask, refusals)
    # The name breaks ties, so equal inputs give equal plans.
    best = min(willing, key=lambda node: (*_negated_headroom(node, need), -node.limits.priority, node.name))
    return Grant(ask, best.name, need, choice.delivery, choice.reason, choice.warnings)


def why_not(node: Node, ask: Ask, lends: Lends, loans: Loans, *, delivery: Delivery) -> Refusal | None:
    """The first reason why this node cannot lend what is asked, with all that comes along; None if it can."""
    if node.name == ask.target:
        return Refusal(node.name, RefusalCode.IS_TARGET, "it is the target itself")
    if ask.source is not None and node.name != ask.source:
        return Refusal(node.name, RefusalCode.NOT_THE_SOURCE, f"only {ask.source} was asked to lend")
    if not node.alive:
        return Refusal(node.name, RefusalCode.NODE_DOWN, "it is not connected to the cluster")
    if node.silent is not None:
        return Refusal(node.name, RefusalCode.STALE, f"nobody knows what it does: {node.silent}")
    if not node.limits.can_share:
        return Refusal(node.name, RefusalCode.SHARING_DISABLED, "its configuration says can_share: false")
    if delivery is Delivery.TRANSFER and loans.moved_to(node.name)[ask.kind]:
        return Refusal(node.name, RefusalCode.IS_BORROWING, f"it borrows {ask.kind} itself")
    need, lent = lends(ask.units), loans.lent_by(node.name)
    for kind in need:
        limit = node.limits.limit(kind)
        if limit is not None and lent[kind] + need[kind] > limit:
            return Refusal(
                node.name,
                RefusalCode.LENDING_LIMIT_REACHED,
                f"{amount_of(kind, lent[kind])} of at most {describe(kind, limit)} lent, "
                f"{amount_of(kind, need[kind])} asked",
                _most(node, ask, lends, loans),
            )
    for kind in need:
        free = _free(node, kind, loans)
        if free < need[kind]:
            return Refusal(
                node.name,
                RefusalCode.NO_CAPACITY,
                f"{amount_of(kind, max(0, free))} of {describe(kind, node.total[kind])} free, "
                f"{amount_of(kind, need[kind])} asked",
                _most(node, ask, lends, loans),
            )
    return None


def _free(node: Node, kind: str, loans: Loans) -> int:
    """What Ray shows as free may be a moment old; what we have lent is not."""
    return min(node.free[kind], node.base[kind] - loans.lent_by(node.name)[kind])


def _most(node: Node, ask: Ask, lends: Lends, loans: Loans) -> int:
    """How much of what is asked a node could lend now, in units: all that comes along must fit, too."""
    # Who asks for whole GPUs can be offered no part of one.
    step = scale(GPU) if ask.kind == GPU and whole(GPU, ask.units) else 1

    def is_too_much(steps: int) -> bool:
        return any(amount > _room(node, kind, loans) for kind, amount in lends(steps * step).items())

    return step * (bisect_left(range(ask.units // step + 1), True, lo=1, key=is_too_much) - 1)


def _room(node: Node, kind: str, loans: Loans) -> int:
    """How much of one kind a node could lend, by what is free and by its limit."""
    free, limit = _free(node, kind, loans), node.limits.limit(kind)
    return free if limit is None else min(free, limit - loans.lent_by(node.name)[kind])


def counter_offer(refused: Refused) -> str | None:
    """The largest amount that one node could lend instead, as the command to ask for it."""
    ask = refused.ask
    best = max(refused.refusals, key=lambda r: (r.could_lend, r.node), default=None)
    if best is None or best.could_lend <= 0 or best.could_lend >= ask.units:
        return None
    # Cut off after four digits, not rounded: what is offered must be there.
    units = best.could_lend * 10_000 // scale(ask.kind) * scale(ask.kind) // 10_000
    if units == 0:
        return None
    amount = amount_of(ask.kind, units)
    delivery = f" --delivery {ask.delivery}" if ask.delivery else ""
    return (
        f"{describe(ask.kind, units)} can be lent by {best.node}: "
        f"grid boost request {ask.target} {ask.kind} {amount} --source {best.node}{delivery}"
    )


def _negated_headroom(node: Node, need: ResourceVector) -> tuple[int, ...]:
    return tuple(need[kind] - node.free[kind] for kind in need)
