"""Nodes of an embedded cluster that die without warning and return with the same name and a new raylet."""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from distributed_grid.cluster.embedded import node_specs
from distributed_grid.cluster.nodes import POLL_S, START_TIMEOUT_S, is_up, ray_executable, spawn, start_command
from distributed_grid.cluster.ports import LockedPorts
from distributed_grid.cluster.processes import child_environment, trees
from distributed_grid.cluster.record import load
from distributed_grid.config import GridConfig
from distributed_grid.store.home import GridHome


def kill_trees(roots: Iterable[int]) -> None:
    """Without warning, as in a power failure. Some end by themselves, some once their parent is dead."""
    alive: list[psutil.Process] = []
    for pid in roots:
        with suppress(psutil.NoSuchProcess):
            alive.append(psutil.Process(pid))
    for process in trees(alive):
        with suppress(psutil.NoSuchProcess):
            process.kill()


class Raylets:
    """The raylets that `grid cluster start` started in this home, and their restarts."""

    def __init__(self, home: GridHome, config: GridConfig, env: Mapping[str, str] = os.environ) -> None:
        self._home = home
        self._config = config
        self._env = env
        self._started_again: dict[str, int] = {}

    def kill(self, name: str) -> None:
        """Ray notices after a while."""
        record = load(self._home)
        assert record is not None
        pids = {node.name: node.pid for node in record.nodes} | self._started_again
        kill_trees([pids[name]])

    def start(self, name: str) -> None:
        record = load(self._home)
        assert record is not None
        (spec,) = [spec for spec in node_specs(self._config) if spec.name == name]
        log = self._home.logs / f"ray-{name}-again.log"
        with LockedPorts() as ports:
            command = [*ray_executable(), *start_command(spec, record.ray_address, ports)]
            process = spawn(command, log, child_environment(self._env, record.marker))
            wait_until_up(name, process, log)
        self._started_again[name] = process.pid


def wait_until_up(name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Return when Ray reports that the node runs; raise `ClusterStartFailed` if it ends or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_up(name, process, log, deadline):
        time.sleep(POLL_S)
