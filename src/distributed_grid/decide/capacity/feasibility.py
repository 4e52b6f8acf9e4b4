"""Feasibility: the free capacity of a node, its headroom, and the part that it could lend; and why it cannot meet a
request.

Every part of grid asks here: grants, the queue, preemption, the task scheduler, the inventory for roles, suggestions.
The reasons and their texts are in `model/refusals.py`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from distributed_grid.decide.capacity.delivery import Offer, most_within
from distributed_grid.decide.capacity.devices import device_room, most_at_once
from distributed_grid.decide.capacity.parts import Room
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.model.nodes import NOT_IN_USE, Node, NodeName, NodeTable, SharingLimits
from distributed_grid.model.plans import NO_HEADROOM, NO_RULES, Headroom, Refusal, Rules
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import GPU, ResourceVector, amount_of, describe, scale, whole
from distributed_grid.model.roles.plan import Inventory, InventoryNode

# -- amounts ---------------------------------------------------------------------------------------------------


def free_of(node: Node, kind: str, usage: Usage) -> int:
    """The free capacity of a node, without what other programs use.

    Ray's view of what is free may be a moment old; grid's count of what it has lent is not.
    """
    return left_of(node, kind, node.free[kind], node.base[kind] - usage.taken(node.name, kind))


def own_room(node: Node, kind: str, usage: Usage) -> int:
    """How much a node can set aside for itself: capacity that was moved to it counts as its own."""
    moved_in = usage.moved_in(node.name, kind)
    return left_of(node, kind, node.free[kind], node.base[kind] + moved_in - usage.taken(node.name, kind))


def left_of(node: Node, kind: str, free: int, not_taken: int) -> int:
    """The rest when Ray has `free` free and leases leave `not_taken`: now, or at a later moment."""
    left = free if free < not_taken else not_taken
    return left if node.in_use is NOT_IN_USE else left - node.in_use.withheld[kind]


def free_in(reserved: ResourceVector, used: ResourceVector, promised: ResourceVector) -> ResourceVector:
    """The free capacity of a reservation: what is neither in use there, by Ray's view, nor promised to work.

    The use may come from that same work: the larger of the two counts, not both.
    """
    free = {kind: units - max(used[kind], promised[kind]) for kind, units in reserved.items()}
    return ResourceVector(free).at_least_zero()


def room(node: Node, kind: str, usage: Usage, headroom: Headroom) -> int:
    """How much of one kind a node could lend, given what is free, its headroom and its limit."""
    return room_of(node, kind, free_of(node, kind, usage), usage.lent(node.name, kind), headroom)


def room_of(node: Node, kind: str, free: int, lent: int, headroom: Headroom) -> int:
    """The same for a moment at which `free` is free and `lent` is lent."""
    return within_limit(node, kind, free - headroom_of(node, kind, free, lent, headroom), lent)


def within_limit(node: Node, kind: str, left: int, lent: int) -> int:
    """How much of what is left beside its headroom a node may lend, in addition to what it lends already."""
    limit = node.limits.limit(kind)
    return left if limit is None or left < limit - lent else limit - lent


def headroom_of(node: Node, kind: str, free: int, lent: int, headroom: Headroom) -> int:
    """The headroom of a node, in units. Only whole GPUs are kept, so a node with a single GPU keeps none."""
    if headroom is NO_HEADROOM:
        return 0
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


def lendable(node: Node, usage: Usage, rules: Rules) -> ResourceVector:
    """All that a node could lend to other nodes now; nothing, if it does not lend at all."""
    if not_lending(node, rules) is not None:
        return ResourceVector()
    kinds = {**node.total, **node.base}
    return ResourceVector({kind: max(0, room(node, kind, usage, rules.headroom)) for kind in kinds})


def without_work(node: Node) -> Node:
    """The node if nothing ran on it; what leases hold of it they still hold."""
    free = {kind: max(node.base[kind], node.total[kind]) for kind in {**node.base, **node.total}}
    return replace(node, free=ResourceVector(free))


def room_when_idle(node: Node, kind: str, headroom: Headroom, *, is_own: bool) -> int:
    """How much a node could lend with nothing lent and no work of its own; for its own work, all that it has."""
    if is_own:
        return max(node.base[kind], node.total[kind])
    return room_of(replace(node, total=node.base), kind, node.base[kind], 0, headroom)


def when_idle(node: Node, offer: Offer) -> dict[str, int]:
    """`room_when_idle` of each kind that is needed."""
    is_own, headroom = node.name == offer.ask.target, offer.rules.headroom
    return {kind: room_when_idle(node, kind, headroom, is_own=is_own) for kind in offer.need}


def idle_room(node: Node, offer: Offer) -> Room:
    """The same for a request that several nodes may meet together."""
    rooms = when_idle(node, offer)
    if offer.ask.members > 1 and GPU in rooms:
        units = offer.each[GPU]
        rooms[GPU] = units * most_at_once(node.total[GPU], rooms[GPU], units)
    return Room(node, rooms)


def could_when_idle(node: Node, offer: Offer) -> bool:
    rooms = when_idle(node, offer)
    return all(units <= rooms[kind] for kind, units in offer.need.items())


def most_of(node: Node, offer: Offer, usage: Usage) -> int:
    """How much of the requested kind a node could lend now, in units: the companions must fit, too."""
    ask = offer.ask
    most = most_within(ask, offer.choice.delivery, offer.rules.companions, room_now(node, offer, usage).rooms)
    # A request for whole GPUs is offered no part of one.
    return most - most % scale(GPU) if ask.kind == GPU and whole(GPU, ask.units) else most


def room_now(node: Node, offer: Offer, usage: Usage) -> Room:
    """What a node has room for now of all that a request needs."""
    ask, headroom = offer.ask, offer.rules.headroom
    is_own = node.name == ask.target
    rooms = {
        kind: max(0, own_room(node, kind, usage) if is_own else room(node, kind, usage, headroom))
        for kind in offer.need
    }
    if GPU in rooms:
        rooms[GPU] = min(rooms[GPU], device_room(node, own_room(node, GPU, usage), offer.each[GPU], ask.members))
    return Room(node, rooms)


# -- obstacles -------------------------------------------------------------------------------------------------


def closed(node: Node, rules: Rules) -> RefusalCode | None:
    """Why a node gives nothing new, not even to its own work; None if it does."""
    if not node.alive:
        return RefusalCode.NODE_DOWN
    if node.silent is not None:
        return RefusalCode.STALE
    return RefusalCode.CORDONED if node.name in rules.cordoned else None


def why_closed(node: Node, usage: Usage, rules: Rules) -> str:
    """The same in words; empty if it does."""
    code = closed(node, rules)
    return "" if code is None else code.message(NodeFacts(node, usage, rules))


def as_inventory(nodes: NodeTable, usage: Usage | None = None, rules: Rules | None = None) -> Inventory:
    """The nodes as the planner of roles sees them. `rules`: None if nothing is leased."""
    held, under = usage or Usage(), rules or NO_RULES
    return Inventory(
        InventoryNode(
            node.name,
            node.free,
            node.total,
            node.labels,
            why_closed(node, held, under),
            ResourceVector() if rules is None else lendable(node, held, rules),
            node.gpu_parts,
        ).without(node.in_use.withheld)
        for node in nodes.values()
    )


def not_lending(node: Node, rules: Rules) -> RefusalCode | None:
    """Why a node lends nothing to other nodes, however much it has; None if it lends."""
    if (code := closed(node, rules)) is not None:
        return code
    if not node.limits.can_share:
        return RefusalCode.SHARING_DISABLED
    return next(iter(node.in_use.refuses), None) if node.in_use.refuses else None


def never(node: Node, offer: Offer) -> RefusalCode | None:
    """Why a node cannot lend, however much comes back to it; None if only amounts matter."""
    ask, rules = offer.ask, offer.rules
    is_own = node.name == ask.target
    if is_own and not (ask.own_too and not offer.is_transfer):
        return RefusalCode.IS_TARGET
    if ask.sources and node.name not in ask.sources:
        return RefusalCode.NOT_THE_SOURCE
    if offer.ranks is not None and node.name not in offer.ranks:
        return RefusalCode.RULED_OUT
    if (code := closed(node, rules) if is_own else not_lending(node, rules)) is not None:
        return code
    return RefusalCode.CORDONED if ask.target in rules.cordoned else None


def may_lend(nodes: NodeTable, offer: Offer) -> Iterator[Node]:
    """All nodes where only amounts matter; the target comes last, and only if it may set capacity aside for itself."""
    own = nodes[offer.ask.target]
    for node in nodes.lenders:
        if node is not own and never(node, offer) is None:
            yield node
    if never(own, offer) is None:
        yield own


def obstacle(node: Node, offer: Offer, usage: Usage) -> tuple[RefusalCode, str] | None:
    """The first obstacle that keeps a node from lending, and the kind that it concerns; None if the node can lend."""
    ask = offer.ask
    if (code := never(node, offer)) is not None:
        return code, ask.kind
    if is_borrowing(node, offer, usage):
        return RefusalCode.IS_BORROWING, ask.kind
    return lacking(node, offer.need, usage, offer.rules.headroom, is_own=node.name == ask.target)


def is_borrowing(node: Node, offer: Offer, usage: Usage) -> bool:
    """Whether the node borrows what it would transfer: it then lends none of that kind."""
    return offer.is_transfer and usage.moved_in(node.name, offer.ask.kind) > 0


def can_lend(node: Node, offer: Offer, usage: Usage) -> bool:
    """Whether the node can lend, by amounts and by what it borrows itself."""
    if is_borrowing(node, offer, usage):
        return False
    return has_room(node, offer.need, usage, offer.rules.headroom, is_own=node.name == offer.ask.target)


def has_room(node: Node, need: ResourceVector, usage: Usage, headroom: Headroom, *, is_own: bool) -> bool:
    """Whether a node has room for all that is needed: for its own work, or to lend it."""
    for kind, units in need.items():
        if units > (own_room(node, kind, usage) if is_own else room(node, kind, usage, headroom)):
            return False
        if kind == GPU and node.gpu_parts and units > device_room(node, own_room(node, GPU, usage), units):
            return False
    return True


def lacking(
    node: Node, need: ResourceVector, usage: Usage, headroom: Headroom, *, is_own: bool
) -> tuple[RefusalCode, str] | None:
    """Which amount is the obstacle, and the kind that it concerns; None if there is room for all that is needed."""
    if has_room(node, need, usage, headroom, is_own=is_own):
        return None
    for kind, units in need.items():
        limit = None if is_own else node.limits.limit(kind)
        if limit is not None and usage.lent(node.name, kind) + units > limit:
            return RefusalCode.LENDING_LIMIT_REACHED, kind
    of = own_room if is_own else free_of
    short = next(kind for kind in need if not has_room(node, _only(need, kind), usage, headroom, is_own=is_own))
    free, withheld = of(node, short, usage), node.in_use.withheld[short]
    if withheld and free + withheld >= need[short]:
        return RefusalCode.GPU_IN_USE, short
    if free < need[short]:
        return RefusalCode.NO_CAPACITY, short
    is_split = short == GPU and device_room(node, free, need[GPU]) < need[GPU]
    return RefusalCode.GPU_IN_PARTS if is_split else RefusalCode.KEPT_FREE, short


def _only(need: ResourceVector, kind: str) -> ResourceVector:
    return ResourceVector({kind: need[kind]})


def why_not(node: Node, offer: Offer, usage: Usage) -> Refusal | None:
    """The first reason why this node cannot lend what is requested, companions included; None if it can."""
    found = obstacle(node, offer.member, usage)
    if found is None:
        return None if offer.ask.members == 1 else _why_too_few(node, offer, usage)
    (code, kind), offer = found, offer.member
    could = min(offer.ask.units, most_of(node, offer, usage)) if code.reason.by_amount else 0
    named = " or ".join(offer.ask.sources)
    facts = NodeFacts(node, usage, offer.rules, kind, offer.need[kind], offer.ask.target, named)
    return Refusal(node.name, code, code.message(facts), could)


def _why_too_few(node: Node, offer: Offer, usage: Usage) -> Refusal | None:
    """Why a node cannot carry all members of a request, though it can carry one; None if it can."""
    count, members = room_now(node, offer, usage).members(offer), offer.ask.members
    if count >= members:
        return None
    code = RefusalCode.TOO_FEW_FIT
    return Refusal(node.name, code, code.message({"count": count, "members": members}))


# -- remedies --------------------------------------------------------------------------------------------------


LIFTED: Final[Mapping[RefusalCode, Callable[[Node, Rules, Ask], tuple[Node, Rules]]]] = {
    RefusalCode.CORDONED: lambda node, rules, ask: (
        node,
        replace(rules, cordoned=rules.cordoned - {node.name, ask.target}),
    ),
    RefusalCode.GPU_IN_USE: lambda node, rules, _: (replace(node, in_use=NOT_IN_USE), rules),
    RefusalCode.DISK_FULL: lambda node, rules, _: (replace(node, in_use=NOT_IN_USE), rules),
    RefusalCode.KEPT_FREE: lambda node, rules, _: (node, replace(rules, headroom=NO_HEADROOM)),
    RefusalCode.LENDING_LIMIT_REACHED: lambda node, rules, _: (replace(node, limits=SharingLimits()), rules),
    RefusalCode.SHARING_DISABLED: lambda node, rules, _: (
        replace(node, limits=replace(node.limits, can_share=True)),
        rules,
    ),
    RefusalCode.STALE: lambda node, rules, _: (replace(node, silent=None), rules),
    RefusalCode.NODE_DOWN: lambda node, rules, _: (replace(node, alive=True), rules),
}
"""For every reason with a remedy: the node and the rules as they are once the remedy was applied."""


def would_lend(code: RefusalCode, node: Node, ask: Ask, nodes: NodeTable, usage: Usage, rules: Rules) -> bool:
    """Whether a node could lend what is requested if this reason for its refusal were gone."""
    if code is RefusalCode.NODE_DOWN and not node.base:  # what a node has that has not been seen is unknown
        return True
    lifted, under = LIFTED[code](node, rules, ask)
    return obstacle(lifted, Offer.of(ask, nodes, under), usage) is None


# -- in words --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts for the text of a refusal; each is computed when a text needs it."""

    of: Node
    usage: Usage
    rules: Rules
    kind: str = ""
    units: int = 0
    target: NodeName = ""
    source: str = ""
    """The nodes that the request names as lenders, in words."""
    conditions: str = "its node, affinity or anti-affinity excludes it"

    def __getitem__(self, fact: str) -> object:
        return getattr(self, fact)

    @property
    def cordoned(self) -> NodeName:
        return self.of.name if self.of.name in self.rules.cordoned else self.target

    @property
    def silent(self) -> str | None:
        return self.of.silent

    @property
    def measured(self) -> str:
        return "; ".join(self.of.in_use.refuses.values())

    @property
    def requested(self) -> str:
        return f"{amount_of(self.kind, self.units)} requested"

    @property
    def free(self) -> str:
        return self._of_total(self._free)

    @property
    def free_for_ray(self) -> str:
        return self._of_total(self._free + self.of.in_use.withheld[self.kind])

    @property
    def gpus_in_use(self) -> str:
        return "; ".join(self.of.in_use.gpus)

    @property
    def headroom(self) -> str:
        """ "policy balanced keeps 1.6 CPUs free for the node's own work"."""
        headroom, lent = self.rules.headroom, self.usage.lent(self.of.name, self.kind)
        units = headroom_of(self.of, self.kind, self._free, lent, headroom)
        policy = f"policy {headroom.policy}" if headroom.policy else "the policy"
        return f"{policy} keeps {describe(self.kind, units)} free for the node's own work"

    @property
    def device(self) -> float | int:
        """The most that one device has free."""
        return amount_of(GPU, device_room(self.of, self._free, 1))

    @property
    def lent(self) -> float | int:
        return amount_of(self.kind, self.usage.lent(self.of.name, self.kind))

    @property
    def limit(self) -> str:
        return describe(self.kind, self.of.limits.limit(self.kind) or 0)

    @property
    def _free(self) -> int:
        return (own_room if self.of.name == self.target else free_of)(self.of, self.kind, self.usage)

    def _of_total(self, units: int) -> str:
        """ "2 of 4 CPUs"."""
        return f"{amount_of(self.kind, max(0, units))} of {describe(self.kind, self.of.total[self.kind])}"
