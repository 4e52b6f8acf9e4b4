"""One try to place everything: where things went, and what is left."""

from dataclasses import dataclass

import numpy as np

from distributed_grid.decide.roles.board import Board, Quotas
from distributed_grid.decide.roles.room import Room, Units
from distributed_grid.model.resources import ResourceVector


@dataclass(slots=True)
class Try:
    room: Room
    quotas: Quotas
    counts: list[Units]
    """By class: how many on each node."""
    unplaced: list[int]

    @classmethod
    def begin(cls, board: Board) -> "Try":
        nothing = np.zeros(len(board.room), dtype=np.int64)
        return cls(board.room.copy(), board.quotas_left(), [nothing] * len(board.classes), [0] * len(board.classes))

    @property
    def complete(self) -> bool:
        return not any(self.unplaced)

    def put(self, needs: ResourceVector, number: int, counts: Units) -> None:
        """So many units of a class on each node; they must fit."""
        self.room.take(needs, counts)
        self.counts[number] = self.counts[number] + counts

    def copy(self) -> "Try":
        quotas = {pool: dict(left) for pool, left in self.quotas.items()}
        return Try(self.room.copy(), quotas, list(self.counts), list(self.unplaced))

    def restore(self, before: "Try") -> None:
        self.room, self.quotas, self.counts = before.room, before.quotas, before.counts
