"""Free capacity of all nodes as columns, so that counting how many equal units fit takes a few numpy operations.

GPUs are counted by device, as Ray does: three actors of 0.6 GPU do not fit on two GPUs.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.decide.capacity.devices import free_devices
from distributed_grid.model.resources import GPU, ResourceVector, scale
from distributed_grid.model.roles.plan import Inventory

_ONE: Final = scale(GPU)


Units = NDArray[np.int64]
Mask = NDArray[np.bool_]

MANY: Final = 1 << 31
"""How many units fit if they need nothing."""


class Room:
    """One row for each node, in name order. Copies are cheap, so that a search can discard a try."""

    def __init__(self, inventory: Inventory) -> None:
        nodes = tuple(inventory.values())
        self.names = tuple(node.name for node in nodes)
        kinds = dict.fromkeys(kind for node in nodes for kind in node.free if kind != GPU)
        self.free: dict[str, Units] = {
            kind: np.array([max(0, node.free[kind]) for node in nodes], dtype=np.int64) for kind in kinds
        }
        self.devices: dict[int, Units] = {}
        """By the amount that a device has left: how many such devices each node has."""
        for row, node in enumerate(nodes):
            for left in free_devices(node.total[GPU], node.free[GPU], node.gpu_parts):
                self._devices_with(left)[row] += 1

    def __len__(self) -> int:
        return len(self.names)

    def copy(self) -> "Room":
        other = Room.__new__(Room)
        other.names = self.names
        other.free = {kind: column.copy() for kind, column in self.free.items()}
        other.devices = {left: column.copy() for left, column in self.devices.items()}
        return other

    def _devices_with(self, left: int) -> Units:
        return self.devices.setdefault(left, np.zeros(len(self), dtype=np.int64))

    def column(self, kind: str) -> Units:
        """The amount of a kind that every node has left."""
        found = np.zeros(len(self), dtype=np.int64)
        if kind == GPU:
            for left, count in self.devices.items():
                found += left * count
            return found
        return self.free.get(kind, found)

    def offers(self, kind: str, units: int) -> Units:
        """The amount of a kind that each node offers to a unit that needs `units`. For GPUs: whole devices, or the
        emptiest."""
        if kind != GPU:
            return self.column(kind)
        if units >= _ONE:
            return _ONE * self._gpu_units(_ONE)
        found = np.zeros(len(self), dtype=np.int64)
        for left, count in self.devices.items():
            np.maximum(found, np.where(count > 0, left, 0), out=found)
        return found

    def fits(self, needs: ResourceVector) -> Units:
        """How many units with these needs fit on each node."""
        found = np.full(len(self), MANY, dtype=np.int64)
        for kind, units in needs.items():
            np.minimum(found, self._gpu_units(units) if kind == GPU else self.column(kind) // units, out=found)
        return found

    def _gpu_units(self, units: int) -> Units:
        """How many units with this part of a GPU, or this many whole GPUs, fit on each node."""
        found = np.zeros(len(self), dtype=np.int64)
        if units >= _ONE:
            return self.devices[_ONE] // (units // _ONE) if _ONE in self.devices else found
        for left, count in self.devices.items():
            found += count * (left // units)
        return found

    def take(self, needs: ResourceVector, counts: Units) -> None:
        """Place this many units on each node; they must fit."""
        for kind, units in needs.items():
            if kind != GPU:
                self.free[kind] -= units * counts
            elif units >= _ONE:
                self.devices[_ONE] -= units // _ONE * counts
            else:
                self._take_parts(units, counts.copy())

    def _take_parts(self, units: int, counts: Units) -> None:
        """Put each part on the fullest device that can hold it, as Ray does."""
        for left in sorted(left for left in self.devices if left >= units):
            there, each = self.devices[left].copy(), left // units
            here = np.minimum(counts, there * each)
            filled, rest = np.divmod(here, each)
            begun = (rest > 0).astype(np.int64)
            self.devices[left] -= filled + begun
            if after := left - each * units:
                self._devices_with(after)[:] += filled
            for some in np.unique(rest[rest > 0]):
                self._devices_with(left - int(some) * units)[:] += rest == some
            counts -= here

    def lacks(self, needs: ResourceVector) -> dict[str, Units]:
        """How much of each kind every node lacks for one such unit; GPUs in whole devices."""
        found: dict[str, Units] = {}
        for kind, units in needs.items():
            lacking = np.maximum(0, units - self.offers(kind, units))
            found[kind] = _ONE * (lacking > 0) if kind == GPU and units < _ONE else lacking
        return found

    def lacks_for(self, row: int, needs: ResourceVector, count: int) -> dict[str, int]:
        """How much one node lacks for several such units."""
        found: dict[str, int] = {}
        for kind, units in needs.items():
            if kind != GPU:
                found[kind] = max(0, count * units - int(self.column(kind)[row]))
            elif units >= _ONE:
                found[kind] = max(0, count * units - _ONE * int(self._gpu_units(_ONE)[row]))
            else:
                left = max(0, count - int(self._gpu_units(units)[row]))
                found[kind] = _ONE * -(-left // (_ONE // units))
        return found

    def add(self, row: int, more: ResourceVector) -> None:
        """Add capacity to a node; GPUs in whole devices."""
        for kind, units in more.items():
            if kind == GPU:
                self._devices_with(_ONE)[row] += units // _ONE
            else:
                self.free.setdefault(kind, np.zeros(len(self), dtype=np.int64))[row] += units
