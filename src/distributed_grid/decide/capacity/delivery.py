"""How a lease reaches its target: the capacity moves, or it is reserved on the lender; and what that takes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from distributed_grid.errors import TransfersUnavailable
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import Node, NodeName, NodeTable
from distributed_grid.model.plans import Companions, Grant, Part, Rules
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector, amount_of, describe, scale


@dataclass(frozen=True, slots=True)
class DeliveryChoice:
    delivery: Delivery
    reason: str
    warnings: tuple[str, ...] = ()


def choose_delivery(
    ask: Ask,
    target: Node,
    default: str | None,
    no_transfers_because: str | None = None,
    why_not_there: str | None = None,
) -> DeliveryChoice:
    """The requested delivery, else the configured one, else transfer for all but GPUs.

    Where transfers are not possible at all, everything is reserved, and an explicit transfer is refused.
    `why_not_there`: the target's machine is too busy for more work, and another machine is not.
    """
    wanted = ask.delivery or default
    stays = next((each for each in Delivery if each == wanted and not each.moves_totals), Delivery.RESERVE)
    if ask.kind == GPU:
        return DeliveryChoice(stays, "Ray cannot move GPUs between nodes; reserved on the lender")
    if no_transfers_because is not None:
        if ask.delivery == Delivery.TRANSFER:
            raise TransfersUnavailable(
                "Capacity cannot be transferred in this cluster",
                because=[no_transfers_because],
                try_next="Use --delivery reserve: the work then runs on the lender.",
            )
        return DeliveryChoice(stays, f"no transfers here: {no_transfers_because}")
    if ask.target == ask.source or ask.nodes == (ask.target,):
        return DeliveryChoice(stays, f"{target.name} reserves its own capacity")
    if ask.members > 1:
        return DeliveryChoice(stays, "each member is a bundle of one reservation")
    if ask.along:
        return DeliveryChoice(stays, "several kinds together are reserved on one lender")
    if wanted == stays:
        return DeliveryChoice(stays, f"{stays} was requested")
    too_small = _too_small(ask, target)
    if wanted == "auto":
        offers = amount_of(ask.kind, target.total[ask.kind])
        lacking = f"{too_small} and {target.name} already offers {offers}" if too_small else why_not_there
        if lacking:
            return DeliveryChoice(stays, f"auto: {lacking}")
        return DeliveryChoice(Delivery.TRANSFER, f"auto: {target.name}'s hardware can carry it")
    reason = "transfer was requested" if ask.delivery else f"transfer is the default for {ask.kind}"
    # The same words for every boost, so that a list can show them once: what the target offers grows with each grant.
    lacking = f"{too_small}, and its Ray node already advertises more" if too_small else why_not_there
    if not lacking:
        return DeliveryChoice(Delivery.TRANSFER, reason)
    warning = (
        f"{lacking}: Ray will start more work there, but the machine gets no faster. "
        "With --delivery reserve the work runs on the lender's hardware instead."
    )
    return DeliveryChoice(Delivery.TRANSFER, reason, (warning,))


def _too_small(ask: Ask, target: Node) -> str | None:
    """The capacity of the target's machine, if it is too small for this; None if it is not, or if it is not known."""
    if target.hardware is None or ask.kind not in (CPU, MEMORY):
        return None
    has = int(target.hardware.cpus * scale(CPU)) if ask.kind == CPU else target.hardware.memory
    if has - target.total[ask.kind] >= ask.units:
        return None
    return f"{target.name}'s machine has {describe(ask.kind, has)}"


