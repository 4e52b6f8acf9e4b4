"""What placing a task costs, and how good its confidence is: `python -m bench.scheduling`, without a cluster.

Times are CPU times, since a decision never waits.
"""

import random
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from bench.effort import FULL, Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.placements import VirtualPlacements
from bench.report import table
from distributed_grid.decide.scheduler import NodeColumns, Sought, choose, choose_gang
from distributed_grid.decide.scheduler.confidence import base_rate_brier, brier, reliability, stays_below
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.scheduling import SchedulingRequest, SchedulingStrategy

if TYPE_CHECKING:
    from bench.stage import Stage

_US: Final = "us"
_PROMISED: Final = Limits(below=100.0)
_SEEDS: Final = (0, 1, 2)
_HIGH: Final = {"cpu": 0.8, "memory": 0.8, "gpu": 0.8}
_NEAR: Final = {"affinity": {"labels": {"zone": "1"}}, "anti_affinity": {"nodes": ["node-0005"]}}


def run(_stage: "Stage | None", effort: Effort) -> Outcome:
    return Outcome(
        f"placing tasks on {max(effort.sizes):,} nodes, {effort.placements:,} simulated placements",
        "always saying the base rate, for the Brier score",
        (*_decisions(effort), *_calibration(effort)),
    )


def _decisions(effort: Effort) -> Iterator[Line]:
    columns = _columns(max(effort.sizes))
    for strategy in SchedulingStrategy:
        node = {"node": "node-0007"} if strategy is SchedulingStrategy.NODE_SPECIFIC else {}
        yield Line(f"{strategy}: a decision", _each(columns, effort, strategy=strategy, **node), None, _PROMISED, _US)
    yield Line("local_first, near a label and far from a node", _each(columns, effort, **_NEAR), unit=_US)
    yield Line("the same with its confidence", _each(columns, effort, confidence=True, **_NEAR), unit=_US)
    yield Line("a gang of 8, each of them", _each(columns, effort, count=8, strategy="spread"), unit=_US)


def _each(columns: NodeColumns, effort: Effort, *, confidence: bool = False, **more: Any) -> Samples:
    """Requests CPU, memory and a GPU together."""
    request = SchedulingRequest(task_id="t", cpu=4, gpu=1, memory=16, target="node-0000", **more)
    needs, found = request.needs, []
    for _ in range(max(10, effort.decisions // 100)):
        began = time.process_time_ns()
        sought = Sought(request, needs, "node-0000", columns)
        if request.count > 1:
            choose_gang(sought, request.count)
        else:
            choice = choose(sought)
            if confidence and choice is not None:
                stays_below(columns, columns.row[choice.node], needs, _HIGH)
        found.append((time.process_time_ns() - began) / 1000 / request.count)
    return Samples.of(found)


def _columns(nodes: int) -> NodeColumns:
    """Nodes with a random part of every resource in use."""
    chance = random.Random(0)
    base = ResourceVector.of(cpu=64, gpu=8, memory=512)

    def node(number: int) -> Node:
        free = ResourceVector({kind: chance.randrange(units) for kind, units in base.items()})
        return Node(f"node-{number:04}", f"id-{number}", base, base, free, labels={"zone": str(number % 4)})

    return NodeColumns.of(NodeTable(node(number) for number in range(nodes)))


def _calibration(effort: Effort) -> Iterator[Line]:
    """The Brier score: the mean squared difference between the confidence (0..1) and the outcome (0 or 1)."""
    runs = [VirtualPlacements(seed=seed).run(effort.placements) for seed in _SEEDS]
    ours, always = ([score(each) or 0.0 for each in runs] for score in (brier, base_rate_brier))
    yield Line("Brier score", Samples.of(ours), Samples.of(always), Limits(times_baseline=1.0), unit="")
    off = [sum(one.count * abs(one.said - one.happened) for one in reliability(run)) / len(run) for run in runs]
    yield Line("difference between confidence and outcome, mean over ten bins", Samples.of(off), unit="")


if __name__ == "__main__":
    Console(width=160).print(table([run(None, FULL)]))
