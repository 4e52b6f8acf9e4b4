"""How many of a number of alike units each node gets: on few nodes, or as evenly as there is room."""

from enum import Enum

import numpy as np

from distributed_grid.decide.roles.room import Mask, Units


class Way(Enum):
    PACK = "few nodes"
    SPREAD = "evenly"
    TIGHT = "the fullest nodes first"
    """Asked for by nobody; it places some mixes that the others do not."""


def arrange(fits: Units, shunned: Mask, count: int, already: Units, chosen: Way) -> Units:
    """Places for `count` units, or for as many as fit. Nodes that are shunned get only what the others cannot hold.

    `already`: how many of the same are there from before; evenness counts them in.
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
    """Few nodes: the roomiest are filled, and the last part goes where some of them are, or where it leaves the least.

    Rows are in name order, and sorting keeps it: of equal nodes, the first.
    """
    counts = np.zeros_like(fits)
    if count <= 0:
        return counts
    roomiest = np.lexsort((already == 0, -fits))
    filled = np.cumsum(fits[roomiest])
    full = int(np.searchsorted(filled, count))  # so many nodes are filled before the one that takes the last part
    counts[roomiest[:full]] = fits[roomiest[:full]]
    left = count - int(counts.sum())
    if left > 0:
        rest = roomiest[full:]
        able = rest[fits[rest] >= left]
        counts[able[np.lexsort((able, fits[able], already[able] == 0))[0]]] += left
    return counts


def _tight(fits: Units, count: int, already: Units) -> Units:
    """Node by node, those first that hold the fewest."""
    order = np.lexsort((already == 0, fits))
    before = np.cumsum(fits[order]) - fits[order]
    counts = np.zeros_like(fits)
    counts[order] = np.clip(count - before, 0, fits[order])
    return counts


def _spread(fits: Units, count: int, already: Units) -> Units:
    """Water: every node is filled to one level, as far as it has room; what is left over goes where most room is."""
    if count <= 0:
        return np.zeros_like(fits)
    low, high = 0, int(already.max(initial=0)) + count
    while low < high:  # the highest level that does not take more than there are
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
