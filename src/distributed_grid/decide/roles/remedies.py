"""What would make a workload fit. Everything that is told was tried: with it, the search finds places for all."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.decide.roles.board import Board, charge
from distributed_grid.decide.roles.room import Units
from distributed_grid.decide.roles.searching import Try, fits
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.resources import BUILT_IN, CPU, GB, GPU, MEMORY, ResourceVector, amount_of, describe, scale
from distributed_grid.model.roles.plan import Missing, Remedy, RemedyKind

_MOST_TRIES: Final = 4
_MOST_SHRUNK: Final = 3
_MOST_CLASSES: Final = 12
_MOST_COMMANDS: Final = 4
_SIXTEENTH: Final = GB // 16
"""Memory is asked for in parts that four digits can tell exactly."""

_WEIGHTS: Final = {GPU: 1000.0, CPU: 1.0, MEMORY: 0.125}
"""How bad it is to lack one (a device, a core, a GB); of a custom resource, a hundred cores."""


@dataclass(frozen=True, slots=True)
class Lack:
    """What would have to be added, by node and by pool; and what is left on the nodes without it."""

    nodes: Mapping[NodeName, ResourceVector]
    pools: Mapping[str, ResourceVector]
    left: Try

    @property
    def cost(self) -> float:
        vectors = (*self.nodes.values(), *self.pools.values())
        return sum(_weight(kind) * units / scale(kind) for vector in vectors for kind, units in vector.items())

    def missing(self) -> tuple[Missing, ...]:
        places = [(name, vector, False) for name, vector in self.nodes.items()]
        places += [(name, vector, True) for name, vector in self.pools.items()]
        return tuple(
            Missing(name, kind, vector[kind], in_pool) for name, vector, in_pool in places for kind in _ordered(vector)
        )


def remedies(board: Board, tries: tuple[Try, ...]) -> Iterator[Remedy]:
    """A boost first, since it costs nothing; then what to add, and which roles to shrink."""
    lacks = sorted((lack for one in tries[:_MOST_TRIES] if (lack := _lack(board, one))), key=lambda one: one.cost)
    boost = next((found for lack in lacks if (found := _boost(board, lack))), None)
    if boost is not None:
        yield boost
    enough = next((lack for lack in lacks if fits(board.with_more(lack.nodes, lack.pools))), None)
    if enough is not None:
        missing = enough.missing()
        yield Remedy(RemedyKind.ADD, f"with {_and([one.describe() for one in missing])}, it fits", (), missing)
    yield from _shrink(board, tries[0])


# -- what is missing -----------------------------------------------------------------------------------------


def _lack(board: Board, found: Try) -> Lack | None:
    """Every unit without a place goes to the node that lacks the least for it, and so on with what is then left."""
    left = found.copy()
    nodes: dict[int, ResourceVector] = {}
    pools: dict[str, ResourceVector] = {}
    for number, one in enumerate(board.classes):
        for _ in range(found.unplaced[number]):
            allowed = board.allowed[number]
            if not allowed.any():
                return None  # more of anything would not help
            if one.pool is not None and (short := _short(left.quotas[one.pool.name], one.needs)):
                pools[one.pool.name] = pools.get(one.pool.name, ResourceVector()) + short
                left.quotas[one.pool.name] = {k: u + short[k] for k, u in left.quotas[one.pool.name].items()}
            lacking = left.room.lacks(one.needs)
            row = int(np.argmin(np.where(allowed, weight(lacking), np.inf)))
            more = ResourceVector({kind: _up(kind, int(column[row])) for kind, column in lacking.items()})
            if more:
                nodes[row] = nodes.get(row, ResourceVector()) + more
                left.room.add(row, more)
            here = np.zeros(len(left.room), dtype=np.int64)
            here[row] = 1
            left.room.take(one.needs, here)
            charge(one, 1, left.quotas)
    names = left.room.names
    return Lack({names[row]: nodes[row] for row in sorted(nodes)}, dict(sorted(pools.items())), left)


def weight(lacking: Mapping[str, Units]) -> NDArray[np.float64]:
    """One number for each node: how much it lacks of everything."""
    parts = [column * (_weight(kind) / scale(kind)) for kind, column in lacking.items()]
    found: NDArray[np.float64] = np.sum(parts, axis=0, dtype=np.float64) if parts else np.zeros(1)
    return found


def _weight(kind: str) -> float:
    return _WEIGHTS.get(kind, 100.0)


def _short(left: Mapping[str, int], needs: ResourceVector) -> ResourceVector:
    return ResourceVector(
        {kind: _up(kind, units - left[kind]) for kind, units in needs.items() if kind in left and left[kind] < units}
    )


def _up(kind: str, units: int) -> int:
    return -(-units // _SIXTEENTH) * _SIXTEENTH if kind == MEMORY else units


# -- who could lend it ---------------------------------------------------------------------------------------


def _boost(board: Board, lack: Lack) -> Remedy | None:
    """Capacity that others have left over moves to where it is missing. GPUs stay where they are."""
    wanted = [(name, kind, units) for name, vector in lack.nodes.items() for kind, units in vector.items()]
    if lack.pools or not wanted or len(wanted) > _MOST_COMMANDS or any(kind == GPU for _, kind, _ in wanted):
        return None
    moved = dict(lack.nodes)
    commands, told = [], []
    for target, kind, units in wanted:
        source = _lender(board, lack, moved, target, kind, units)
        if source is None:
            return None
        moved[source] = moved.get(source, ResourceVector()) - ResourceVector({kind: units})
        told.append(f"{source} lends {target} {describe(kind, units)}")
        commands.append(f"grid boost request {target} {kind} {amount_of(kind, units)} --source {source}")
    if not fits(board.with_more(moved, {})):
        return None
    return Remedy(RemedyKind.BOOST, f"if {_and(told)}, it fits", tuple(commands), lack.missing())


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


def _shrink(board: Board, best: Try) -> Iterator[Remedy]:
    """For one class at a time, the most of it with which all fits; those without a place first."""
    numbers = [number for number, one in enumerate(board.classes) if one.least][:_MOST_CLASSES]
    numbers.sort(key=lambda number: not best.unplaced[number])
    told = 0
    for number in numbers:
        one = board.classes[number]
        most = _most_that_fits(board, number)
        if most is None or told == _MOST_SHRUNK:
            continue
        told += 1
        who = _and(list(one.names))
        said = f"with {most} instead of {one.least} of {who}" if most else f"without {who}"
        yield Remedy(RemedyKind.SHRINK, f"{said}, it fits", counts=dict.fromkeys(one.names, most))


def _most_that_fits(board: Board, number: int) -> int | None:
    low, high = 0, board.classes[number].least - 1
    if not fits(board.with_leasts({number: 0})):
        return None
    if sum(one.least > 0 for one in board.classes) == 1:
        low = 1  # a workload without its only role is none
        if high < low or not fits(board.with_leasts({number: low})):
            return None
    while low < high:
        middle = (low + high + 1) // 2
        if fits(board.with_leasts({number: middle})):
            low = middle
        else:
            high = middle - 1
    return low


def _ordered(vector: ResourceVector) -> list[str]:
    return [*(k for k in (GPU, CPU, MEMORY) if k in vector), *sorted(k for k in vector if k not in BUILT_IN)]


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
