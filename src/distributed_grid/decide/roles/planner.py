"""Plans a place for every actor of a workload, or explains per role why there is none and what would make it fit.

Every remedy was tried: with it, the search places everything.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

import numpy as np

from distributed_grid.decide.roles.board import Board, Try, charge, pool_room, worth, worth_by_node
from distributed_grid.decide.roles.search import Search, grow, place, search
from distributed_grid.decide.roles.units import UnitClass, classes_of, standing_by_class
from distributed_grid.errors import InvalidRole
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import BUILT_IN, CPU, GB, GPU, MEMORY, ResourceVector, amount_of, describe, scale
from distributed_grid.model.roles.plan import (
    DoesNotFit,
    Inventory,
    Missing,
    Placement,
    Reason,
    Remedy,
    RemedyKind,
    SuggestedBoost,
    Unit,
)
from distributed_grid.model.roles.workload import Workload

_MOST_TRIES: Final = 4
_MANY_CLASSES: Final = 100
_MOST_SHRUNK: Final = 3
_MOST_CLASSES: Final = 12
_MOST_COMMANDS: Final = 4
_MOST_NAMED: Final = 4
_WORK: Final = 12_000_000
"""The limit on work: classes times nodes, for each try; a second or two. Remedies beyond it are not offered."""

_ONE_BY_ONE: Final = 500
"""This many units without a place are handled one by one. Beyond that, all units of a class go to one node."""
_SIXTEENTH: Final = GB // 16
"""Memory is requested in steps that four digits express exactly."""


@dataclass(frozen=True, slots=True)
class Lack:
    """The amounts to add, by node and by pool; and what the nodes have left then."""

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
    """Searches within a limit on work."""

    def __init__(self, work: int = _WORK) -> None:
        self._left = work

    def fits(self, board: Board) -> bool:
        """Whether everything has a place; False also if the limit on work is reached."""
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
    """The amounts that the pools lack for all units; then each unit without a place goes to the node that lacks the
    least."""
    left, unplaced = found.copy(), list(found.unplaced)
    pools = _pools_lack(board, left, unplaced)
    nodes: dict[int, ResourceVector] = {}
    steps = 0
    for number, one in enumerate(board.classes):
        allowed = board.allowed[number]
        if unplaced[number] and not allowed.any():
            return None  # adding capacity would not help
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
    """Give the pools what they lack, and place the units that only a pool's quota kept from a place."""
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


# -- lenders -------------------------------------------------------------------------------------------------


def _boost(board: Board, lack: Lack, trying: Trying) -> Remedy | None:
    """Move spare capacity from other nodes to where it is missing. GPUs do not move."""
    wanted = [(name, kind, units) for name, vector in lack.nodes.items() for kind, units in vector.items()]
    if lack.pools or not wanted or len(wanted) > _MOST_COMMANDS or any(kind == GPU for _, kind, _ in wanted):
        return None
    moved = dict(lack.nodes)
    boosts: list[SuggestedBoost] = []
    for target, kind, units in wanted:
        source = _lender(board, lack, moved, target, kind, units)
        if source is None:
            return None
        moved[source] = moved.get(source, ResourceVector()) - ResourceVector({kind: units})
        boosts.append(SuggestedBoost(target, source, kind, units))
    if not trying.fits(board.with_more(moved, {})):
        return None
    loans = _and([f"{one.source} lends {one.target} {describe(one.kind, one.units)}" for one in boosts])
    return Remedy(RemedyKind.BOOST, f"if {loans}, it fits", lack.missing(), tuple(boosts))


def _lender(
    board: Board, lack: Lack, moved: Mapping[NodeName, ResourceVector], target: NodeName, kind: str, units: int
) -> NodeName | None:
    """The node that has the most to spare and may lend this much."""
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


# -- what to shrink ------------------------------------------------------------------------------------------


def _shrink(board: Board, best: Try, trying: Trying) -> Iterator[Remedy]:
    """For one class at a time, the largest count with which everything fits. Classes with unplaced units come first."""
    numbers = [number for number, one in enumerate(board.classes) if one.least]
    numbers.sort(key=lambda number: not best.unplaced[number])
    offered = 0
    for number in numbers[:_MOST_CLASSES]:
        one = board.classes[number]
        most = _most_that_fits(board, number, trying)
        if most is None or offered == _MOST_SHRUNK:
            continue
        offered += 1
        who = _and(list(one.names))
        said = f"with {most} instead of {one.least} of {who}" if most else f"without {who}"
        yield Remedy(RemedyKind.SHRINK, f"{said}, it fits", counts=dict.fromkeys(one.names, most))


def _most_that_fits(board: Board, number: int, trying: Trying) -> int | None:
    low, high = 0, board.classes[number].least - 1
    if not trying.fits(board.with_leasts({number: 0})):
        return None
    if sum(one.least > 0 for one in board.classes) == 1:
        low = 1  # a workload cannot do without its only role
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


_NEAREST = 3


def explain(name: str, board: Board, found: Search) -> DoesNotFit:
    """Explain why a workload does not fit, based on the nearest try."""
    best = found.tries[0]
    reasons = [
        Reason(one.names, one.least, one.least - best.unplaced[number], _why(board, best, number))
        for number, one in enumerate(board.classes)
        if best.unplaced[number]
    ]
    return DoesNotFit(name, tuple(reasons), tuple(remedies(board, found.tries)), found.certain)


