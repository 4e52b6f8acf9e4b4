"""What there is when: amounts that change at known moments, and the first time at which something fits."""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from datetime import datetime, timedelta
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Calendar(Generic[Key]):
    """Amounts by key, from now on. They change at `times`; the last ones stay."""

    __slots__ = ("_amounts", "times")

    def __init__(self, now: datetime) -> None:
        self.times = [now]
        self._amounts: list[dict[Key, int]] = [{}]

    def add(self, key: Key, units: int, begin: datetime, end: datetime | None = None) -> None:
        """From `begin` until `end`, or for good."""
        first = self._split(begin)
        last = len(self.times) if end is None else self._split(end)
        for amounts in self._amounts[first:last]:
            amounts[key] = amounts.get(key, 0) + units

    def row(self, key: Key) -> list[int]:
        """The amounts of one key, in the order of `times`."""
        return [amounts.get(key, 0) for amounts in self._amounts]

    def at(self, key: Key, when: datetime) -> int:
        return self._amounts[bisect_right(self.times, when) - 1].get(key, 0)

    def first(
        self,
        needs: Sequence[tuple[Sequence[int], int]],
        lasts: timedelta,
        since: datetime,
        until: datetime | None = None,
        closed: Sequence[int] = (),
    ) -> datetime | None:
        """The first time, not before `since` nor after `until`, from which on every need fits for as long as it lasts.

        A need is what there is, in the order of `times`, and how much of it is asked. Nothing begins where `closed`.
        """
        times, count = self.times, len(self.times)
        index = bisect_right(times, since) - 1
        start = since
        while until is None or start <= until:
            end, step = start + lasts, index
            if not (closed and closed[index]):
                while step < count and (step == index or times[step] < end) and _fits(needs, step):
                    step += 1
                if step == count or (step > index and times[step] >= end):
                    return start
            index = step + 1
            if index >= count:
                return None
            start = times[index]
        return None

    def _split(self, at: datetime) -> int:
        """The index of the step that begins at this moment; made if there is none."""
        index = bisect_left(self.times, at)
        if index == len(self.times) or self.times[index] != at:
            self.times.insert(index, at)
            self._amounts.insert(index, dict(self._amounts[index - 1]))
        return index


def _fits(needs: Sequence[tuple[Sequence[int], int]], step: int) -> bool:
    for row, units in needs:  # noqa: SIM110
        if row[step] < units:  # asked so often in a long queue that a generator would be half of the work
            return False
    return True
