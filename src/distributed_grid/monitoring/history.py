"""Every node's series over the last hour, in compact arrays.

All nodes are measured together, so they share one array of times, and a measurement is one column: nodes x series x
times. A thousand nodes with six series at 10 s take 9 MB.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from distributed_grid.decide.monitoring.trends import LONGEST, WINDOWS, Trend, trends_of
from distributed_grid.model.nodes import NodeName
from distributed_grid.model.series import Recorded, Series

SERIES: Final = ("cpu", "memory", "gpu", "logical_cpu", "logical_memory", "logical_gpu")
"""Measured pressure 0..1, and the used share of what Ray counts."""

Sample = Mapping[str, float | None]
"""Values by series. None or missing: unknown."""


class History:
    """The last window of every node's series. The oldest samples are dropped."""

    def __init__(self, interval_s: float, *, window_s: float = LONGEST, series: Iterable[str] = SERIES) -> None:
        self.interval_s = interval_s
        self.series = tuple(series)
        self._index = {name: index for index, name in enumerate(self.series)}
        self._window_s = window_s
        self._columns = int(np.ceil(window_s / interval_s)) + 1
        self._times = np.full(self._columns, np.nan)
        self._values = np.full((0, len(self.series), self._columns), np.nan, dtype=np.float32)
        self._rows: dict[NodeName, int] = {}
        self._free: list[int] = []
        self._newest = -1
        self._count = 0

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        return tuple(self._rows)

    @property
    def nbytes(self) -> int:
        return self._times.nbytes + self._values.nbytes

    def record(self, at: float, samples: Mapping[NodeName, Sample]) -> None:
        """Record one measurement of the cluster. A node or a series that is missing has a gap here.

        The same time again adds to the previous measurement, or corrects it.
        """
        if self._count == 0 or at != self._times[self._newest]:
            self._begin(at)
        column = self._values[:, :, self._newest]
        for node, sample in samples.items():
            row = self._rows.get(node)
            if row is None:
                row = self._add(node)
                column = self._values[:, :, self._newest]
            for name, value in sample.items():
                column[row, self._index[name]] = np.nan if value is None else value

    def recorded(self) -> Recorded:
        """A copy of everything."""
        order, rows = self._order(), list(self._rows.values())
        return Recorded(self.nodes, self.series, self._times[order], self._values[rows][:, :, order])

    def restore(self, past: Recorded, *, now: float) -> Recorded:
        """Begin with what was recorded earlier; returns the part of it that is in the window."""
        inside = [i for i, at in enumerate(past.times.tolist()) if now - self._window_s <= at <= now]
        known = [i for i, name in enumerate(past.series) if name in self._index]
        series = tuple(past.series[i] for i in known)
        recent = Recorded(past.nodes, series, past.times[inside], past.values[:, known][:, :, inside])
        rows = [self._rows[node] if node in self._rows else self._add(node) for node in recent.nodes]
        into = np.ix_(rows, [self._index[name] for name in series])
        for column, at in enumerate(recent.times.tolist()):
            # The interval may have been shorter than it is now: the columns are for a whole window of this one.
            if self._count == 0 or at - self._times[self._newest] > 0.9 * self.interval_s:
                self._begin(at)
                self._values[:, :, self._newest][into] = recent.values[:, :, column]
        return recent

    def forget(self, node: NodeName) -> None:
        """Drop a node that is gone. A later node of the same name starts anew."""
        row = self._rows.pop(node, None)
        if row is not None:
            self._values[row] = np.nan
            self._free.append(row)

    def keep_only(self, nodes: Iterable[NodeName]) -> None:
        """Forget all other nodes."""
        for gone in self._rows.keys() - set(nodes):
            self.forget(gone)

    def of(self, node: NodeName, name: str) -> Series:
        """All recorded samples of one series, gaps as NaN; empty for an unknown node."""
        order = self._order()
        row = self._rows.get(node)
        if row is None:
            return Series(np.empty(0), np.empty(0, dtype=np.float32))
        return Series(self._times[order], self._values[row, self._index[name], order])

    def trends(self, name: str, *, now: float) -> dict[NodeName, dict[str, Trend]]:
        """The trends of one series over every window, for all nodes at once."""
        order = self._order()
        rows = list(self._rows.values())
        times, values = self._times[order], self._values[rows, self._index[name]][:, order]
        found: dict[NodeName, dict[str, Trend]] = {node: {} for node in self._rows}
        for window, seconds in WINDOWS.items():
            each = trends_of(times, values, seconds, now=now, interval_s=self.interval_s)
            for node, trend in zip(self._rows, each, strict=True):
                found[node][window] = trend
        return found

    def in_buckets(self, name: str, count: int, *, until: float, window_s: float) -> dict[NodeName, list[float | None]]:
        """`Series.in_buckets` of one series for all nodes at once, so that one answer can draw a thousand curves."""
        order = self._order()
        values = self._values[list(self._rows.values()), self._index[name]][:, order]
        times = self._times[order]
        part = np.floor((times - (until - window_s)) / window_s * count)
        part[times == until] = count - 1
        edges = np.searchsorted(part, np.arange(count + 1))
        known = ~np.isnan(values)
        number = _sums(known, edges)
        means = _sums(np.where(known, values, 0.0), edges) / np.maximum(number, 1)
        return {
            node: [mean if there else None for mean, there in zip(row.tolist(), some.tolist(), strict=True)]
            for node, row, some in zip(self._rows, means, number > 0, strict=True)
        }

    def _begin(self, at: float) -> None:
        """Start a new column, in place of the oldest."""
        if self._count and at < self._times[self._newest]:
            # The clock was set back. What was ten seconds ago is still ten seconds ago: the past moves along, and the
            # order stays.
            self._times -= self._times[self._newest] + self.interval_s - at
        self._newest = (self._newest + 1) % self._columns
        self._count = min(self._count + 1, self._columns)
        self._times[self._newest] = at
        self._values[:, :, self._newest] = np.nan

    def _order(self) -> NDArray[np.int64]:
        """The columns, oldest first."""
        return np.arange(self._newest - self._count + 1, self._newest + 1) % self._columns

    def _add(self, node: NodeName) -> int:
        if not self._free:
            rows = len(self._values)
            more = max(8, rows // 4)
            added = np.full((more, *self._values.shape[1:]), np.nan, dtype=np.float32)
            self._values = np.concatenate([self._values, added])
            self._free = list(range(rows + more - 1, rows - 1, -1))
        self._rows[node] = self._free.pop()
        return self._rows[node]


def _sums(values: NDArray[np.floating | np.bool], edges: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each row, the sums between the edges."""
    running = np.zeros((values.shape[0], values.shape[1] + 1))
    np.cumsum(values, axis=1, out=running[:, 1:])
    found: NDArray[np.float64] = running[:, edges[1:]] - running[:, edges[:-1]]
    return found
