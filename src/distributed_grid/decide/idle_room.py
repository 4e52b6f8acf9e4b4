"""What a node could lend at the very best: for telling what may come from what never will."""

from dataclasses import replace

from distributed_grid.decide.lending import Offer, room_of
from distributed_grid.model.nodes import Node
from distributed_grid.model.rules import Reserve


def could_when_idle(node: Node, offer: Offer) -> bool:
    if node.name == offer.ask.target:  # what a node sets aside of its own is not lent
        return all(units <= node.base[kind] for kind, units in offer.need.items())
    return all(units <= room_when_idle(node, kind, offer.rules.reserve) for kind, units in offer.need.items())


def room_when_idle(node: Node, kind: str, reserve: Reserve) -> int:
    """How much it could lend if nothing were lent and its own work needed nothing."""
    return room_of(replace(node, total=node.base), kind, node.base[kind], 0, reserve)
