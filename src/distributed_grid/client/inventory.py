"""The running cluster as an inventory to plan on, from its controller's answers."""

from collections.abc import Mapping
from typing import Any

from distributed_grid.model.resources import MEMORY, ResourceVector, scale
from distributed_grid.model.roles.plan import Inventory, InventoryNode


def live_inventory(nodes: Mapping[str, Any], sharing: Mapping[str, Any]) -> Inventory:
    """The inventory from the answers about nodes and about sharing."""
    shares = {node["name"]: node for node in sharing["nodes"]} if sharing["enabled"] else {}
    return Inventory(_node(node, shares.get(node["name"])) for node in nodes["nodes"])


def _node(node: Mapping[str, Any], shares: Mapping[str, Any] | None) -> InventoryNode:
    free = (_units(node["free"]) - _units(node["withheld"])).at_least_zero()
    return InventoryNode(
        name=node["name"],
        free=free,
        total=_units(node["total"]),
        labels=node["labels"],
        closed=_why_closed(node, shares),
        lends=ResourceVector() if shares is None else _lends(free, shares),
    )


def _why_closed(node: Mapping[str, Any], shares: Mapping[str, Any] | None) -> str:
    """What keeps anything from being put there; if nothing is leased, only that the node is not there."""
    if not node["alive"]:
        return "it is not connected to the cluster"
    if shares is None:
        return ""
    if node["state"] == "stale":
        return "it has not told how it is for a while"
    return f"it is cooling down: grid cooldown {node['name']} --off" if shares["cooling"] else ""


def _lends(free: ResourceVector, shares: Mapping[str, Any]) -> ResourceVector:
    if not shares["can_share"] or shares["cooling"]:
        return ResourceVector()
    lent = _units(shares["lent"])
    limits = {kind: round(limit * scale(kind)) for kind, limit in shares["limits"].items() if limit is not None}
    rooms = {kind: min(units, limits[kind] - lent[kind]) if kind in limits else units for kind, units in free.items()}
    return ResourceVector(rooms).at_least_zero()


def _units(amounts: Mapping[str, float]) -> ResourceVector:
    """Amounts come rounded to four digits; memory that rounding may have added is not planned on."""
    found = {}
    for kind, amount in amounts.items():
        steps = round(amount * 10_000) - (kind == MEMORY and amount != int(amount))
        found[kind] = max(0, steps) * scale(kind) // 10_000
    return ResourceVector(found)
