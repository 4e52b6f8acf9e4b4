"""What a run holds of a node: one bundle of a placement group, or one lease, for one or several units of a plan."""

from dataclasses import dataclass

from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.roles.plan import Unit


@dataclass(frozen=True, slots=True)
class Holding:
    """It comes and goes as one: what it holds is free again once the last of its units has ended."""

    node: NodeName
    pool: str | None
    resources: ResourceVector
    """The sum of its units. Empty if they need nothing, and then there is nothing to hold for them."""
    units: tuple[Unit, ...]
