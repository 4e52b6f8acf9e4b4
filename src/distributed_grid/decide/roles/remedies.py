"""What would make a workload fit. Everything that is told was tried: with it, the search finds places for all."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from distributed_grid.decide.roles.board import Board, charge
from distributed_grid.decide.roles.searching import place, search
from distributed_grid.decide.roles.tries import Try
from distributed_grid.decide.roles.worth import worth, worth_by_node
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import BUILT_IN, CPU, GB, GPU, MEMORY, ResourceVector, describe
from distributed_grid.model.roles.plan import BoostWish, Missing, Remedy, RemedyKind

_MOST_TRIES: Final = 4
_MANY_CLASSES: Final = 100
_MOST_SHRUNK: Final = 3
_MOST_CLASSES: Final = 12
_MOST_COMMANDS: Final = 4
_MOST_NAMED: Final = 4
_WORK: Final = 12_000_000
"""How much is tried: classes times nodes, each time; a second or two. What was not tried is not told."""

_ONE_BY_ONE: Final = 500
"""So many units without a place are gone through one by one; of more, all of a class go to one node."""
_SIXTEENTH: Final = GB // 16
"""Memory is asked for in parts that four digits can tell exactly."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What would have to be added, by node and by pool; and what is left on the nodes without it."""

    nodes: Mapping[NodeName, ResourceVector]
    pools: Mapping[str, ResourceVector]
    left: Try

    @property
    def cost(self) -> float:
        return sum(worth(vector) for vector in (*self.nodes.values(), *self.pools.values()))

    def missing(self) -> tuple[Missing, ...]:
        places = [(name, vector, False) for name, vector in self.nodes.items()]
        places += [(name, vector, True) for name, vector in self.pools.items()]
        return tuple(
            Missing(name, kind, vector[kind], in_pool) for name, vector, in_pool in places for kind in _ordered(vector)
        )


class Trying:
    """Searches, for as long as the work is worth it."""

    def __init__(self, work: int = _WORK) -> None:
        self._left = work

    def fits(self, board: Board) -> bool:
        """Whether everything has a place; False also where it is too much work to find out."""
        each = len(board.classes) * (len(board.room) + 200)
        if self._left < each:
            return False
        found = search(board)
        self._left -= each * found.attempts
        return found.complete


def remedies(board: Board, tries: tuple[Try, ...]) -> Iterator[Remedy]:
    """A boost first, since it costs nothing; then what to add, and which roles to shrink."""
    trying = Trying()
    tried = tries[: 1 if len(board.classes) > _MANY_CLASSES else _MOST_TRIES]
    lacks = sorted((lack for one in tried if (lack := _lack(board, one))), key=lambda one: one.cost)
    boost = next((found for lack in lacks if (found := _boost(board, lack, trying))), None)
    if boost is not None:
        yield boost
    enough = next((lack for lack in lacks if trying.fits(board.with_more(lack.nodes, lack.pools))), None)
    if enough is not None:
        missing = enough.missing()
        yield Remedy(RemedyKind.ADD, f"with {_in_words(missing)}, it fits", missing)
    yield from _shrink(board, tries[0], trying)


# -- what is missing -----------------------------------------------------------------------------------------


def _lack(board: Board, found: Try) -> Lack | None:
    """What pools lack for all of them; then every unit without a place goes to the node that lacks the least."""
    left, unplaced = found.copy(), list(found.unplaced)
    pools = _pools_lack(board, left, unplaced)
    nodes: dict[int, ResourceVector] = {}
    steps = 0
    for number, one in enumerate(board.classes):
        allowed = board.allowed[number]
        if unplaced[number] and not allowed.any():
            return None  # more of anything would not help
        while unplaced[number]:
            steps += 1
            count = 1 if steps <= _ONE_BY_ONE else unplaced[number]
            row = int(np.argmin(np.where(allowed, worth_by_node(left.room.lacks(one.needs)), np.inf)))
            lacking = left.room.lacks_for(row, one.needs, count)
            more = ResourceVector({kind: _up(kind, units) for kind, units in lacking.items()})
            if more:
                nodes[row] = nodes.get(row, ResourceVector()) + more
                left.room.add(row, more)
            here = np.zeros(len(left.room), dtype=np.int64)
            here[row] = count
            left.room.take(one.needs, here)
            unplaced[number] -= count
    names = left.room.names
    return Lack({names[row]: nodes[row] for row in sorted(nodes)}, pools, left)


