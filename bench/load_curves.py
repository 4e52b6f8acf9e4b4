"""Load over time, from lists of pods with their start and end times."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distributed_grid.model.series import Series

_DAY = 86_400.0
_ROOM = 1.25
"""The capacity is this many times the highest load, so that no ceiling helps the forecasts."""


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods' start and end times, and their requests."""

    came: NDArray[np.float64]
    went: NDArray[np.float64]
    asked: dict[str, NDArray[np.float64]]

    def chosen(self, which: NDArray[np.bool_]) -> "Pods":
        asked = {kind: amounts[which] for kind, amounts in self.asked.items()}
        return Pods(self.came[which], self.went[which], asked)

    def spread_over(self, nodes: int, seed: int) -> list["Pods"]:
        """As if each pod had run on a random one of `nodes` nodes."""
        place = np.random.default_rng(seed).integers(0, nodes, len(self.came))
        return [self.chosen(place == node) for node in range(nodes)]

    def busy_from(self) -> float:
        """Where the trace becomes busy: the first day on which at least fifty pods started."""
        days, counts = np.unique(self.came // _DAY, return_counts=True)
        busy = days[counts >= 50]
        return float(busy[0] * _DAY if len(busy) else self.came.min())

    def load(self, kind: str, *, start: float, end: float, interval_s: float) -> Series:
        """What the pods held of one kind at each moment, as a fraction of a sufficient capacity."""
        times = np.arange(start, end, interval_s)
        order_came, order_went = np.argsort(self.came), np.argsort(self.went)
        amounts = self.asked[kind]
        taken = np.concatenate([[0.0], amounts[order_came].cumsum()])
        freed = np.concatenate([[0.0], amounts[order_went].cumsum()])
        held = taken[self.came[order_came].searchsorted(times, side="right")]
        held = held - freed[self.went[order_went].searchsorted(times, side="right")]
        highest = held.max(initial=0.0)
        return Series(times, (np.maximum(held, 0.0) / (highest * _ROOM or 1.0)).astype(np.float32))


def read_pods(path: Path) -> Pods | None:
    """A list of pods with the columns of Alibaba's cluster-trace-gpu-v2023; None if it has no times."""
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    if not rows or "creation_time" not in rows[0]:
        return None

    def column(name: str) -> NDArray[np.float64]:
        return np.array([float(row[name] or 0) for row in rows])

    gpus = column("num_gpu") * column("gpu_milli") / 1000
    asked = {"cpu": column("cpu_milli") / 1000, "memory": column("memory_mib"), "gpu": gpus}
    return Pods(column("creation_time"), column("deletion_time"), asked)


def made_up_pods(*, days: float, per_day: float = 220.0, seed: int) -> Pods:
    """Pods like those in such lists: random starts, fewer at night, and a few that last far longer than most."""
    chance = np.random.default_rng(seed)
    came = np.sort(chance.uniform(0.0, days * _DAY, chance.poisson(2 * per_day * days)))
    came = came[chance.random(len(came)) < 0.5 + 0.35 * np.sin(2 * np.pi * came / _DAY)]
    lasted = np.exp(chance.normal(np.log(540.0), 1.9, len(came)))  # median nine minutes, one in ten over 100 minutes
    size = chance.choice([0.25, 0.5, 1.0, 2.0, 8.0], len(came), p=[0.2, 0.15, 0.5, 0.1, 0.05])
    return Pods(came, came + np.minimum(lasted, 30 * _DAY), {"cpu": 8 * size, "memory": 30_000 * size, "gpu": size})
