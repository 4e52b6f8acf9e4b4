"""The largest amount that would be granted now."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace

from distributed_grid.decide.lending import Offer, best_lender
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.quotas import why_over_limit
from distributed_grid.model.nodes import NodeName, NodeTable
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import GPU, cut_off, scale, whole
from distributed_grid.model.rules import Rules

Lender = Callable[[Ask], NodeName | None]
"""Who would lend this now."""


def largest_now(
    ask: Ask, nodes: NodeTable, loans: Loans, rules: Rules, lender_of: Lender | None = None
) -> tuple[int, NodeName | None]:
    """In units, and who would lend it, if the same were asked for in another amount; zero: nothing would be granted.

    Whole GPUs, unless a part of one is asked for; other kinds as people can write them. `lender_of`: where others wait,
    what the queue says.
    """
    step = scale(GPU) if ask.kind == GPU and whole(GPU, ask.units) else 1
    most = max((node.base[ask.kind] for node in nodes.lenders), default=0) // step

    def offer(steps: int) -> Offer:
        return Offer.of(replace(ask, units=steps * step), nodes, rules)

    def lender(steps: int) -> NodeName | None:
        asked = offer(steps)
        if lender_of is not None:
            return lender_of(asked.ask)
        over_limit = why_over_limit(asked.ask, asked.need, nodes, loans, rules.teams)
        return best_lender(asked, nodes.lenders, loans) if over_limit is None else None

    # `auto` transfers what the target's machine can carry and reserves what is more. Either is granted up to an amount
    # of its own, so each is searched for itself.
    transfers = bisect_left(range(1, most + 1), True, key=lambda steps: not offer(steps).is_transfer)
    for amounts in (range(transfers + 1, most + 1), range(1, transfers + 1)):
        if granted := bisect_left(amounts, True, key=lambda steps: lender(steps) is None):
            units = cut_off(ask.kind, amounts[granted - 1] * step)
            if units and (source := lender(units // step)) is not None:
                return units, source
    return 0, None
