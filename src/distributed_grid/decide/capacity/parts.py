"""Requests that several nodes meet together: how much each of them lends.

The same rules apply at every moment, so the caller says what a node has room for: now, or from a later moment on.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.model.nodes import Node, NodeName
from distributed_grid.model.plans import Part
from distributed_grid.model.resources import GPU, scale

_FINEST: Final = 100
"""No part but the last is finer than a hundredth of a core, device or GB."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has room for, by kind; of GPUs, by device."""

    node: Node
    rooms: Mapping[str, int]

    def fits(self, offer: Offer, units: int) -> bool:
        """Whether the node can lend so much of the request, companions included."""
        return all(more <= self.rooms[kind] for kind, more in offer.part(units).need.items())

    def most(self, offer: Offer) -> int:
        """The largest part of the request that the node can lend, in amounts that people would choose."""
        step = _step(offer)
        most = min(offer.ask.units, self.rooms[offer.ask.kind]) // step
        return step * bisect_left(range(1, most + 1), True, key=lambda steps: not self.fits(offer, steps * step))


def _step(offer: Offer) -> int:
    """Requests in whole cores, devices or GB get whole parts."""
    kind, units = offer.ask.kind, offer.ask.units
    return scale(GPU) if kind == GPU else max(math.gcd(units, scale(kind)), scale(kind) // _FINEST)


def divide(offer: Offer, rooms: Iterable[Room]) -> tuple[Part, ...] | None:
    """The parts that together are all that is requested, from as few nodes as possible; None if that takes more nodes
    than the request allows.

    The node that can lend the most comes first; machines that are too busy to carry the work come last, unless there
    are too few others.
    """
    kind, units, rooms = offer.ask.kind, offer.ask.units, tuple(rooms)
    if sum(room.rooms[kind] for room in rooms) < units:
        return None
    able = [(room, most) for room in rooms if (most := room.most(offer))]
    able.sort(key=lambda each: (each[0].node.name in offer.busy, *_order(offer, *each)))
    parts = _taken_in_turn(offer, able)
    if parts is None and offer.busy:
        able.sort(key=lambda each: _order(offer, *each))
        parts = _taken_in_turn(offer, able)
    return parts


def _order(offer: Offer, room: Room, most: int) -> tuple[int, bool, int, float, NodeName]:
    name = room.node.name
    return offer.rank(name), name == offer.ask.target, -most, -room.node.limits.priority, name


def _taken_in_turn(offer: Offer, able: Iterable[tuple[Room, int]]) -> tuple[Part, ...] | None:
    parts: list[Part] = []
    left = offer.ask.units
    for room, most in able:
        if len(parts) == offer.ask.max_sources:
            return None
        is_last = room.fits(offer, left)
        units = left if is_last else min(most, left)
        reason = "the rest" if is_last else f"the most that {room.node.name} can lend"
        parts.append(Part(room.node.name, units, reason))
        left -= units
        if not left:
            return tuple(parts)
    return None
