"""Small clusters for one benchmark, each with its own home.

Two nodes of one core each with grid, the same with a job server, and one node without grid.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import psutil

from bench.raylets import wait_until_up
from bench.stage import say
from distributed_grid.cluster import local
from distributed_grid.cluster.attach import start_controller
from distributed_grid.cluster.embedded import node_specs, start_embedded, stop_embedded
from distributed_grid.cluster.nodes import head_first, ray_executable, spawn, start_command
from distributed_grid.cluster.ports import LockedPorts, own_address
from distributed_grid.cluster.processes import child_environment
from distributed_grid.cluster.record import ClusterRecord, NodeProcess, save
from distributed_grid.config import GridConfig, load_config
from distributed_grid.store.home import GridHome

HEAD: Final = "head"
SOURCE: Final = "source"

_CONFIG: Final = f"""
name: two-nodes
embedded: true
execution:
  resource_sharing: {{enabled: true, thresholds: {{excess_threshold: 0}}}}  # the only core may be lent whole
nodes:
  - {{name: {HEAD}, host: 127.0.0.1, role: master, cpu_count: 1, memory_gb: 2, resource_sharing: {{can_share: false}}}}
  - name: {SOURCE}
    host: 127.0.0.1
    role: worker
    cpu_count: 1
    memory_gb: 2
    resource_sharing: {{can_share: true, max_share_cpu: 1}}
"""


@dataclass(frozen=True, slots=True)
class Small:
    """A running cluster; `job_server` is the address for `ray job submit`, if it has one."""

    home: GridHome
    ray_address: str
    job_server: str = ""


@contextmanager
def with_grid(text: str = _CONFIG) -> Iterator[Small]:
    with _home(text) as (home, config):
        yield Small(home, start_embedded(home, str(config), progress=say)["ray_address"])


@contextmanager
def head_alone() -> Iterator[Small]:
    """What a user with one machine and no grid has."""
    with _home() as (home, config):
        specs = [spec for spec in node_specs(_loaded(config)) if spec.is_head]
        yield Small(home, local.start(home, "head-alone", specs, progress=say).ray_address)


@contextmanager
def with_job_server() -> Iterator[Small]:
    """With grid, and with Ray's dashboard on the head, which an embedded cluster does not have."""
    with _home() as (home, config), LockedPorts() as ports:
        host, port, dashboard = own_address(), ports.take(), ports.take()
        home.create().logs.mkdir(mode=0o700, exist_ok=True)
        record = ClusterRecord("job-server", f"{host}:{port}", datetime.now(UTC).isoformat())
        save(home, record)
        for spec in head_first(node_specs(_loaded(config))):
            command = start_command(spec, record.ray_address, ports)
            if spec.is_head:
                command[command.index("--include-dashboard") + 1] = "true"
                command += ["--dashboard-host", host, "--dashboard-port", str(dashboard)]
            log = home.logs / f"ray-{spec.name}.log"
            process = spawn([*ray_executable(), *command], log, child_environment(os.environ, record.marker))
            started = NodeProcess(spec.name, process.pid, psutil.Process(process.pid).create_time(), str(log))
            record = record.with_node(started)
            save(home, record)
            wait_until_up(spec.name, process, log)
            say(f"{spec.name}{' with a job server' if spec.is_head else ''} ... up")
        start_controller(record.ray_address, home, _loaded(config).to_dict(), str(config))
        yield Small(home, record.ray_address, f"http://{host}:{dashboard}")


@contextmanager
def _home(text: str = _CONFIG) -> Iterator[tuple[GridHome, Path]]:
    """A home with the configuration in it; everything started there ends with it."""
    home = GridHome(Path(tempfile.mkdtemp(prefix="grid-bench-")))
    try:
        config = home.path / "two-nodes.yaml"
        config.write_text(text)
        yield home, config
    finally:
        stop_embedded(home, progress=say)
        shutil.rmtree(home.path, ignore_errors=True)


def _loaded(config: Path) -> GridConfig:
    return load_config(config).config