def lent_resources(ask: Ask, delivery: Delivery, companions: Companions) -> ResourceVector:
    """All that the lender gives: a reservation brings CPUs along, since `{GPU: 1}` alone runs no default task.

    If the request states how much of a kind comes along, that amount comes.
    """
    if ask.is_cap:
        return ResourceVector({MEMORY: 1})  # a mark of its place: a part of a CPU would keep work from a whole one
    if ask.members > 1:
        return ask.members * lent_resources(ask.member, delivery, companions)
    requested = {ask.kind: ask.units, **dict(ask.along)}
    if delivery.moves_totals or ask.kind == CPU:
        return ResourceVector(requested)
    if ask.kind != GPU:
        return ResourceVector({CPU: companions.cpu_otherwise} | requested)
    devices = -(-ask.units // scale(GPU))
    return ResourceVector(
        {CPU: companions.cpu_per_gpu * devices, MEMORY: companions.memory_per_gpu * devices} | requested
    )


def most_within(ask: Ask, delivery: Delivery, companions: Companions, rooms: Mapping[str, int]) -> int:
    """The inverse: how much of the requested kind fits with its companions. Rooms are not below zero."""
    if ask.is_cap:
        return ask.units if rooms.get(MEMORY, 0) else 0
    own = rooms[ask.kind]
    said = dict(ask.along)
    if any(rooms.get(kind, 0) < units for kind, units in said.items()):
        return 0
    if delivery.moves_totals or ask.kind == CPU:
        return own
    if ask.kind != GPU:
        return own if CPU in said or rooms.get(CPU, 0) >= companions.cpu_otherwise else 0
    each = {CPU: companions.cpu_per_gpu, MEMORY: companions.memory_per_gpu}
    devices = min((rooms.get(k, 0) // units for k, units in each.items() if units and k not in said), default=own)
    return min(own, devices * scale(GPU))


@dataclass(frozen=True, slots=True)
class Offer:
    """A request with how it would be delivered, and all that a lender gives for it."""

    ask: Ask
    rules: Rules
    choice: DeliveryChoice
    need: ResourceVector
    each: ResourceVector
    """What a lender gives for one member of the request; without members, `need`."""
    busy: Mapping[NodeName, str] = field(default_factory=dict)
    """Lenders whose machines are too busy to carry the work, or short of memory: how much, and what that means."""
    used_gpus: Mapping[NodeName, tuple[str, ...]] = field(default_factory=dict)
    """For GPUs: lenders on which programs outside Ray use some."""
    ranks: Mapping[NodeName, int] | None = None
    """If the request names the nodes that may lend: by name, the place among them."""

    @property
    def is_transfer(self) -> bool:
        return self.choice.delivery.moves_totals

    @classmethod
    def of(cls, ask: Ask, nodes: NodeTable, rules: Rules) -> "Offer":
        target = nodes[ask.target]
        choice = choose_delivery(
            ask, target, rules.default_delivery, rules.no_transfers_because, why_not_there=_too_busy(ask, nodes)
        )
        each = lent_resources(ask.member, choice.delivery, rules.companions)
        reserves = not choice.delivery.moves_totals
        busy = {
            n.name: _strain(n) for n in nodes.in_use if reserves and n.in_use.crowded and n.machine != target.machine
        }
        gpus = {n.name: n.in_use.gpus for n in nodes.in_use if n.in_use.gpus} if ask.kind == GPU else {}
        ranks = None if ask.nodes is None else {name: rank for rank, name in enumerate(ask.nodes)}
        need = each if ask.members == 1 else ask.members * each
        return cls(ask, rules, choice, need, each, busy, gpus, ranks)

    def rank(self, name: NodeName) -> int:
        """The lower, the more the request prefers this node; equal for all nodes if it has no preference."""
        return 0 if self.ranks is None else self.ranks.get(name, len(self.ranks))

    def prefers_own_to(self, lender: NodeName | None) -> bool:
        """Whether the target would rather use its own capacity, if it can, than borrow from this lender."""
        return self.ask.own_too and (lender is None or self.rank(self.ask.target) < self.rank(lender))

    def part(self, units: int) -> "Offer":
        """The same for a part of the request, from one node."""
        if units == self.ask.units and self.ask.members == 1:
            return self
        part = self.ask.part(units)
        need = lent_resources(part, self.choice.delivery, self.rules.companions)
        return replace(self, ask=part, need=need, each=need)

    @property
    def member(self) -> "Offer":
        """The same for one of its members."""
        return self.part(self.ask.units // self.ask.members)

    def from_node(self, source: NodeName) -> Grant:
        choice = self.choice
        warnings = (*choice.warnings, *self._warnings_about(source))
        return Grant(self.ask, source, self.need, choice.delivery, choice.reason, warnings)

    def from_parts(self, parts: Iterable[Part]) -> tuple[Grant, ...]:
        return tuple(replace(self.part(part.units).from_node(part.source), why_it=part.reason) for part in parts)

    def _warnings_about(self, source: NodeName) -> Iterator[str]:
        if source in self.busy:
            yield f"{source}: {self.busy[source]}"
        if source in self.used_gpus:
            yield (
                f"{source}: {'; '.join(self.used_gpus[source])}. Ray chooses the device, and may assign one that is "
                f"in use: check nvidia-smi there before you start heavy work."
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
