"""Why a workload has no room, role by role."""

from collections.abc import Sequence

import numpy as np

from distributed_grid.decide.roles.board import Board, pool_room
from distributed_grid.decide.roles.remedies import remedies
from distributed_grid.decide.roles.searching import Search
from distributed_grid.decide.roles.tries import Try
from distributed_grid.decide.roles.units import UnitClass
from distributed_grid.decide.roles.worth import worth_by_node
from distributed_grid.model.resources import GPU, ResourceVector, amount_of, describe, scale
from distributed_grid.model.roles.plan import DoesNotFit, Reason

_NEAREST = 3


def explain(name: str, board: Board, found: Search) -> DoesNotFit:
    """From the try that came nearest."""
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
    return f"each needs {one.needs.describe()}; what is left is too little: {_nearest(board, best, number)}"


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
        return f"no node that it may be on can be used: {_few(closed, len(closed))}"
    return f"it may be on no node: {'; '.join(dict.fromkeys(one.why_not_allowed(node) for node in nodes))}"


def _pool_is_full(best: Try, one: UnitClass) -> str:
    assert one.pool is not None
    left = best.quotas[one.pool.name]
    kind = next(kind for kind, units in one.needs.items() if kind in left and max(0, left[kind]) < units)
    has = describe(kind, one.pool.quota[kind])
    return f"the pool {one.pool.name} has {has}, of which {amount_of(kind, max(0, left[kind]))} are left; " + (
        f"each needs {describe(kind, one.needs[kind])}"
    )


def _too_big(board: Board, number: int) -> str:
    """Not even one of them fits, though nothing else were there."""
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
    """The nodes that lack the least."""
    room = board.room if best is None else best.room
    lacks = room.lacks(board.classes[number].needs)
    cost = np.where(board.allowed[number], worth_by_node(lacks), np.inf)
    told = [
        f"{room.names[row]} lacks {ResourceVector({k: int(column[row]) for k, column in lacks.items()}).describe()}"
        for row in np.argsort(cost, kind="stable")[:_NEAREST]
        if np.isfinite(cost[row])
    ]
    return _few(told, int(np.isfinite(cost).sum()))


def _few(told: Sequence[str], of: int) -> str:
    """The first of so many."""
    more = f", and {of - _NEAREST} more nodes" if of > _NEAREST else ""
    return ", ".join(told[:_NEAREST]) + more
