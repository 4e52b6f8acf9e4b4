"""The search for places: one class after the other, the hardest to place first; in several orders, if it takes that.

All units of a class are alike, so a class on its own is placed exactly: if there is room for all, all are placed. With
several classes this is bin packing, for which good orders are tried, and the first that works is taken; on few nodes,
then all ways there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, permutations, product
from typing import Final

import numpy as np

from distributed_grid.decide.roles.board import Board, charge, pool_room
from distributed_grid.decide.roles.exhausting import exhaust, is_small
from distributed_grid.decide.roles.spreading import Way, arrange
from distributed_grid.decide.roles.tries import Try
from distributed_grid.decide.roles.worth import worth
from distributed_grid.model.resources import BUILT_IN, GPU

_WORK: Final = 2_000_000
"""How much is tried where nothing fits: classes times nodes, each time."""

_FEWEST_TRIES: Final = 3
_MOST_TRIES: Final = 400
_KEPT: Final = 12
_MOST_MIXED: Final = 6


@dataclass(frozen=True, slots=True)
class Search:
    """What came of it."""

    tries: tuple[Try, ...]
    """One that is complete, alone; or those that came nearest, the best first."""
    certain: bool = False
    """There is no way, and that is proven."""
    attempts: int = 1
    """How many there were, as a measure of the work."""

    @property
    def complete(self) -> bool:
        return self.tries[0].complete


def search(board: Board) -> Search:
    """Places for the least of every class."""
    tries: list[Try] = []
    hopeless = ruled_out(board)
    attempts = 1
    for variant in islice(_variants(board), _FEWEST_TRIES if hopeless else None):
        found = _attempt(board, variant)
        attempts += 1
        if found.complete:
            return Search((found,), attempts=attempts)
        tries = sorted([*tries, found], key=lambda one: _worth(board, one.unplaced))[:_KEPT]
    if hopeless or not is_small(board):
        return Search(tuple(tries), hopeless, attempts)
    every = exhaust(board, _orders(board)[0])
    best = tuple(tries) if every.found is None else (every.found,)
    return Search(best, every.all_seen, attempts + every.steps)


def _worth(board: Board, unplaced: list[int]) -> float:
    """Of all that has no place."""
    return sum(count * worth(one.needs) for count, one in zip(unplaced, board.classes, strict=True) if count)


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


Variant = tuple[tuple[int, Way], ...]
"""The classes in the order in which they are placed, and how each is."""


def _variants(board: Board) -> Iterator[Variant]:
    """As the roles say, in several orders; then all classes in one way; then mixes, as far as that is worth it."""
    orders = _orders(board)
    asked = [Way.SPREAD if one.spreads else Way.PACK for one in board.classes]
    classes = len(orders[0])
    most = max(_FEWEST_TRIES, min(_MOST_TRIES, _WORK // ((classes + 1) * (len(board.room) + 200))))
    first = (tuple((number, asked[number]) for number in order) for order in orders)
    alike = (tuple((number, way) for number in order) for way in Way for order in orders)
    mixes: Iterator[Variant] = iter(())
    if classes <= _MOST_MIXED and not is_small(board):  # where it is small, all ways are gone through anyway
        every = product(product(Way, repeat=classes), permutations(orders[0]))
        mixes = (tuple(zip(order, ways, strict=True)) for ways, order in every)
    variants = dict.fromkeys(islice(chain(first, alike, mixes), 2 * most))
    yield from islice(variants, 1 if classes < 2 else most)


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


def _attempt(board: Board, variant: Variant) -> Try:
    found = Try.begin(board)
    for number, way in variant:
        wanted = board.classes[number].least
        found.unplaced[number] = wanted - place(board, found, number, wanted, way)
    return found


def place(board: Board, on: Try, number: int, count: int, way: Way | None = None) -> int:
    """Put up to `count` more units of a class where there is room; how many it were. Unless told, as its roles say."""
    one = board.classes[number]
    counts = arrange(
        board.fits(number, on.room),
        board.shunned[number],
        min(count, pool_room(one, on.quotas)),
        board.already[number] + on.counts[number],
        way or (Way.SPREAD if one.spreads else Way.PACK),
    )
    placed = int(counts.sum())
    if placed:
        on.put(one.needs, number, counts)
        charge(one, placed, on.quotas)
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
