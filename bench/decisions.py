"""What decisions cost, without a cluster: `python -m bench.decisions` runs this part alone, in a moment.

Times are CPU times, since a decision never waits.
"""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench.effort import FULL, Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.report import table
from bench.virtual_queue import FITS_PER_NODE, MEAN_S, VirtualQueue

if TYPE_CHECKING:
    from bench.stage import Stage

_US: Final = "us"
_TEAMS: Final = 1000
_LOAD: Final = 0.7
_OVERLOAD: Final = 1.5
_BATCHES: Final = 50
_PROMISED: Final = Limits(below=200.0)
"""5,000 decisions a second."""


def run(_stage: "Stage | None", effort: Effort) -> Outcome:
    nodes = effort.sizes[2]
    return Outcome(
        f"decisions, {effort.decisions:,} requests of {_TEAMS:,} teams",
        f"what it would be if it grew with the nodes, from {effort.sizes[0]} on",
        (
            Line(f"{nodes} nodes, load {_LOAD}: a request", _each_request(nodes, effort), limits=_PROMISED, unit=_US),
            *_by_nodes(effort),
            *_where_many_wait(nodes, effort),
        ),
    )


def _by_nodes(effort: Effort) -> Iterator[Line]:
    few, *more = effort.sizes
    fewest = _each_request(few, effort, part=0.1)
    yield Line(f"{few} nodes: a request", fewest, unit=_US)
    for nodes in more:
        as_many_times = Samples.of(value * nodes / few for value in fewest.values)
        ours = _each_request(nodes, effort, part=0.1)
        yield Line(f"{nodes:,} nodes: a request", ours, as_many_times, Limits(times_baseline=1.0), unit=_US)


def _each_request(nodes: int, effort: Effort, part: float = 1.0) -> Samples:
    """Measured once as much is lent as on average."""
    queue = VirtualQueue(nodes, _TEAMS, _LOAD)
    queue.come(queue.asks(round(_LOAD * FITS_PER_NODE * nodes * MEAN_S)))
    size = max(1, round(effort.decisions * part / _BATCHES))
    batches = (queue.asks(size) for _ in range(_BATCHES))
    return Samples.of(1e6 * _cpu_s(lambda batch=batch: queue.come(batch)) / size for batch in batches)  # type: ignore[misc]


def _where_many_wait(nodes: int, effort: Effort) -> Iterator[Line]:
    """More requests arrive than fit, until hundreds wait."""
    queue = VirtualQueue(nodes, _TEAMS, _OVERLOAD)
    while len(queue.waiting) < effort.waiting:
        queue.come(queue.asks(10))
    plain, explained = [], []
    for _ in range(effort.calls):
        plain.append(1000 * _cpu_s(queue.plan))
        explained.append(1000 * _cpu_s(lambda: queue.plan(explained=True)))
        queue.come(queue.asks(10))
    waiting = len(queue.waiting)
    yield Line(f"{waiting} wait on {nodes} nodes, {len(queue.leases):,} leases: a round", Samples.of(plain))
    yield Line("the same with the reason of every node", Samples.of(explained))


def _cpu_s(do: Callable[[], object]) -> float:
    began = time.process_time()
    do()
    return time.process_time() - began


if __name__ == "__main__":
    Console(width=160).print(table([run(None, FULL)]))
