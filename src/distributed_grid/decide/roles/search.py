"""The search for places: one class of units after another, the hardest first, in several orders if needed.

All units of a class are equal, so a single class is placed exactly: if there is room for all units, all are placed.
Several classes are a bin packing problem, for which the search tries good orders. On few nodes it then tries every way,
which also proves when there is none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice, permutations, product
from typing import Final

import numpy as np

from distributed_grid.decide.roles.board import Board, Try, charge, pool_room, worth
from distributed_grid.decide.roles.room import Mask, Room, Units
from distributed_grid.model.resources import BUILT_IN, GPU, scale


class Way(Enum):
    PACK = "few nodes"
    SPREAD = "evenly"
    TIGHT = "the fullest nodes first"
    """No role can ask for this. It places some mixes that the other ways do not."""


def arrange(fits: Units, shunned: Mask, count: int, already: Units, chosen: Way) -> Units:
    """Places for `count` units, or for as many as fit. Shunned nodes get only what the others cannot hold.

    `already`: how many units of the class each node has from before; they count towards evenness.
    """
    way = {Way.PACK: _pack, Way.SPREAD: _spread, Way.TIGHT: _tight}[chosen]
    first = np.where(shunned, 0, fits)
    held = min(count, int(first.sum()))
    counts = way(first, held, already)
    if held < count:
        rest = fits - first
        counts = counts + way(rest, min(count - held, int(rest.sum())), already)
    return counts


def _pack(fits: Units, count: int, already: Units) -> Units:
    """Fill the roomiest nodes. The remainder goes to a node that already has such units, or to the tightest fit.

    Rows are in name order and sorting is stable, so the first of equal nodes wins.
    """
    counts = np.zeros_like(fits)
    if count <= 0:
        return counts
    roomiest = np.lexsort((already == 0, -fits))
    filled = np.cumsum(fits[roomiest])
    full = int(np.searchsorted(filled, count))  # how many nodes are filled before the one that takes the remainder
    counts[roomiest[:full]] = fits[roomiest[:full]]
    left = count - int(counts.sum())
    if left > 0:
        rest = roomiest[full:]
        able = rest[fits[rest] >= left]
        counts[able[np.lexsort((able, fits[able], already[able] == 0))[0]]] += left
    return counts


def _tight(fits: Units, count: int, already: Units) -> Units:
    """Node by node, those with the least room first."""
    order = np.lexsort((already == 0, fits))
    before = np.cumsum(fits[order]) - fits[order]
    counts = np.zeros_like(fits)
    counts[order] = np.clip(count - before, 0, fits[order])
    return counts


def _spread(fits: Units, count: int, already: Units) -> Units:
    """Fill every node to the same level, as far as it has room. The remainder goes to the nodes with the most room."""
    if count <= 0:
        return np.zeros_like(fits)
    low, high = 0, int(already.max(initial=0)) + count
    while low < high:  # the highest level that does not need more units than there are
        middle = (low + high + 1) // 2
        if int(np.clip(middle - already, 0, fits).sum()) <= count:
            low = middle
        else:
            high = middle - 1
    counts = np.clip(low - already, 0, fits)
    left = count - int(counts.sum())
    if left > 0:
        open_rows = np.flatnonzero((counts < fits) & (already + counts <= low))
        order = open_rows[np.lexsort((open_rows, -(fits - counts)[open_rows]))]
        counts[order[:left]] += 1
    return counts


_MOST_NODES: Final = 12
_MOST_CLASSES: Final = 8
STEPS: Final = 1500


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The result of an exhaustive search: a complete try, or none."""

    found: Try | None
    all_seen: bool
    """Every way was tried, and none works."""
    steps: int


def is_small(board: Board) -> bool:
    return len(board.room) <= _MOST_NODES and sum(one.least > 0 for one in board.classes) <= _MOST_CLASSES


def exhaust(board: Board, order: Sequence[int]) -> Exhausted:
    """Try the ways to place the least of all classes, in this order."""
    looking = _Looking(board, order)
    found = looking.place(0, Try.begin(board))
    # A search with parts of GPUs proves nothing: it places parts only as Ray does.
    parts = any(one.needs[GPU] % scale(GPU) > 0 for one in board.classes if one.least)
    return Exhausted(found, found is None and looking.steps < STEPS and not parts, looking.steps)


