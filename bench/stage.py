"""The cluster for the measurements: one embedded cluster with its own home."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
import ray._private.state as ray_state

import distributed_grid.config
from distributed_grid.cluster.embedded import start_embedded, stop_embedded
from distributed_grid.config import GridConfig, load_config
from distributed_grid.store.home import GridHome

CONFIG: Final = Path(distributed_grid.config.__file__).with_name("my-cluster-enhanced.yaml")
GRID: Final = str(Path(sys.executable).with_name("grid"))
RAY: Final = str(Path(sys.executable).with_name("ray"))

SOURCE: Final = "gpu1"
TARGET: Final = "gpu-master"


def say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Stage:
    """A running cluster that this process is connected to, as a driver."""

    home: GridHome
    ray_address: str
    node_ids: Mapping[str, str]
    config_file: Path = CONFIG

    @property
    def config(self) -> GridConfig:
        return load_config(self.config_file).config

    @property
    def environment(self) -> dict[str, str]:
        """The environment for commands, as in a user's shell."""
        return {**os.environ, "GRID_HOME": str(self.home.path), "COLUMNS": "200"}

    def controller_pid(self) -> int:
        return int(json.loads(self.home.controller.read_text())["pid"])

    def cpus(self, name: str) -> float:
        """A node's total in the cluster's view."""
        return float(ray_state.total_resources_per_node()[self.node_ids[name]].get("CPU", 0.0))

    def free_cpus(self, name: str) -> float:
        return float(ray_state.available_resources_per_node()[self.node_ids[name]].get("CPU", 0.0))

    def is_at_base(self) -> bool:
        """Whether every node offers its base, and no marker of grid is left."""
        base = {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
        return bool(base == ray_state.total_resources_per_node())

    def take_grid_out(self) -> None:
        """Stops the controller; Ray continues."""
        subprocess.run([GRID, "stop"], env=self.environment, check=True, capture_output=True, timeout=120)
        until(self.is_at_base, what="every node at its base after grid stop")


@contextmanager
def open_stage(config: Path = CONFIG, prepare: Callable[[GridHome], object] = GridHome.create) -> Iterator[Stage]:
    """Start a configuration's cluster, by default the packaged one's; end it and remove its home, however the block
    ends. `prepare`: what is done in the home before the start."""
    home = GridHome(Path(tempfile.mkdtemp(prefix="grid-bench-")))
    before = os.environ.get("GRID_HOME")
    os.environ["GRID_HOME"] = str(home.path)
    try:
        prepare(home)
        started = start_embedded(home, str(config), progress=say)
        ray.init(address=started["ray_address"], log_to_driver=False, logging_level="ERROR")
        ids = {node["Labels"]["grid/name"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
        yield Stage(home, started["ray_address"], ids, config)
    finally:
        ray.shutdown()
        stop_embedded(home, progress=say)
        shutil.rmtree(home.path, ignore_errors=True)
        if before is None:
            del os.environ["GRID_HOME"]
        else:
            os.environ["GRID_HOME"] = before


@contextmanager
def home_of_its_own() -> Iterator[GridHome]:
    """For library mode: this home has no controller, so the classes run the engine themselves."""
    before = os.environ["GRID_HOME"]
    with tempfile.TemporaryDirectory(prefix="grid-bench-library-") as folder:
        os.environ["GRID_HOME"] = folder
        try:
            yield GridHome(Path(folder))
        finally:
            os.environ["GRID_HOME"] = before


def until(condition: Callable[[], Any], *, what: str, within_s: float = 60.0, poll_s: float = 0.05) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s")
        time.sleep(poll_s)
