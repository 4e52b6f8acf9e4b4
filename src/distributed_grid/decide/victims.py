"""Who yields: the fewest leases whose return is enough, and of those no more than is needed."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import nlargest
from typing import Final

from distributed_grid.decide.homecoming import part_of
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.resources import ResourceVector

Enough = Callable[[tuple[Lease, ...]], bool]
"""Whether it would do if these came home; what is enough stays so when more come."""

# With one kind short the first try is the right one. With several (a GPU and its CPUs) finding the fewest is a hard
# problem: after so many tries a set that is minimal will do, though there may be a smaller one.
_MOST_TRIES: Final = 2_000
_DEEPEST: Final = 200


def fewest(candidates: Sequence[Lease], short: ResourceVector, enough: Enough) -> tuple[Lease, ...] | None:
    """As few candidates as are enough, in their order, which is the order in which they yield; None: all are too few.

    No lease comes home with more than it holds, so what is `short` bounds the search. Between sets of one size the one
    whose last member yields sooner is chosen, then by the one before it: the important are spared where that can be.
    """
    return _Search(candidates, short, enough).run() or _in_order(candidates, enough)


def needed_of(victims: Sequence[Lease], enough: Enough) -> dict[str, int]:
    """By lease id: how many units of each victim are enough. Only a transfer can give up a part."""
    parts = list(victims)
    for at in reversed(range(len(parts))):
        whole = parts[at]
        if whole.delivery is Delivery.TRANSFER:

            def does(units: int, at: int = at, whole: Lease = whole) -> bool:
                return enough((*parts[:at], part_of(whole, units), *parts[at + 1 :]))

            parts[at] = part_of(whole, 1 + bisect_left(range(1, whole.units), True, key=does))
    return {part.id: part.units for part in parts}


class _Search:
    def __init__(self, candidates: Sequence[Lease], short: ResourceVector, enough: Enough) -> None:
        self._candidates = candidates
        self._short = short
        self._enough = enough
        self._gives = {kind: [lease.resources[kind] for lease in candidates] for kind in short}
        self._tries = 0

    def run(self) -> tuple[Lease, ...] | None:
        everybody = len(self._candidates)
        fewest = bisect_left(range(everybody + 1), True, key=lambda count: self._could(count, everybody, ()))
        for count in range(max(1, fewest), min(everybody, _DEEPEST) + 1):
            if (found := self._find(count, everybody, ())) is not None:
                return found
        return None

    def _find(self, count: int, among: int, chosen: tuple[Lease, ...]) -> tuple[Lease, ...] | None:
        """With `count` more of the first `among` candidates; the last of these is tried as early in line as can be."""
        self._tries += 1
        if count == 0:
            return chosen if self._enough(chosen) else None
        ends = range(count, among + 1)
        for end in ends[bisect_left(ends, True, key=lambda end: self._could(count, end, chosen)) :]:
            if self._tries > _MOST_TRIES:
                return None
            if (found := self._find(count - 1, end - 1, (self._candidates[end - 1], *chosen))) is not None:
                return found
        return None

    def _could(self, count: int, among: int, chosen: tuple[Lease, ...]) -> bool:
        """Whether `count` of the first `among` could do, looking at each kind alone."""
        return all(
            sum(nlargest(count, gives[:among])) + sum(lease.resources[kind] for lease in chosen) >= self._short[kind]
            for kind, gives in self._gives.items()
        )


def _in_order(candidates: Sequence[Lease], enough: Enough) -> tuple[Lease, ...] | None:
    for count in range(1, len(candidates) + 1):
        if enough(found := tuple(candidates[:count])):
            return trimmed(found, enough)
    return None


def trimmed(victims: tuple[Lease, ...], enough: Enough) -> tuple[Lease, ...]:
    """None of them can be left out; those who should yield last are spared first."""
    for victim in reversed(victims):
        if enough(rest := tuple(lease for lease in victims if lease is not victim)):
            victims = rest
    return victims
