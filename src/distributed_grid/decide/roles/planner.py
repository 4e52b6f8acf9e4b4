"""A place for every actor of a workload, or why there is none."""

from collections.abc import Iterable, Mapping
from itertools import count

import numpy as np

from distributed_grid.decide.roles.board import Board
from distributed_grid.decide.roles.reasons import explain
from distributed_grid.decide.roles.searching import grow, search
from distributed_grid.decide.roles.tries import Try
from distributed_grid.decide.roles.units import UnitClass, classes_of, standing_by_class
from distributed_grid.errors import InvalidRole
from distributed_grid.model.roles.inventory import Inventory
from distributed_grid.model.roles.plan import DoesNotFit, Placement, Unit
from distributed_grid.model.roles.workload import Workload


def plan_workload(workload: Workload, inventory: Inventory) -> Placement | DoesNotFit:
    """All or nothing: the least of every role has a place, and roles with a range as many more as there is room.

    A role that follows a signal begins with its least: the signal says when it needs more.
    """
    classes = tuple(one.with_counts(one.least, one.least) if one.follows else one for one in classes_of(workload))
    return _plan(workload.name, Board.of(classes, inventory), ())


def plan_more(
    workload: Workload, more: Mapping[str, int], inventory: Inventory, standing: Iterable[Unit]
) -> Placement | DoesNotFit:
    """Places for so many more of some roles, beside those that are there: all or nothing.

    What stands is counted in pools, in evenness and in indexes, of which the lowest free ones are used; what it uses is
    no longer free in the inventory. The placement has the new units only.
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
    asked = {more[name] for name in one.names if name in more}
    if len(asked) > 1:
        raise InvalidRole(f"{one.name} are colocated, so they grow by the same number, not by {sorted(asked)}")
    return asked.pop() if asked else 0


def _units(board: Board, found: Try, standing: tuple[Unit, ...]) -> Iterable[Unit]:
    there = standing_by_class(board.classes, standing)
    for one, counts in zip(board.classes, found.counts, strict=True):
        taken = {unit.index for unit in there[one.name]}
        free = (index for index in count() if index not in taken)
        for row in np.flatnonzero(counts):
            node = board.room.names[row]
            for _ in range(int(counts[row])):
                yield one.unit(node, next(free))
