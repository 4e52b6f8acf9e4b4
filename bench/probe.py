"""What a probe costs its node, and how long it takes to query all probes."""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psutil
import ray

from bench.collecting import said_by_a_probe
from bench.effort import Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.stage import SOURCE, Stage, until
from distributed_grid.execution.ray_cluster import RayCluster
from distributed_grid.model.snapshots import Reading
from distributed_grid.monitoring.probes import Probes

_INTERVAL_S: Final = 10.0
_ANSWER_S: Final = 30.0
_MANY: Final = 100
_PERCENT: Final = "% of a core"


def run(stage: Stage, effort: Effort) -> Outcome:
    probes = Probes()
    probes.keep(RayCluster.connected().raylets())
    try:
        until(lambda: _all_answer(probes), what="every probe answers", poll_s=0.2)
        with _idle_workers(stage.node_ids[SOURCE], effort.workers) as workers:
            probe = psutil.Process(probes.pids(_ANSWER_S)[stage.node_ids[SOURCE]])
            idle = psutil.Process(ray.get(workers[-1].pid.remote()))
            spent = [_percents((probe, idle), lambda: probes.read_all(_ANSWER_S)) for _ in range(effort.intervals)]
            latency = [_milliseconds(lambda: probes.read_all(_ANSWER_S)) for _ in range(effort.calls)]
            asking = _asking_percent(workers, effort.calls)
    finally:
        probes.stop()
    return Outcome(
        "probe",
        "a Ray worker beside it that does nothing",
        (
            Line(
                f"asked every {_INTERVAL_S:g} s, {effort.workers} workers on its node",
                Samples.of(ours for ours, _ in spent),
                Samples.of(nothing for _, nothing in spent),
                Limits(below=1.0),
                unit=_PERCENT,
            ),
            Line(f"asking all {len(stage.node_ids)} nodes", Samples.of(latency)),
            Line(
                f"asking {effort.workers} others with 8 GPUs each: CPU of the controller, each {_MANY}",
                Samples.of([asking]),
                limits=Limits(below=1.0),
                unit=_PERCENT,
            ),
        ),
    )


def _all_answer(probes: Probes) -> bool:
    answers = probes.read_all(_ANSWER_S)
    return bool(answers) and all(isinstance(answer, Reading) for answer in answers.values())


@contextmanager
def _idle_workers(node_id: str, count: int) -> Iterator[list[Any]]:
    """Processes for the probe to measure, as on a node in use; they also answer as probes do."""
    strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
    said = said_by_a_probe(random.Random(0))
    workers: list[Any] = []
    try:
        for _ in range(count):  # one by one: so many at once would block the machine for a minute
            workers.append(_Idle.options(scheduling_strategy=strategy).remote(said))
            ray.get(workers[-1].read.remote())
        yield workers
    finally:
        for worker in workers:
            ray.kill(worker)


@ray.remote(num_cpus=0)
class _Idle:
    def __init__(self, said: dict[str, Any]) -> None:
        self._said = said

    def pid(self) -> int:
        return os.getpid()

    def read(self) -> dict[str, Any]:
        return self._said


def _asking_percent(actors: list[Any], calls: int) -> float:
    """Percent of one core, for each hundred probes that are queried once per interval."""
    probes = Probes()
    probes.use({str(number): actor for number, actor in enumerate(actors)})
    assert _all_answer(probes)
    me = psutil.Process()
    used = _cpu_s(me)
    for _ in range(calls):
        probes.read_all(_ANSWER_S)
    return 100 * (_cpu_s(me) - used) / calls / len(actors) * _MANY / _INTERVAL_S


def _percents(processes: Sequence[psutil.Process], ask: Callable[[], object]) -> list[float]:
    """Percent of one core for each process, in one interval with a single query."""
    used, began = [_cpu_s(process) for process in processes], time.monotonic()
    ask()
    time.sleep(max(0.0, began + _INTERVAL_S - time.monotonic()))
    passed = time.monotonic() - began
    return [100 * (_cpu_s(process) - before) / passed for process, before in zip(processes, used, strict=True)]


def _milliseconds(ask: Callable[[], object]) -> float:
    began = time.perf_counter()
    ask()
    return (time.perf_counter() - began) * 1000


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
