"""The running cluster as an inventory to plan on: what its controller answers, and nothing computed here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from distributed_grid.model.resources import GPU, MEMORY, ResourceVector, scale
from distributed_grid.model.roles.plan import Inventory, InventoryNode

if TYPE_CHECKING:
    from distributed_grid.wire.nodes import NodeList


def live_inventory(nodes: NodeList) -> Inventory:
    """The inventory from the answer about nodes."""
    return Inventory(
        InventoryNode(
            name=node["name"],
            free=(_units(node["free"]) - _units(node["withheld"])).at_least_zero(),
            total=_units(node["total"]),
            labels=node["labels"],
            closed=node["closed"] or "",
            lends=_units(node["lendable"]),
            gpu_parts=tuple(round(part * scale(GPU)) for part in node["gpu_parts"]),
        )
        for node in nodes["nodes"]
    )


def _units(amounts: Mapping[str, float]) -> ResourceVector:
    """Amounts come rounded to four digits; memory that rounding may have added is not planned on."""
    found = {}
    for kind, amount in amounts.items():
        steps = round(amount * 10_000) - (kind == MEMORY and amount != int(amount))
        found[kind] = max(0, steps) * scale(kind) // 10_000
    return ResourceVector(found)
