"""What measuring costs the controller, by the number of nodes: whole rounds on a simulated cluster.

Everything that grid does in a round is real: naming the nodes, reading the probes' answers, snapshots, demand,
history, forecasts and thresholds. Only Ray is simulated: it answers at once.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bench.effort import Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.stage import Stage
from distributed_grid.config import GridConfig
from distributed_grid.controller.metrics import Seen, exposition
from distributed_grid.decide.monitoring.naming import NAME_LABEL, Raylet
from distributed_grid.decide.monitoring.snapshots import Answers
from distributed_grid.engine.engine import settings_of
from distributed_grid.execution.port import NodeView
from distributed_grid.model.codec import PLAIN
from distributed_grid.model.demand import Bundle, LabelConstraint, Pending, Shape
from distributed_grid.model.leases import Lease
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.snapshots import Reading
from distributed_grid.monitoring.collector import Collector
from distributed_grid.monitoring.observer import Observer

_PERCENT: Final = "% of a core"
_FEW: Final = 100
_MANY: Final = 1000
_GB: Final = 2**30
_CPUS, _GPUS, _MEMORY = 64, 8, 512 * _GB
_SHAPES: Final = 50
"""Request shapes that wait in Ray's queues."""


@dataclass(frozen=True, slots=True)
class _Round:
    took_s: float
    cpu_s: float
    """For the whole interval: a check for silent nodes every second, and one scrape by Prometheus."""
    metrics_s: float
    """The part that answered Prometheus."""


def run(stage: Stage, effort: Effort) -> Outcome:
    interval_s = float(stage.config.resource_sharing.monitoring_interval_seconds)
    lines = []
    for nodes in (_FEW, _MANY):
        simulated = Simulated(nodes, interval_s)
        rounds = list(simulated.rounds(learning=effort.learning, measured=effort.calls))
        percent = Samples.of(100 * one.cpu_s / interval_s * _FEW / nodes for one in rounds)
        each = "" if nodes == _FEW else f", each {_FEW}"
        lines.append(
            Line(f"{nodes:,} nodes: CPU of the controller{each}", percent, limits=Limits(below=1.0), unit=_PERCENT)
        )
        promised = Limits(below=interval_s / 10 * 1000) if nodes == _MANY else Limits()
        lines.append(
            Line(f"{nodes:,} nodes: a round", Samples.of(one.took_s * 1000 for one in rounds), limits=promised)
        )
        metrics = Samples.of(one.metrics_s * 1000 for one in rounds)
        lines.append(Line(f"{nodes:,} nodes: answering /metrics", metrics))
    return Outcome("collecting", f"nothing: simulated nodes, every {interval_s:g} s", tuple(lines))


class Simulated:
    """A collector on `nodes` busy nodes with eight GPUs each."""

    def __init__(self, nodes: int, interval_s: float) -> None:
        self._sources = _Simulated(nodes)
        self._interval = timedelta(seconds=interval_s)
        self._now = datetime(2025, 6, 1, tzinfo=UTC)
        self._collector = Collector(self._sources, settings_of(GridConfig(name="simulated")), lambda: self._now)
        self._sources.observer.silent = self._collector.silent

    def rounds(self, *, learning: int, measured: int) -> Iterator[_Round]:
        """`learning`: rounds before the first that counts, so that history and forecasters are filled as in use."""
        for number in range(learning + measured):
            self._now += self._interval
            self._sources.next_answers()
            began, cpu = time.perf_counter(), time.process_time()
            asyncio.run(self._collector.round())
            took_s = time.perf_counter() - began
            for _ in range(round(self._interval.total_seconds())):
                self._collector.silent()
            if number >= learning:
                asked = time.perf_counter()
                exposition(Seen(self._now, self._collector.snapshots(), self._collector.demand))
                yield _Round(took_s, time.process_time() - cpu, time.perf_counter() - asked)


class _Simulated:
    """The collector's sources, and its observer's cluster."""

    def __init__(self, nodes: int) -> None:
        base = {"CPU": float(_CPUS), "GPU": float(_GPUS), "memory": float(_MEMORY), "object_store_memory": 2e11}
        self._raylets = [
            Raylet(f"{n:056x}", {NAME_LABEL: f"node-{n}"}, f"host-{n}", f"10.0.{n // 250}.{n % 250}", base)
            for n in range(nodes)
        ]
        self._view = {raylet.node_id: NodeView(base, base | {"CPU": _CPUS / 2}) for raylet in self._raylets}
        self._pending = tuple(_waiting(nodes))
        self._chance = random.Random(0)
        self._said: dict[str, dict[str, Any]] = {}
        self.observer = Observer(self, GridConfig(name="simulated"))  # type: ignore[arg-type]

    # The parts of a cluster that an observer reads.

    def raylets(self) -> list[Raylet]:
        return self._raylets

    def view(self) -> dict[str, NodeView]:
        return self._view

    def facts_of(self, node_ids: list[str], within_s: float) -> dict[str, Any]:
        return {}

    # The sources.

    async def nodes(self) -> NodeTable:
        return self.observer.look()

    def leases(self) -> tuple[Lease, ...]:
        return ()

    async def answers(self, within_s: float) -> Answers:
        return {node_id: PLAIN.decode(Reading, said) for node_id, said in self._said.items()}

    async def pending(self, nodes: NodeTable) -> tuple[Pending, ...]:
        return self._pending

    def next_answers(self) -> None:
        """The probes' answers for the next round, in wire format."""
        self._said = {raylet.node_id: said_by_a_probe(self._chance) for raylet in self._raylets}


def said_by_a_probe(chance: random.Random) -> dict[str, Any]:
    """The answer for a busy node with eight GPUs, in wire format."""
    busy = chance.random()
    gpu = {"name": "H200", "memory_total": 140 * _GB, "temperature_c": 60.0, "silent_because": None}
    return {
        "host": {
            "cpus": float(_CPUS), "cpu_used": _CPUS * busy, "memory_total": _MEMORY, "memory_used": int(_MEMORY * busy),
            "swap_total": 0, "swap_used": 0, "load": (busy, busy, busy),
        },
        "own": {"cpu_used": _CPUS * busy, "memory_used": int(_MEMORY * busy), "processes": 80},
        "gpus": [
            gpu | {"index": i, "uuid": f"GPU-{i}", "utilisation": chance.random(), "memory_used": 30 * _GB,
                   "processes": ((1234, 30 * _GB),)}
            for i in range(_GPUS)
        ],
        "no_gpus_because": None,
    }  # fmt: skip


def _waiting(nodes: int) -> Iterator[Pending]:
    for number in range(_SHAPES):
        name = f"node-{number * 7 % nodes}"
        selector = (LabelConstraint(NAME_LABEL, (name,)),)
        yield Pending(Shape((Bundle(ResourceVector.of(cpu=1 + number), (selector,)),)), 10, {name: 10})
