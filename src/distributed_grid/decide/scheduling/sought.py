"""A request with what it comes to on one table: all that feasibility and strategies look at."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from distributed_grid.decide.scheduling.table import Floats, NodeColumns, Units
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import SchedulingRequest

Peers = Mapping[str, Collection[NodeName]]
"""Where tasks run that have a place, by their ids and by their tags."""


@dataclass(frozen=True, slots=True)
class BoostRoom:
    """A reserved boost of the target, and what is left in it."""

    id: str
    runs_on: NodeName
    free: ResourceVector

    def less(self, needs: ResourceVector) -> "BoostRoom":
        return replace(self, free=self.free - needs)


@dataclass(frozen=True)
class Sought:
    """What is sought for one task."""

    request: SchedulingRequest
    needs: ResourceVector
    """With all that comes along: it is what a place takes away."""
    target: NodeName
    columns: NodeColumns
    boosts: tuple[BoostRoom, ...] = ()
    peers: Peers = field(default_factory=dict)
    not_on: frozenset[NodeName] = frozenset()
    """Nodes that turned out to have nothing for it after all; the target's boosts are not meant."""
    kept: frozenset[NodeName] = frozenset()
    """Nodes that are left alone for somebody who waits longer."""

    @cached_property
    def home(self) -> int:
        """The target's row; -1 where the table does not have it."""
        return self.columns.row.get(self.target, -1)

    @cached_property
    def rooms(self) -> dict[str, Units]:
        """By kind: what it can have on each node."""
        return {kind: self.columns.rooms(kind, self.home) for kind in self.needs}

    @cached_property
    def left(self) -> Floats:
        """0..1: of the kind that is then scarcest, what would be left free on each node, as a part of what it has."""
        found: Floats | None = None
        for kind, units in self.needs.items():
            total = self.columns.total.get(kind)
            part = (self.rooms[kind] - units) / (np.maximum(total, 1) if total is not None else 1.0)
            found = part if found is None else np.minimum(found, part)
        return np.clip(np.ones(len(self.columns)) if found is None else found, 0.0, 1.0)

    def carrier(self) -> BoostRoom | None:
        """The boost that it would fill the most; None if none has room for all of it."""
        able = [boost for boost in self.boosts if boost.free.covers(self.needs)]
        kinds = tuple(self.needs)
        return min(able, key=lambda boost: (tuple(boost.free[kind] for kind in kinds), boost.id), default=None)
