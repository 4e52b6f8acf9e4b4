"""All ways to place a small workload, one after the other, for as long as that is worth it.

The orders of `searching` miss some mixes where nearly everything is full. On few nodes one can look at every way, and
then know, too, that there is none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from distributed_grid.decide.roles.board import Board, charge, pool_room
from distributed_grid.decide.roles.room import Room, Units
from distributed_grid.decide.roles.tries import Try
from distributed_grid.model.resources import GPU, scale

_MOST_NODES: Final = 12
_MOST_CLASSES: Final = 8
STEPS: Final = 1500


@dataclass(frozen=True, slots=True)
class Exhausted:
    """What came of it: a complete try, or none."""

    found: Try | None
    all_seen: bool
    """There is no way: every one was looked at."""
    steps: int


def is_small(board: Board) -> bool:
    return len(board.room) <= _MOST_NODES and sum(one.least > 0 for one in board.classes) <= _MOST_CLASSES


def exhaust(board: Board, order: Sequence[int]) -> Exhausted:
    """Go through the ways to place the least of all classes, in this order."""
    looking = _Looking(board, order)
    found = looking.place(0, Try.begin(board))
    # Parts of GPUs are put on devices as Ray would, and in no other way.
    parts = any(one.needs[GPU] % scale(GPU) > 0 for one in board.classes if one.least)
    return Exhausted(found, found is None and looking.steps < STEPS and not parts, looking.steps)


class _Looking:
    def __init__(self, board: Board, order: Sequence[int]) -> None:
        self._board = board
        self._order = order
        self.steps = 0

    def place(self, level: int, on: Try) -> Try | None:
        """This class and all that follow; None if there is no way, or too many."""
        if level == len(self._order):
            return on
        board, number = self._board, self._order[level]
        one = board.classes[number]
        fits = board.fits(number, on.room)
        if pool_room(one, on.quotas) < one.least or int(fits.sum()) < one.least:
            return None
        for counts in _ways(fits, one.least, _alike(board, on.room, level, self._order)):
            self.steps += 1
            if self.steps >= STEPS:
                return None
            after = on.copy()
            after.put(one.needs, number, counts)
            charge(one, one.least, after.quotas)
            if self._others_fit(level, after) and (found := self.place(level + 1, after)) is not None:
                return found
        return None

    def _others_fit(self, level: int, on: Try) -> bool:
        """Whether each of those that follow could still be placed, if it were alone."""
        board = self._board
        return all(int(board.fits(n, on.room).sum()) >= board.classes[n].least for n in self._order[level + 1 :])


def _alike(board: Board, room: Room, level: int, order: Sequence[int]) -> list[int | None]:
    """For each node, an earlier one that is like it for all that are still to be placed: it need not get more."""
    columns = [*room.free.values(), *room.devices.values(), *(board.allowed[number] for number in order[level:])]
    first: dict[tuple[int, ...], int] = {}
    found: list[int | None] = []
    for row in range(len(room)):
        key = tuple(int(column[row]) for column in columns)
        found.append(first.get(key))
        first[key] = row
    return found


def _ways(fits: Units, count: int, alike: list[int | None]) -> Iterator[Units]:
    """Every split of so many over the nodes, those first that fill nodes."""
    behind = np.cumsum(fits[::-1])[::-1] - fits  # what the nodes after each one hold
    counts = np.zeros_like(fits)

    def go(row: int, left: int) -> Iterator[Units]:
        if row == len(fits):
            yield counts.copy()
            return
        twin = alike[row]
        most = min(left, int(fits[row]), left if twin is None else int(counts[twin]))
        for here in range(most, max(0, left - int(behind[row])) - 1, -1):
            counts[row] = here
            yield from go(row + 1, left - here)
        counts[row] = 0

    yield from go(0, count)
