"""Simulated nodes on which tasks are placed, run and end: how good was each prediction?

The controller's own code chooses every node and gives every confidence, with the controller's forecaster. The loads do
not come from the model behind the confidence: they wander around their own levels and have bursts. Tasks use less than
they asked for and start after random delays.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from distributed_grid.decide.monitoring.pressure import combined
from distributed_grid.decide.scheduler import NodeColumns, Sought, choose
from distributed_grid.decide.scheduler.confidence import (
    Calibrator,
    Outcome,
    Predicted,
    StartDelays,
    horizon_of,
    stays_below,
)
from distributed_grid.decide.scheduler.placing import promise
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.resources import CPU, ResourceVector
from distributed_grid.model.scheduling import SchedulingRequest, SchedulingStrategy
from distributed_grid.monitoring.forecasting import NodeForecasts, forecaster_maker

STEP_S: Final = 10.0
HIGH: Final = {"cpu": 0.8, "memory": 0.8, "gpu": 0.8}
_WARM_UP: Final = 90
_STRATEGIES: Final = [one for one in SchedulingStrategy if one is not SchedulingStrategy.NODE_SPECIFIC]


@dataclass
class _Load:
    """The load of a node's own work, 0..1."""

    level: float
    now: float
    burst_s: float = 0.0


@dataclass
class _Running:
    node: str
    needs: ResourceVector
    uses: float
    """Fraction of the node, 0..1."""
    predicted: Predicted
    until: float
    watched_until: float
    stayed_below: bool = True
    started_in_time: bool = True


@dataclass
class VirtualPlacements:
    """For every twenty nodes, a task arrives about every five seconds."""

    nodes: int = 20
    seed: int = 0
    now: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)
    calibrator: Calibrator = field(default_factory=Calibrator)
    refused: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._cpus = {f"node-{number:03}": self._chance.choice((8, 16, 32, 64)) for number in range(self.nodes)}
        bases = {name: ResourceVector.of(cpu=cpus, memory=4 * cpus) for name, cpus in self._cpus.items()}
        self._loads = {name: self._load() for name in self._cpus}
        # The CPUs that the nodes' own work holds in Ray, whether it uses them or not.
        own = {name: ResourceVector.of(cpu=round(self._loads[name].level * cpus)) for name, cpus in self._cpus.items()}
        table = NodeTable(Node(name, name, base, base, base - own[name]) for name, base in bases.items())
        self._columns = NodeColumns.of(table)
        self._forecasts = NodeForecasts(forecaster_maker("built-in"))
        self._delays = StartDelays()
        self._running: list[_Running] = []
        for _ in range(_WARM_UP):
            self._step()

    def _load(self) -> _Load:
        level = self._chance.uniform(0.05, 0.65)
        return _Load(level, level)

    def run(self, placements: int) -> list[Outcome]:
        """Until that many placements are over."""
        while len(self.outcomes) < placements:
            for _ in range(self._chance.choice((0, 1, 1, 2, 3)) * self.nodes // 20):
                self._place()
            self._step()
        return self.outcomes[:placements]

    # -- the world --------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Moves the loads, measures everything, and ends what is over."""
        self.now += STEP_S
        for load in self._loads.values():
            if load.burst_s <= 0 and self._chance.random() < 0.004:
                load.burst_s = self._chance.uniform(60, 400)
            load.burst_s -= STEP_S
            toward = min(1.0, load.level + (0.35 if load.burst_s > 0 else 0.0))
            load.now += 0.15 * (toward - load.now) + self._chance.gauss(0, 0.025)
        pressed = {name: self._pressure(name) for name in self._loads}
        column = self._columns.pressure[CPU]
        for name, value in pressed.items():
            column[self._columns.row[name]] = value
        self._forecasts.observe(self.now, {name: {"cpu": value, "memory": 0.2} for name, value in pressed.items()})
        for task in self._running:
            if self.now <= task.watched_until and pressed[task.node] >= HIGH[CPU]:
                task.stayed_below = False
        for task in self._over():
            self._columns.promise(self._columns.row[task.node], task.needs, -1)
            happened = task.stayed_below and task.started_in_time
            self.outcomes.append(Outcome(task.predicted, happened))
            self.calibrator.happened(task.predicted, happened)

    def _pressure(self, name: str) -> float:
        tasks = sum(task.uses for task in self._running if task.node == name)
        return min(1.0, max(0.0, combined(self._loads[name].now + tasks, 0.2, None).cpu))

    def _over(self) -> Iterator[_Running]:
        over = [task for task in self._running if task.until <= self.now]
        self._running = [task for task in self._running if task.until > self.now]
        yield from over

    # -- the scheduler ----------------------------------------------------------------------------------------

    def _place(self) -> None:
        chance = self._chance
        request = SchedulingRequest(
            target=f"node-{chance.randrange(self.nodes):03}",
            cpu=chance.choice((0.5, 1, 1, 2, 4, 8)),
            strategy=chance.choice(_STRATEGIES),
            duration_seconds=round(chance.uniform(30, 900)),
            deadline_seconds=chance.choice((5, 15, 60)),
        )
        asked = Sought(request, request.needs, request.target or "", self._columns)
        choice = choose(asked)
        if choice is None:
            self.refused += 1
            return
        predicted = self.calibrator.predict(self._confidence(request, choice.node))
        promise(asked, choice)
        busy = self._loads[choice.node].now
        delay = chance.lognormvariate(math.log(1.0 + 6.0 * busy), 0.8)  # a busy node starts workers slowly
        self._delays.add(delay)
        horizon = horizon_of(request.duration_seconds)
        cpus = self._cpus[choice.node]
        uses = chance.uniform(0.3, 1.0) * request.cpu / cpus
        self._running.append(
            _Running(
                choice.node,
                asked.needs,
                uses,
                predicted,
                until=self.now + (request.duration_seconds or 0),
                watched_until=self.now + horizon,
                started_in_time=delay <= (request.deadline_seconds or 0),
            )
        )

    def _confidence(self, request: SchedulingRequest, node: str) -> float:
        horizon = horizon_of(request.duration_seconds)
        forecast = self._forecasts.of(node, CPU, now=self.now, horizon_s=horizon)
        row = self._columns.row[node]
        forecasts = {} if forecast is None else {CPU: forecast}
        below = stays_below(self._columns, row, request.needs, HIGH, forecasts)
        return below * self._delays.within(request.deadline_seconds or 0)