def _pools_lack(board: Board, left: Try, unplaced: list[int]) -> dict[str, ResourceVector]:
    """Let pools have what they lack, and give places to those whom only that kept from having one."""
    found: dict[str, ResourceVector] = {}
    for number, one in enumerate(board.classes):
        if one.pool is None or not unplaced[number]:
            continue
        quota = left.quotas[one.pool.name]
        lacking = {kind: unplaced[number] * units - quota[kind] for kind, units in one.needs.items() if kind in quota}
        short = ResourceVector({kind: _up(kind, units) for kind, units in lacking.items() if units > 0})
        if short:
            found[one.pool.name] = found.get(one.pool.name, ResourceVector()) + short
            left.quotas[one.pool.name] = {kind: units + short[kind] for kind, units in quota.items()}
            unplaced[number] -= place(board, left, number, unplaced[number])
        charge(one, unplaced[number], left.quotas)
    return dict(sorted(found.items()))


def _up(kind: str, units: int) -> int:
    return -(-units // _SIXTEENTH) * _SIXTEENTH if kind == MEMORY else units


# -- who could lend it ---------------------------------------------------------------------------------------


def _boost(board: Board, lack: Lack, trying: Trying) -> Remedy | None:
    """Capacity that others have left over moves to where it is missing. GPUs stay where they are."""
    wanted = [(name, kind, units) for name, vector in lack.nodes.items() for kind, units in vector.items()]
    if lack.pools or not wanted or len(wanted) > _MOST_COMMANDS or any(kind == GPU for _, kind, _ in wanted):
        return None
    moved = dict(lack.nodes)
    boosts: list[BoostWish] = []
    for target, kind, units in wanted:
        source = _lender(board, lack, moved, target, kind, units)
        if source is None:
            return None
        moved[source] = moved.get(source, ResourceVector()) - ResourceVector({kind: units})
        boosts.append(BoostWish(target, source, kind, units))
    if not trying.fits(board.with_more(moved, {})):
        return None
    told = _and([f"{one.source} lends {one.target} {describe(one.kind, one.units)}" for one in boosts])
    return Remedy(RemedyKind.BOOST, f"if {told}, it fits", lack.missing(), tuple(boosts))


def _lender(
    board: Board, lack: Lack, moved: Mapping[NodeName, ResourceVector], target: NodeName, kind: str, units: int
) -> NodeName | None:
    """Who has the most of it left over, and may lend so much."""
    column = lack.left.room.column(kind)
    best: tuple[int, NodeName] | None = None
    for row, node in enumerate(board.inventory.values()):
        given = -min(0, moved[node.name][kind]) if node.name in moved else 0
        over = min(int(column[row]), node.lends[kind]) - given
        if node.name == target or node.closed or node.name in lack.nodes or over < units:
            continue
        if best is None or (-over, node.name) < best:
            best = (-over, node.name)
    return None if best is None else best[1]


# -- what to leave out ---------------------------------------------------------------------------------------


def _shrink(board: Board, best: Try, trying: Trying) -> Iterator[Remedy]:
    """For one class at a time, the most of it with which all fits; those without a place first."""
    numbers = [number for number, one in enumerate(board.classes) if one.least]
    numbers.sort(key=lambda number: not best.unplaced[number])
    told = 0
    for number in numbers[:_MOST_CLASSES]:
        one = board.classes[number]
        most = _most_that_fits(board, number, trying)
        if most is None or told == _MOST_SHRUNK:
            continue
        told += 1
        who = _and(list(one.names))
        said = f"with {most} instead of {one.least} of {who}" if most else f"without {who}"
        yield Remedy(RemedyKind.SHRINK, f"{said}, it fits", counts=dict.fromkeys(one.names, most))


def _most_that_fits(board: Board, number: int, trying: Trying) -> int | None:
    low, high = 0, board.classes[number].least - 1
    if not trying.fits(board.with_leasts({number: 0})):
        return None
    if sum(one.least > 0 for one in board.classes) == 1:
        low = 1  # a workload without its only role is none
        if high < low or not trying.fits(board.with_leasts({number: low})):
            return None
    while low < high:
        middle = (low + high + 1) // 2
        if trying.fits(board.with_leasts({number: middle})):
            low = middle
        else:
            high = middle - 1
    return low


def _in_words(missing: tuple[Missing, ...]) -> str:
    if len(missing) <= _MOST_NAMED:
        return _and([one.describe() for one in missing])
    sums: dict[str, int] = {}
    for one in missing:
        sums[one.kind] = sums.get(one.kind, 0) + one.units
    places = len({(one.where, one.in_pool) for one in missing})
    some = ", ".join(one.describe() for one in missing[: _MOST_NAMED - 1])
    return f"{ResourceVector(sums).describe()} more in {places} places ({some}, ...)"


def _ordered(vector: ResourceVector) -> list[str]:
    return [*(k for k in (GPU, CPU, MEMORY) if k in vector), *sorted(k for k in vector if k not in BUILT_IN)]


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
