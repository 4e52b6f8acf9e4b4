"""What lending costs the lender: its own work, alone and while it lends, with each raylet on its own core."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import ray

from bench.effort import Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.pinning import pinned
from bench.stage import SOURCE, TARGET, Stage, until
from distributed_grid.client import GridClient

_LENT: Final = 4
_WORK: Final = 12_000_000
"""Steps of a loop: about half a second."""
_WITHIN_A_TENTH: Final = Limits(times_baseline=1 / 0.9)


@ray.remote(num_cpus=1, max_retries=0)
def _own_work() -> float:
    """Seconds for a fixed piece of work."""
    began = time.perf_counter()
    total = 0
    for step in range(_WORK):
        total += step
    return (time.perf_counter() - began) * 1000


@ray.remote(num_cpus=1, max_retries=0)
def _burn() -> None:
    while True:
        sum(range(100_000))


def run(stage: Stage, effort: Effort) -> Outcome:
    """In turns: alone, and while borrowers burn CPU on the borrowed capacity, there (transfer) or here (reserve)."""
    alone: list[float] = []
    lending: dict[str, list[float]] = {"transfer": [], "reserve": []}
    rounds = max(3, effort.rounds // 6)
    with pinned(stage.home, {SOURCE: {1}, TARGET: {0}}):
        _once()  # starts a worker
        for _ in range(rounds):
            alone.append(_once())
            with _borrower_at_work(stage, "transfer", _LENT):
                lending["transfer"].append(_once())
    alone_on_two: list[float] = []
    with pinned(stage.home, {SOURCE: {0, 1}, TARGET: {0}}):
        for _ in range(rounds):
            alone_on_two.append(_once())
            with _borrower_at_work(stage, "reserve", 1):
                lending["reserve"].append(_once())
    return Outcome(
        "lender's own work",
        "the same work while nothing is lent",
        (
            Line(
                f"{_LENT} CPUs transferred and busy at the borrower; a core each",
                Samples.of(lending["transfer"]),
                Samples.of(alone),
                _WITHIN_A_TENTH,
            ),
            Line(
                "1 CPU reserved and busy at the lender, which has two cores",
                Samples.of(lending["reserve"]),
                Samples.of(alone_on_two),
                _WITHIN_A_TENTH,
            ),
        ),
    )


def _once() -> float:
    return float(ray.get(_own_work.options(label_selector={"grid/name": SOURCE}).remote(), timeout=60))


@contextmanager
def _borrower_at_work(stage: Stage, delivery: str, cpus: int) -> Iterator[None]:
    """Burns CPU with one task for each borrowed CPU."""
    from distributed_grid.orchestration.resource_boost_manager import ResourceBoost

    client = GridClient(stage.home)
    body = {"target_node": TARGET, "resource_type": "cpu", "amount": cpus, "source_node": SOURCE, "delivery": delivery}
    had, free = stage.cpus(TARGET), stage.free_cpus(TARGET)
    boost = ResourceBoost.from_dict(client.request_boost(body))
    work = [_burn.options(**boost.options()).remote() for _ in range(cpus)]
    if delivery == "transfer":
        until(lambda: stage.cpus(TARGET) == had + cpus and stage.free_cpus(TARGET) <= free, what="the borrower at work")
    else:
        time.sleep(1.0)  # Ray has no quick view of a group's use
    try:
        yield
    finally:
        for task in work:
            ray.cancel(task, force=True)
        client.release_boost(boost.boost_id, {"grace_seconds": 0, "wait_seconds": 20})
        client.close()
        until(stage.is_at_base, what="every node at its base")