def _why(board: Board, best: Try, number: int) -> str:
    one = board.classes[number]
    if not board.allowed[number].any():
        return _nowhere(board, one)
    if one.pool is not None and pool_room(one, best.quotas) == 0:
        return _pool_is_full(best, one)
    if not board.fits(number, board.room).any():
        return _too_big(board, number)
    return f"each needs {one.needs.describe()}, and too little is left: {_nearest(board, best, number)}"


def _nowhere(board: Board, one: UnitClass) -> str:
    nodes = tuple(board.inventory.values())
    if not nodes:
        return "there are no nodes"
    named = [name for role in one.roles for name in role.near.names]
    named += one.pool.where.names if one.pool is not None else ()
    unknown = [name for name in named if name not in board.inventory]
    if unknown:
        return f"there is no node {unknown[0]}"
    closed = [f"{node.name}: {node.closed}" for node in nodes if node.closed and not one.why_not_allowed(node)]
    if closed:
        return f"none of the allowed nodes can be used: {_few(closed, len(closed))}"
    return f"every node is excluded: {'; '.join(dict.fromkeys(one.why_not_allowed(node) for node in nodes))}"


def _pool_is_full(best: Try, one: UnitClass) -> str:
    assert one.pool is not None
    left = best.quotas[one.pool.name]
    kind = next(kind for kind, units in one.needs.items() if kind in left and max(0, left[kind]) < units)
    has = describe(kind, one.pool.quota[kind])
    return f"the pool {one.pool.name} has {amount_of(kind, max(0, left[kind]))} of {has} left; " + (
        f"each needs {describe(kind, one.needs[kind])}"
    )


def _too_big(board: Board, number: int) -> str:
    """Why not even one unit fits, even if no other class is placed."""
    one, allowed = board.classes[number], board.allowed[number]
    for kind, lacking in board.room.lacks(one.needs).items():
        if (lacking[allowed] > 0).all():
            units = one.needs[kind]
            column = np.where(allowed, board.room.offers(kind, units), -1)
            row = int(np.argmax(column))
            most = describe(kind, int(column[row]))
            where = f", on {board.room.names[row]}" if column[row] > 0 else ""
            device = " on one device" if kind == GPU and units < scale(GPU) else ""
            return f"no node has {describe(kind, units)} free{device}; the most is {most}{where}"
    return f"no node has all of {one.needs.describe()} free: {_nearest(board, None, number)}"


def _nearest(board: Board, best: Try | None, number: int) -> str:
    """The nodes that lack the least, in words."""
    room = board.room if best is None else best.room
    lacks = room.lacks(board.classes[number].needs)
    cost = np.where(board.allowed[number], worth_by_node(lacks), np.inf)
    nearest = [
        f"{room.names[row]} lacks {ResourceVector({k: int(column[row]) for k, column in lacks.items()}).describe()}"
        for row in np.argsort(cost, kind="stable")[:_NEAREST]
        if np.isfinite(cost[row])
    ]
    return _few(nearest, int(np.isfinite(cost).sum()))


def _few(items: Sequence[str], of: int) -> str:
    """The first few of `of` items, and how many more there are."""
    more = f", and {of - _NEAREST} more nodes" if of > _NEAREST else ""
    return ", ".join(items[:_NEAREST]) + more


def plan_workload(workload: Workload, inventory: Inventory) -> Placement | DoesNotFit:
    """Place the least of every role, all or nothing, and as many more of roles with a range as fit.

    A role that follows a signal begins with its least: the signal says when it needs more.
    """
    classes = tuple(one.with_counts(one.least, one.least) if one.follows else one for one in classes_of(workload))
    return _plan(workload.name, Board.of(classes, inventory), ())


def plan_more(
    workload: Workload, more: Mapping[str, int], inventory: Inventory, standing: Iterable[Unit]
) -> Placement | DoesNotFit:
    """Places for this many more members of some roles beside the existing units, all or nothing.

    The existing units count in pools, in evenness and in indexes: new units get the lowest free indexes. The
    inventory's free capacity must already exclude what the existing units use. The placement has only the new units.
    """
    units = tuple(standing)
    classes = tuple(one.with_counts(wanted, wanted) for one in classes_of(workload) for wanted in [_wanted(one, more)])
    return _plan(workload.name, Board.of(classes, inventory, units), units)


def _plan(name: str, board: Board, standing: tuple[Unit, ...]) -> Placement | DoesNotFit:
    found = search(board)
    if not found.complete:
        return explain(name, board, found)
    best = found.tries[0]
    grow(board, best)
    return Placement(name, tuple(_units(board, best, standing)))


def _wanted(one: UnitClass, more: Mapping[str, int]) -> int:
    """A colocation group grows as one, whichever of its roles is named."""
    counts = {more[name] for name in one.names if name in more}
    if len(counts) > 1:
        raise InvalidRole(f"{one.name} are colocated, so they grow by the same number, not by {sorted(counts)}")
    return counts.pop() if counts else 0


def _units(board: Board, found: Try, standing: tuple[Unit, ...]) -> Iterable[Unit]:
    there = standing_by_class(board.classes, standing)
    for one, counts in zip(board.classes, found.counts, strict=True):
        taken = {unit.index for unit in there[one.name]}
        free = (index for index in count() if index not in taken)
        for row in np.flatnonzero(counts):
            node = board.room.names[row]
            for _ in range(int(counts[row])):
                yield one.unit(node, next(free))
