"""What is left on all nodes, as columns: how many alike units fit on each is a few numpy operations.

GPUs are counted device by device, as Ray does: three actors of 0.6 GPU do not fit on two GPUs.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.model.resources import GPU, ResourceVector, scale
from distributed_grid.model.roles.inventory import Inventory

Units = NDArray[np.int64]
Mask = NDArray[np.bool_]

MANY: Final = 1 << 31
"""How many fit of what needs nothing."""

_ONE: Final = scale(GPU)


class Room:
    """One row for each node, in name order. Copies are cheap, so that a try can be thrown away."""

    def __init__(self, inventory: Inventory) -> None:
        nodes = tuple(inventory.values())
        self.names = tuple(node.name for node in nodes)
        kinds = dict.fromkeys(kind for node in nodes for kind in node.free if kind != GPU)
        self.free: dict[str, Units] = {
            kind: np.array([max(0, node.free[kind]) for node in nodes], dtype=np.int64) for kind in kinds
        }
        # What others use of a GPU is seen only as a sum: as if they shared one device as far as that goes.
        gpus = [max(0, node.free[GPU]) for node in nodes]
        widest = max((-(-units // _ONE) for units in gpus), default=0)
        self.devices: Units = np.zeros((len(nodes), widest), dtype=np.int64)
        for row, units in enumerate(gpus):
            whole, part = divmod(units, _ONE)
            self.devices[row, :whole] = _ONE
            if part:
                self.devices[row, whole] = part

    def __len__(self) -> int:
        return len(self.names)

    def copy(self) -> "Room":
        other = Room.__new__(Room)
        other.names = self.names
        other.free = {kind: column.copy() for kind, column in self.free.items()}
        other.devices = self.devices.copy()
        return other

    def column(self, kind: str) -> Units:
        """What is left of a kind on every node."""
        if kind == GPU:
            found: Units = self.devices.sum(axis=1)
            return found
        column = self.free.get(kind)
        return np.zeros(len(self), dtype=np.int64) if column is None else column

    def fits(self, needs: ResourceVector) -> Units:
        """How many such units fit on each node."""
        found = np.full(len(self), MANY, dtype=np.int64)
        for kind, units in needs.items():
            if kind != GPU:
                each = self.column(kind) // units
            elif units >= _ONE:
                each = (self.devices == _ONE).sum(axis=1) // (units // _ONE)
            else:
                each = (self.devices // units).sum(axis=1)
            np.minimum(found, each, out=found)
        return found

    def take(self, needs: ResourceVector, counts: Units) -> None:
        """Put so many on each node; they must fit."""
        for kind, units in needs.items():
            if kind != GPU:
                self.free[kind] -= units * counts
                continue
            for row in np.flatnonzero(counts):
                self._take_gpus(int(row), units, int(counts[row]))

    def _take_gpus(self, row: int, units: int, count: int) -> None:
        devices = self.devices[row]
        if units >= _ONE:
            devices[np.flatnonzero(devices == _ONE)[: count * (units // _ONE)]] = 0
            return
        for device in np.argsort(devices, kind="stable"):  # the one with the least left that still holds some
            each = min(count, int(devices[device]) // units)
            devices[device] -= each * units
            count -= each

    def lacks(self, needs: ResourceVector) -> dict[str, Units]:
        """By kind, how much is missing on each node for one such unit; of GPUs, whole devices."""
        found: dict[str, Units] = {}
        for kind, units in needs.items():
            if kind != GPU:
                found[kind] = np.maximum(0, units - self.column(kind))
            elif units >= _ONE:
                found[kind] = np.maximum(0, units - _ONE * (self.devices == _ONE).sum(axis=1))
            else:
                found[kind] = np.where((self.devices >= units).any(axis=1), 0, _ONE)
        return found

    def add(self, row: int, more: ResourceVector) -> None:
        """Let a node have so much more; GPUs are whole devices."""
        for kind, units in more.items():
            if kind != GPU:
                self.free.setdefault(kind, np.zeros(len(self), dtype=np.int64))[row] += units
                continue
            new = units // _ONE
            # A device with nothing left is as good as none: its place is used for a new one.
            unused = int(np.count_nonzero(self.devices[row] == 0))
            if unused < new:
                self.devices = np.pad(self.devices, ((0, 0), (0, new - unused)))
            self.devices[row, np.flatnonzero(self.devices[row] == 0)[:new]] = _ONE
