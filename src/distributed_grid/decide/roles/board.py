"""The data of a search for places: unit classes, nodes, weights for missing resources, and the state of one attempt."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.decide.roles.room import MANY, Mask, Room, Units
from distributed_grid.decide.roles.units import UnitClass, standing_by_class
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import BUILT_IN, CPU, GPU, MEMORY, ResourceVector, scale, total
from distributed_grid.model.roles.plan import Inventory, Unit

_WEIGHTS: Final = {GPU: 1000.0, CPU: 1.0, MEMORY: 0.125}
"""The weight of one device, core or GB. A custom resource weighs as much as a hundred cores."""


def worth(amounts: Mapping[str, int]) -> float:
    return sum(_each(kind) * units for kind, units in amounts.items())


def worth_by_node(lacking: Mapping[str, Units]) -> NDArray[np.float64]:
    """`worth` for the amounts that each node lacks."""
    parts = [column * _each(kind) for kind, column in lacking.items()]
    found: NDArray[np.float64] = np.sum(parts, axis=0, dtype=np.float64) if parts else np.zeros(1)
    return found


def _each(kind: str) -> float:
    return _WEIGHTS.get(kind, 100.0) / scale(kind)


Quotas = dict[str, dict[str, int]]
"""The rest of each pool's quota, by pool and kind."""


@dataclass(frozen=True, slots=True)
class Board:
    """Unit classes and nodes. Rows of columns are nodes in name order; items of lists are classes in order."""

    classes: tuple[UnitClass, ...]
    inventory: Inventory
    room: Room
    usable: Mask
    allowed: list[Mask]
    """The nodes that each class may use, by affinity, pool and whether the node is usable at all."""
    shunned: list[Mask]
    """Nodes with something scarce that the class does not need: GPUs, or custom resources that other classes need."""
    already: list[Units]
    quotas: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, classes: tuple[UnitClass, ...], inventory: Inventory, standing: Iterable[Unit] = ()) -> "Board":
        units = tuple(standing)
        by_class = standing_by_class(classes, units)
        row = {name: number for number, name in enumerate(inventory)}
        usable = np.array([not node.closed for node in inventory.values()], dtype=bool)
        return cls(
            classes=classes,
            inventory=inventory,
            room=Room(inventory),
            usable=usable,
            allowed=_allowed(classes, inventory, usable),
            shunned=_shunned(classes, inventory),
            already=[_counted(by_class[one.name], row) for one in classes],
            quotas=_quotas(classes, units),
        )

    def with_leasts(self, leasts: Mapping[int, int]) -> "Board":
        """The same board with other counts for some classes, and no growth beyond them."""
        classes = tuple(
            one.with_counts(leasts[number], leasts[number]) if number in leasts else one
            for number, one in enumerate(self.classes)
        )
        return replace(self, classes=classes)

    def with_more(self, nodes: Mapping[NodeName, ResourceVector], pools: Mapping[str, ResourceVector]) -> "Board":
        """The same board with more (or, below zero, less) on some nodes and in some pools."""
        inventory = self.inventory.with_more(nodes)
        quotas = {
            name: {kind: units + pools[name][kind] if name in pools else units for kind, units in left.items()}
            for name, left in self.quotas.items()
        }
        shunned = _shunned(self.classes, inventory)
        return replace(self, inventory=inventory, room=Room(inventory), shunned=shunned, quotas=quotas)

    def quotas_left(self) -> Quotas:
        return {pool: dict(left) for pool, left in self.quotas.items()}

    def fits(self, number: int, room: Room) -> Units:
        """How many units of a class fit on each node that it may use."""
        return np.where(self.allowed[number], room.fits(self.classes[number].needs), 0)

    def fit_at_all(self, number: int) -> int:
        """How many units would fit if the class were alone."""
        alone = int(self.fits(number, self.room).sum())
        return min(alone, pool_room(self.classes[number], self.quotas))


def pool_room(one: UnitClass, quotas: Mapping[str, Mapping[str, int]]) -> int:
    """How many more units of a class its pool allows."""
    if one.pool is None:
        return MANY
    left = quotas[one.pool.name]
    return min((max(0, left[kind]) // units for kind, units in one.needs.items() if kind in left), default=MANY)


def charge(one: UnitClass, count: int, quotas: Quotas) -> None:
    if one.pool is not None:
        left = quotas[one.pool.name]
        for kind in left:
            left[kind] -= count * one.needs[kind]


def _allowed(classes: tuple[UnitClass, ...], inventory: Inventory, usable: Mask) -> list[Mask]:
    nodes = tuple(inventory.values())
    found = []
    for one in classes:
        choosy = one.pool is not None and bool(one.pool.where)
        choosy |= any(role.near or role.far for role in one.roles)
        mask = usable.copy()
        if choosy:
            mask &= np.array([not one.why_not_allowed(node) for node in nodes], dtype=bool)
        found.append(mask)
    return found


def _shunned(classes: tuple[UnitClass, ...], inventory: Inventory) -> list[Mask]:
    scarce = dict.fromkeys([GPU, *(kind for one in classes for kind in one.needs if kind not in BUILT_IN)])
    nodes = tuple(inventory.values())
    has = {kind: np.array([node.total[kind] > 0 for node in nodes], dtype=bool) for kind in scarce}
    found = []
    for one in classes:
        mask = np.zeros(len(nodes), dtype=bool)
        for kind, there in has.items():
            if kind not in one.needs:
                mask |= there
        found.append(mask)
    return found


def _counted(units: list[Unit], row: Mapping[str, int]) -> Units:
    counts = np.zeros(len(row), dtype=np.int64)
    for unit in units:
        if unit.node in row:
            counts[row[unit.node]] += 1
    return counts


def _quotas(classes: tuple[UnitClass, ...], standing: tuple[Unit, ...]) -> dict[str, dict[str, int]]:
    pools = {one.pool.name: one.pool for one in classes if one.pool is not None}
    used = {name: total([u.resources for u in standing if u.pool == name]) for name in pools}
    return {
        name: {kind: units - used[name][kind] for kind, units in pool.quota.items()} for name, pool in pools.items()
    }


@dataclass(slots=True)
class Try:
    room: Room
    quotas: Quotas
    counts: list[Units]
    """For each class, how many units are on each node."""
    unplaced: list[int]

    @classmethod
    def begin(cls, board: Board) -> "Try":
        nothing = np.zeros(len(board.room), dtype=np.int64)
        return cls(board.room.copy(), board.quotas_left(), [nothing] * len(board.classes), [0] * len(board.classes))

    @property
    def complete(self) -> bool:
        return not any(self.unplaced)

    def put(self, needs: ResourceVector, number: int, counts: Units) -> None:
        """Place this many units of a class on each node; they must fit."""
        self.room.take(needs, counts)
        self.counts[number] = self.counts[number] + counts

    def copy(self) -> "Try":
        quotas = {pool: dict(left) for pool, left in self.quotas.items()}
        return Try(self.room.copy(), quotas, list(self.counts), list(self.unplaced))

    def restore(self, before: "Try") -> None:
        self.room, self.quotas, self.counts = before.room, before.quotas, before.counts
