"""How a lease reaches its target: the capacity moves, or it is reserved on the lender."""

from collections.abc import Mapping
from dataclasses import dataclass

from distributed_grid.errors import TransfersUnavailable
from distributed_grid.model.leases import Delivery
from distributed_grid.model.nodes import Node
from distributed_grid.model.plans import Companions
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
    """The delivery that was asked for, else the configured one, else transfer for all but GPUs.

    Where transfers are not possible at all, everything is reserved, and an explicit transfer is refused.
    `why_not_there`: the target's machine is too busy for more work, and another machine is not.
    """
    wanted = ask.delivery or default
    if ask.kind == GPU:
        return DeliveryChoice(Delivery.RESERVE, "Ray cannot move GPUs between nodes; reserved on the lender")
    if no_transfers_because is not None:
        if ask.delivery == Delivery.TRANSFER:
            raise TransfersUnavailable(
                "Capacity cannot be transferred in this cluster",
                because=[no_transfers_because],
                try_next="Use --delivery reserve: the work then runs on the lender.",
            )
        return DeliveryChoice(Delivery.RESERVE, f"no transfers here: {no_transfers_because}")
    if ask.source == ask.target:
        return DeliveryChoice(Delivery.RESERVE, f"{target.name} sets it aside of its own")
    if ask.along:
        return DeliveryChoice(Delivery.RESERVE, "several kinds together are reserved on one lender")
    if wanted == Delivery.RESERVE:
        return DeliveryChoice(Delivery.RESERVE, "reserve was asked for")
    lacking = _hardware_lacks(ask, target) or why_not_there
    if wanted == "auto":
        if lacking:
            return DeliveryChoice(Delivery.RESERVE, f"auto: {lacking}")
        return DeliveryChoice(Delivery.TRANSFER, f"auto: {target.name}'s hardware can carry it")
    reason = "transfer was asked for" if ask.delivery else f"transfer is the default for {ask.kind}"
    if not lacking:
        return DeliveryChoice(Delivery.TRANSFER, reason)
    warning = (
        f"{lacking}: Ray will start more work there, but the hardware does not grow. "
        "With --delivery reserve the work runs on the lender's hardware instead."
    )
    return DeliveryChoice(Delivery.TRANSFER, reason, (warning,))


def _hardware_lacks(ask: Ask, target: Node) -> str | None:
    """Why the target's machine cannot carry more of this kind; None if it can, or if its hardware is not known."""
    if target.hardware is None or ask.kind not in (CPU, MEMORY):
        return None
    has = int(target.hardware.cpus * scale(CPU)) if ask.kind == CPU else target.hardware.memory
    if has - target.total[ask.kind] >= ask.units:
        return None
    return (
        f"{target.name}'s machine has {describe(ask.kind, has)} "
        f"and {target.name} already offers {amount_of(ask.kind, target.total[ask.kind])}"
    )


def lent_resources(ask: Ask, delivery: Delivery, companions: Companions) -> ResourceVector:
    """All that the lender gives: a reservation brings CPUs along, since `{GPU: 1}` alone runs no default task.

    If the request states how much of a kind comes along, that amount comes.
    """
    asked = {ask.kind: ask.units, **dict(ask.along)}
    if delivery is Delivery.TRANSFER or ask.kind == CPU:
        return ResourceVector(asked)
    if ask.kind != GPU:
        return ResourceVector({CPU: companions.cpu_otherwise} | asked)
    devices = -(-ask.units // scale(GPU))
    return ResourceVector({CPU: companions.cpu_per_gpu * devices, MEMORY: companions.memory_per_gpu * devices} | asked)


def most_within(ask: Ask, delivery: Delivery, companions: Companions, rooms: Mapping[str, int]) -> int:
    """The inverse: how much of the asked kind fits with its companions. Rooms are not below zero."""
    own = rooms[ask.kind]
    said = dict(ask.along)
    if any(rooms.get(kind, 0) < units for kind, units in said.items()):
        return 0
    if delivery is Delivery.TRANSFER or ask.kind == CPU:
        return own
    if ask.kind != GPU:
        return own if CPU in said or rooms.get(CPU, 0) >= companions.cpu_otherwise else 0
    each = {CPU: companions.cpu_per_gpu, MEMORY: companions.memory_per_gpu}
    devices = min((rooms.get(k, 0) // units for k, units in each.items() if units and k not in said), default=own)
    return min(own, devices * scale(GPU))
