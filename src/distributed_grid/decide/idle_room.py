"""What a node could lend at the very best: for telling what may come from what never will."""

from dataclasses import replace

from distributed_grid.decide.lending import Offer, room_of
from distributed_grid.model.nodes import Node


def could_when_idle(node: Node, offer: Offer) -> bool:
    return all(units <= room_when_idle(node, kind, offer) for kind, units in offer.need.items())


def room_when_idle(node: Node, kind: str, offer: Offer) -> int:
    """How much it could lend if nothing were lent and its own work needed nothing; or set aside for itself."""
    if node.name == offer.ask.target:
        return node.base[kind]
    return room_of(replace(node, total=node.base), kind, node.base[kind], 0, offer.rules.reserve)
