"""The search for places: one class after the other, the hardest to place first; in several orders, if it takes that.

All units of a class are alike, so a class on its own is placed exactly: if there is room for all, all are placed. With
several classes this is bin packing, for which a few good orders are tried, and the first that works is taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from distributed_grid.decide.roles.board import Board, Quotas, charge, pool_room
from distributed_grid.decide.roles.room import Room, Units
from distributed_grid.decide.roles.spreading import arrange
from distributed_grid.model.resources import BUILT_IN, GPU

_AS_ASKED: Final = None
_WAYS: Final = (_AS_ASKED, False, True)
"""Whether classes are spread: as the roles say; or, where that finds no place, none or all of them."""

_MANY_CLASSES: Final = 100
_FEW_TRIES: Final = 3
"""With very many classes, small differences between orders matter little, and each try takes long."""


@dataclass(slots=True)
class Try:
    """Where things went, and what is left."""

    room: Room
    quotas: Quotas
    counts: list[Units]
    """By class: how many on each node."""
    unplaced: list[int]

    @property
    def complete(self) -> bool:
        return not any(self.unplaced)

    def copy(self) -> "Try":
        quotas = {pool: dict(left) for pool, left in self.quotas.items()}
        return Try(self.room.copy(), quotas, list(self.counts), list(self.unplaced))

    def restore(self, before: "Try") -> None:
        self.room, self.quotas, self.counts = before.room, before.quotas, before.counts


def search(board: Board) -> tuple[Try, ...]:
    """The first try that places the least of every class, alone; or all of them, the one with the fewest left first."""
    tries: list[Try] = []
    for order, spread in _variants(board):
        found = _attempt(board, order, spread)
        if found.complete:
            return (found,)
        tries.append(found)
    return tuple(sorted(tries, key=lambda one: sum(one.unplaced)))


def ruled_out(board: Board) -> bool:
    """Whether sums alone say that there is no room: of one class by itself, of a kind on all nodes, or of a pool."""
    wanted = [one for one in board.classes if one.least]
    if any(board.fit_at_all(number) < one.least for number, one in enumerate(board.classes) if one.least):
        return True
    if len(wanted) == 1:
        return False
    for kind in dict.fromkeys(kind for one in wanted for kind in one.needs):
        asked = sum(one.least * one.needs[kind] for one in wanted)
        if asked > int(board.room.column(kind)[board.usable].sum()):
            return True
    return any(
        sum(one.least * one.needs[kind] for one in wanted if one.pool and one.pool.name == pool) > units
        for pool, left in board.quotas.items()
        for kind, units in left.items()
    )


def _variants(board: Board) -> Iterator[tuple[tuple[int, ...], bool | None]]:
    orders = _orders(board)
    wanted = sum(one.least > 0 for one in board.classes)
    ways = [(order, spread) for spread in (_WAYS if wanted > 1 else _WAYS[:1]) for order in orders]
    yield from ways[:_FEW_TRIES] if wanted > _MANY_CLASSES else ways


def _orders(board: Board) -> tuple[tuple[int, ...], ...]:
    """Scarce and large things first, and those that can be on few nodes before those that can be on many."""
    numbers = [number for number, one in enumerate(board.classes) if one.least > 0]
    most_free = {kind: int(board.room.column(kind).max(initial=0)) for kind in (GPU, *board.room.free)}

    def share(number: int) -> float:
        needs = board.classes[number].needs
        return max(
            (units / most_free[kind] if most_free.get(kind) else 1.0 for kind, units in needs.items()), default=0
        )

    places = {number: int(np.count_nonzero(board.fits(number, board.room))) for number in numbers}
    slack = {number: board.fit_at_all(number) / board.classes[number].least for number in numbers}
    scarce = {
        number: any(kind == GPU or kind not in BUILT_IN for kind in board.classes[number].needs) for number in numbers
    }
    shares = {number: share(number) for number in numbers}
    found = (
        sorted(numbers, key=lambda n: (places[n], not scarce[n], -shares[n])),
        sorted(numbers, key=lambda n: (not scarce[n], -shares[n])),
        sorted(numbers, key=lambda n: -shares[n]),
        sorted(numbers, key=lambda n: slack[n]),
    )
    return tuple(dict.fromkeys(map(tuple, found)))


def _attempt(board: Board, order: tuple[int, ...], spread: bool | None) -> Try:
    nothing = np.zeros(len(board.room), dtype=np.int64)
    found = Try(board.room.copy(), board.quotas_left(), [nothing] * len(board.classes), [0] * len(board.classes))
    for number in order:
        wanted = board.classes[number].least
        found.unplaced[number] = wanted - place(board, found, number, wanted, spread=spread)
    return found


def place(board: Board, on: Try, number: int, count: int, *, spread: bool | None = None) -> int:
    """Put up to `count` more units of a class where there is room; how many it were."""
    one = board.classes[number]
    counts = arrange(
        board.fits(number, on.room),
        board.shunned[number],
        min(count, pool_room(one, on.quotas)),
        board.already[number] + on.counts[number],
        spread=one.spreads if spread is None else spread,
    )
    placed = int(counts.sum())
    if placed:
        on.room.take(one.needs, counts)
        charge(one, placed, on.quotas)
        on.counts[number] = on.counts[number] + counts
    return placed


def grow(board: Board, on: Try) -> None:
    """From the least of each class towards the most, in turns, for as long as there is room for one more.

    A turn is one unit of each; where all have room for many turns, many are taken at once.
    """
    left = {number: one.most - one.least for number, one in enumerate(board.classes) if one.most > one.least}
    step = 1
    while left:
        turn = min(step, min(left.values()))
        before = on.copy()
        short = [number for number in left if place(board, on, number, turn) < turn]
        if short and turn > 1:
            on.restore(before)
            step = turn // 2
            continue
        step = 2 * turn
        left = {number: more - turn for number, more in left.items() if number not in short and more > turn}
