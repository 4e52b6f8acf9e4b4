"""Requests that several nodes meet together: how much each of them lends.

An amount is divided among as few nodes as possible. The members of a request are not: each is whole on one node. The
same rules apply at every moment, so the caller says what a node has room for: now, or from a later moment on.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from distributed_grid.decide.capacity.delivery import Offer
from distributed_grid.model.nodes import Node, NodeName
from distributed_grid.model.plans import Part
from distributed_grid.model.requests import Ask, Layout
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
        if len(offer.need) == 1:
            return units <= self.rooms[offer.ask.kind]
        return all(more <= self.rooms[kind] for kind, more in offer.part(units).need.items())

    def most(self, offer: Offer) -> int:
        """The largest part of the request that the node can lend, in amounts that people would choose."""
        if offer.ask.members > 1:
            return self.members(offer) * (offer.ask.units // offer.ask.members)
        step = _step(offer)
        most = max(0, min(offer.ask.units, self.rooms[offer.ask.kind])) // step
        if self.fits(offer, most * step):
            return most * step
        return step * bisect_left(range(1, most + 1), True, key=lambda steps: not self.fits(offer, steps * step))

    def members(self, offer: Offer) -> int:
        """How many members of the request fit on the node at once."""
        most = 1 if offer.ask.layout is Layout.STRICT_SPREAD else offer.ask.members
        return min(most, *(self.rooms[kind] // units for kind, units in offer.each.items()))


def _step(offer: Offer) -> int:
    """Requests in whole cores, devices or GB get whole parts."""
    kind, units = offer.ask.kind, offer.ask.units
    return scale(GPU) if kind == GPU else max(math.gcd(units, scale(kind)), scale(kind) // _FINEST)


def divide(offer: Offer, rooms: Iterable[Room]) -> tuple[Part, ...] | None:
    """The parts that together are all that is requested; None if that takes more nodes than the request allows.

    Machines that are too busy to carry the work come last. An amount comes from as few nodes as possible, beginning
    with the node that can lend the most.
    """
    kind, units, rooms = offer.ask.kind, offer.ask.units, tuple(rooms)
    if offer.ask.members > 1:
        return _placed(offer, rooms) if sum(room.rooms[kind] for room in rooms) >= units else None
    if sum(nlargest(offer.ask.max_sources, (room.rooms[kind] for room in rooms))) < units:
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


# -- members ---------------------------------------------------------------------------------------------------


def _placed(offer: Offer, rooms: Iterable[Room]) -> tuple[Part, ...] | None:
    """A part for each member, or None: on the preferred nodes if these have room, else by the layout."""
    able = [(room, count) for room in rooms if (count := room.members(offer))]
    able.sort(key=lambda each: (each[0].node.name in offer.busy, *_order(offer, *each)))
    fit = {room.node.name: count for room, count in able}
    nodes = _as_preferred(offer, fit) or _laid_out(offer, fit)
    return None if nodes is None else in_bundles(offer.ask, nodes)


def in_bundles(ask: Ask, nodes: Iterable[NodeName]) -> tuple[Part, ...]:
    """A part for each bundle of a request, given the node of each of its members."""
    units = ask.units // ask.members
    if not ask.shares_bundles:
        return tuple(Part(name, units, "a member") for name in nodes)
    counts = Counter(nodes).items()
    return tuple(Part(name, n * units, "a member" if n == 1 else f"{n} members") for name, n in counts)


def _as_preferred(offer: Offer, fit: Mapping[NodeName, int]) -> tuple[NodeName, ...] | None:
    places = offer.ask.places
    if len(places) != offer.ask.members or any(fit.get(name, 0) < count for name, count in Counter(places).items()):
        return None
    is_apart = offer.ask.layout is Layout.STRICT_PACK and len(set(places)) > 1
    return None if is_apart else places


def _laid_out(offer: Offer, fit: Mapping[NodeName, int]) -> tuple[NodeName, ...] | None:
    """The node of each member. `fit`: how many members fit on each node, in the order of preference."""
    count, layout = offer.ask.members, offer.ask.layout
    if layout is Layout.STRICT_PACK:
        one = next((name for name, most in fit.items() if most >= count), None)
        return None if one is None else (one,) * count
    if sum(fit.values()) < count:
        return None
    in_turn = _each_once(fit) if layout is Layout.SPREAD else (name for name in fit for _ in range(fit[name]))
    nodes = [name for _, name in zip(range(count), in_turn, strict=False)]
    return tuple(sorted(nodes, key=list(fit).index))


def _each_once(fit: Mapping[NodeName, int]) -> Iterator[NodeName]:
    """Each node once, then each node that has room for another one, and so on."""
    for number in range(max(fit.values(), default=0)):
        yield from (name for name, most in fit.items() if most > number)
