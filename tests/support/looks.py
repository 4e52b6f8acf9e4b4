"""Clusters to look at: with boosts, with something that waits, and with a node that fell silent."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builders import amounts, reading
from fake_telemetry import FakeTelemetry
from served_grid import NODES, ServedGrid

from distributed_grid.model.demand import Bundle, Pending, Shape
from distributed_grid.model.resources import GB
from distributed_grid.model.snapshots import GpuProcess, GpuReading

MANY = {f"worker-{i:03}": {"cpus": 64, "gpus": 8 if i % 3 == 0 else 0, "memory": 251.5} for i in range(100)}
GPU = GpuReading(0, "GPU-1", "NVIDIA H200", 0.83, 140 * GB, 40 * GB, 61.0, (GpuProcess(4711, 39 * GB),))


@contextmanager
def lively(folder: Path, count: int = 3) -> Iterator[ServedGrid]:
    """The first node borrows from the second, which is stale since then; 3 requests wait that no node can serve.

    All but the first have 8 of 16 cores busy, which is half, and 16 of 64 GB, a quarter: 37.5 % pressure.
    """
    nodes = MANY if count == 100 else NODES
    first, second, *_ = nodes
    telemetry = FakeTelemetry()
    telemetry.answers[first] = reading(GPU, cpu_used=16.0)
    telemetry.waiting = (Pending(Shape((Bundle(amounts(cpu=640)),)), 3, {first: 3}),)
    grid = ServedGrid(folder, nodes=nodes, telemetry=telemetry)
    try:
        grid.measure()
        grid.client.request_boost(
            {"target_node": first, "resource_type": "cpu", "amount": 2, "source_node": second, "duration_seconds": 900}
        )
        telemetry.answers[second] = "its probe died"
        grid.measure()
        yield grid
    finally:
        grid.close()


def names(grid: ServedGrid) -> list[str]:
    return [node.name for node in grid.config.nodes]
