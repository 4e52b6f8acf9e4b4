"""The whole engine on a fake cluster, for tests of what its parts do together. A folder's conftest imports these."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import LENDS_ALL
from fake_cluster import FakeCluster
from fake_telemetry import FakeTelemetry
from whole_grid import WholeGrid

from distributed_grid.config import GridConfig
from distributed_grid.execution.processes import ProcessControl

NODES: dict[str, dict[str, float]] = {"a": {"cpus": 4, "gpus": 1}, "b": {"cpus": 4}, "c": {"cpus": 4, "gpus": 1}}


@pytest.fixture
def make_grid() -> Iterator[Callable[..., WholeGrid]]:
    """`make_grid(cluster, **sharing)`: three nodes with 4 CPUs each, two of them with a GPU."""
    made: list[WholeGrid] = []
    with tempfile.TemporaryDirectory() as folder:

        def build(
            cluster: FakeCluster | None = None,
            seed: int = 0,
            home: Path | None = None,
            telemetry: FakeTelemetry | None = None,
            control: ProcessControl | None = None,
            memory: float = 0,
            **sharing: Any,
        ) -> WholeGrid:
            cluster = cluster or FakeCluster()
            for name, base in NODES.items():
                cluster.add_node(name, **base, memory=memory)
            config = GridConfig.from_dict(
                {
                    "name": "lab",
                    "resource_sharing": LENDS_ALL | {"grace_seconds": 1} | sharing,
                    "nodes": [{"name": name} for name in NODES],
                }
            )
            folder_of_it = home or Path(folder) / f"home{len(made)}"
            made.append(WholeGrid(cluster, config, folder_of_it, seed, telemetry=telemetry, control=control))
            return made[-1]

        try:
            yield build
        finally:
            for grid in made:
                grid.close()


@pytest.fixture
def lab(make_grid: Callable[..., WholeGrid]) -> WholeGrid:
    return make_grid()
