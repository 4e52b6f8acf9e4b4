"""What waits for what: the places of a plan that could not be had."""

from collections.abc import Iterable

from distributed_grid.decide.roles.devices import free_devices
from distributed_grid.model.resources import GPU, describe, scale
from distributed_grid.model.roles.holdings import Holding
from distributed_grid.model.roles.inventory import Inventory


def what_waits(holdings: Iterable[Holding], inventory: Inventory) -> tuple[str, ...]:
    """A line for each: what it is for, on which node, and what that has free now."""
    return tuple(_line(holding, inventory) for holding in holdings)


def _line(holding: Holding, inventory: Inventory) -> str:
    counts: dict[str, int] = {}
    for unit in holding.units:
        for member in unit.members:
            counts[member.role] = counts.get(member.role, 0) + 1
    who = ", ".join(f"{count} {role}" for role, count in counts.items())
    pool = f" in the pool {holding.pool}" if holding.pool else ""
    waits = f"{holding.node}: the bundle for {who}{pool} waits for {holding.resources.describe()}"
    node = inventory.get(holding.node)
    if node is None:
        return f"{waits}; that node is gone"
    if node.closed:
        return f"{waits}; {node.closed}"
    short = [kind for kind, units in holding.resources.items() if units > node.free[kind]]
    if short:
        return f"{waits}; free: {', '.join(describe(kind, max(0, node.free[kind])) for kind in short)}"
    part, most = holding.resources[GPU] % scale(GPU), max(free_devices(node), default=0)
    if part > most:
        return f"{waits}; {describe(GPU, node.free[GPU])} are free, but on one device {describe(GPU, most)} at most"
    if part and scale(GPU) < node.total[GPU] > node.free[GPU]:
        return f"{waits}, which is free again, if it is on one device: Ray tells only what is free on all together"
    return f"{waits}, which is free again"
