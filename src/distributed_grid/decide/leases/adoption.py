"""Adoption: which boosts of another cluster this one can take over."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from distributed_grid.decide.capacity.delivery import DeliveryChoice, Offer
from distributed_grid.decide.capacity.feasibility import why_not
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeTable, gpu_part
from distributed_grid.model.plans import NO_RULES
from distributed_grid.model.requests import Ask


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """The boosts that are taken over, and those that are left with the reason; boosts that are over are in neither."""

    taken: tuple[Lease, ...]
    left: tuple[tuple[Lease, str], ...]


def plan_adoption(offered: Iterable[Lease], own: Iterable[Lease], nodes: NodeTable, *, now: datetime) -> AdoptionPlan:
    """Take every unexpired boost whose nodes are here and can lend it beside what they already lend, oldest first."""
    holding = list(own)
    known = {lease.id for lease in holding}
    taken: list[Lease] = []
    left: list[tuple[Lease, str]] = []
    for lease in sorted(offered, key=lambda lease: (lease.allocated_at, lease.id)):
        if lease.id in known or is_over(lease, now):
            continue
        if (reason := _why_not(lease, holding, nodes)) is not None:
            left.append((lease, reason))
        else:
            holding.append(lease)
            taken.append(lease)
    return AdoptionPlan(tuple(taken), tuple(left))


def is_over(lease: Lease, now: datetime) -> bool:
    return lease.is_winding_down or lease.expires_at <= now


def _why_not(lease: Lease, holding: list[Lease], nodes: NodeTable) -> str | None:
    for name in (lease.source, lease.target):
        if name not in nodes:
            return f"no node here is named {name}"
        if not nodes[name].alive:
            return f"{name} is not connected"
    # Whether capacity is idle now does not matter: this cluster's own boosts would be applied all the same.
    parts = tuple(filter(None, (gpu_part(each.resources) for each in holding if each.source == lease.source)))
    source = replace(nodes[lease.source], free=nodes[lease.source].base, gpu_parts=parts)
    ask = replace(Ask.again(lease), own_too=True)
    offer = Offer(
        ask, NO_RULES, DeliveryChoice(lease.delivery, lease.delivery_reason), lease.resources, lease.resources
    )
    refusal = why_not(source, offer, Usage.of(holding))
    return None if refusal is None else f"{refusal.node}: {refusal.detail}"