class _Looking:
    def __init__(self, board: Board, order: Sequence[int]) -> None:
        self._board = board
        self._order = order
        self.steps = 0

    def place(self, level: int, on: Try) -> Try | None:
        """Place this class and all that follow; None if there is no way, or if the step limit is reached."""
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
        """Whether each following class could still be placed if it were alone."""
        board = self._board
        return all(int(board.fits(n, on.room).sum()) >= board.classes[n].least for n in self._order[level + 1 :])


def _alike(board: Board, room: Room, level: int, order: Sequence[int]) -> list[int | None]:
    """For each node, an earlier one that is equivalent for all remaining classes: it never needs more than that one."""
    columns = [*room.free.values(), *room.devices.values(), *(board.allowed[number] for number in order[level:])]
    first: dict[tuple[int, ...], int] = {}
    found: list[int | None] = []
    for row in range(len(room)):
        key = tuple(int(column[row]) for column in columns)
        found.append(first.get(key))
        first[key] = row
    return found


def _ways(fits: Units, count: int, alike: list[int | None]) -> Iterator[Units]:
    """Every split of `count` units over the nodes, those that fill nodes first."""
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


_WORK: Final = 2_000_000
"""The limit on work if nothing fits: classes times nodes, for each try."""

_FEWEST_TRIES: Final = 3
_MOST_TRIES: Final = 400
_KEPT: Final = 12
_MOST_MIXED: Final = 6


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search."""

    tries: tuple[Try, ...]
    """A single complete try; or the incomplete ones that came nearest, the best first."""
    certain: bool = False
    """It is proven that there is no way."""
    attempts: int = 1
    """The number of attempts, as a measure of the work."""

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
    """The worth of all units without a place."""
    return sum(count * worth(one.needs) for count, one in zip(unplaced, board.classes, strict=True) if count)


def ruled_out(board: Board) -> bool:
    """Whether sums alone rule out a placement: of one class by itself, of a kind on all nodes, or of a pool."""
    wanted = [one for one in board.classes if one.least]
    if any(board.fit_at_all(number) < one.least for number, one in enumerate(board.classes) if one.least):
        return True
    if len(wanted) == 1:
        return False
    for kind in dict.fromkeys(kind for one in wanted for kind in one.needs):
        needed = sum(one.least * one.needs[kind] for one in wanted)
        if needed > int(board.room.column(kind)[board.usable].sum()):
            return True
    return any(
        sum(one.least * one.needs[kind] for one in wanted if one.pool and one.pool.name == pool) > units
        for pool, left in board.quotas.items()
        for kind, units in left.items()
    )


Variant = tuple[tuple[int, Way], ...]
"""The classes in the order in which they are placed, each with its way."""


def _variants(board: Board) -> Iterator[Variant]:
    """First as the roles ask, in several orders; then one way for all classes; then mixes, within a limit."""
    orders = _orders(board)
    preferred = [Way.SPREAD if one.spreads else Way.PACK for one in board.classes]
    classes = len(orders[0])
    most = max(_FEWEST_TRIES, min(_MOST_TRIES, _WORK // ((classes + 1) * (len(board.room) + 200))))
    first = (tuple((number, preferred[number]) for number in order) for order in orders)
    alike = (tuple((number, way) for number in order) for way in Way for order in orders)
    mixes: Iterator[Variant] = iter(())
    if classes <= _MOST_MIXED and not is_small(board):  # small boards are searched exhaustively anyway
        every = product(product(Way, repeat=classes), permutations(orders[0]))
        mixes = (tuple(zip(order, ways, strict=True)) for ways, order in every)
    variants = dict.fromkeys(islice(chain(first, alike, mixes), 2 * most))
    yield from islice(variants, 1 if classes < 2 else most)


def _orders(board: Board) -> tuple[tuple[int, ...], ...]:
    """Orders of classes: scarce and large needs first, and classes that fit on few nodes before the others."""
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
    """Place up to `count` more units of a class where there is room, by default as its roles ask. Return how many."""
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
    """Grow each class from its least towards its most, in turns, while there is room for one more.

    A turn adds one unit to each class. If all classes have room for many turns, many are taken at once.
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
