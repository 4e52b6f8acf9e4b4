"""A worker on another host, and the cable between them pulled: both sides settle, and it is told what happened."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from apart import HERE, THERE, Apart, another_host, why_not
from live_grid import GRID, NOTICE_SOON, LiveGrid, until
from service_unit import STAYS_DOWN
from test_node_loss import settles

from bench.raylets import kill_trees, wait_until_up
from distributed_grid.cluster import NodeSpec
from distributed_grid.cluster.nodes import ray_executable, spawn, start_command
from distributed_grid.cluster.ports import LockedPorts
from distributed_grid.cluster.processes import child_environment
from distributed_grid.cluster.supervise import end_supervisors
from distributed_grid.errors import NotOnHead

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

HEAD = NodeSpec(name="head", cpus=4, gpus=0, memory_bytes=2**31, resources={}, is_head=True)
FAR = NodeSpec(name="far", cpus=4, gpus=0, memory_bytes=2**31, resources={}, is_head=False)


class Hosts:
    """Ray's head here, a worker there."""

    def __init__(self, folder: Path, apart: Apart) -> None:
        self.apart = apart
        self.live = LiveGrid(folder)
        self.live.env |= NOTICE_SOON
        self._folder = folder
        self._pids: list[int] = []
        with LockedPorts() as ports:
            self.address = f"{HERE}:{ports.take()}"
            self._start("head", [*ray_executable(), *start_command(HEAD, self.address, ports)])
        self.start_far()

    def start_far(self) -> None:
        with LockedPorts() as ports:
            command = start_command(FAR, self.address, ports)
        command[command.index("--node-ip-address") + 1] = THERE
        self._start("far", self.apart.command([*ray_executable(), *command]))

    def _start(self, name: str, command: list[str]) -> None:
        log = self._folder / f"{name}-{len(self._pids)}.log"
        process = spawn(command, log, child_environment(self.live.env, f"apart-{os.getpid()}"))
        self._pids.append(process.pid)
        wait_until_up(name, process, log)

    def stop(self) -> None:
        kill_trees(self._pids)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with another_host() as apart:
        found = Hosts(tmp_path_factory.mktemp("apart"), apart)
        try:
            found.live.connect_to(found.address)
            started = found.live.cli("start", "--address", found.address, "--json")
            assert started.returncode == 0, started.stderr
            yield found
        finally:
            end_supervisors(found.live.home)
            found.live.client.close()
            ray.shutdown()
            found.stop()


@pytest.mark.parametrize("options", [[], ["--supervise"]], ids=["once", "supervised"])
def test_on_another_machine_than_the_head_grid_is_not_started_and_does_not_wait(
    hosts: Hosts, tmp_path: Path, options: list[str]
) -> None:
    # With a folder of its own for Ray, as another machine has: here the nodes share theirs.
    folder = Path(tempfile.gettempdir()) / "ray"
    alone = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(folder)]
    command = hosts.apart.command([*alone, GRID, "start", "--address", hosts.address, *options])

    done = subprocess.run(
        command, env=hosts.live.env | {"GRID_HOME": str(tmp_path)}, capture_output=True, text=True, timeout=90
    )

    assert done.returncode == NotOnHead.exit_code, done.stderr
    assert "grid has to be started on the head node" in done.stderr
    assert f"its head is {HERE}" in done.stderr
    assert done.returncode in STAYS_DOWN


PRIVATE = """
import json, ray
ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote
def here():
    return ray.get_runtime_context().get_node_labels()["grid/name"], ray.util.get_node_ip_address()

print(json.dumps({"ran": ray.get(here.remote()), "head": ray.get_runtime_context().gcs_address}))
"""


@pytest.mark.timeout(400)
def test_a_private_cluster_has_its_head_here_and_its_node_on_another_machine(hosts: Hosts, tmp_path: Path) -> None:
    """Its head is where the shared cluster has this machine: other addresses of this one, the far one cannot reach."""
    script = tmp_path / "private.py"
    script.write_text(PRIVATE)
    command = ("run", "--isolation", "cluster", "--cpus", "2", "--target", "head", "--source", "far", "--", str(script))

    done = hosts.live.cli(*command, timeout=360)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ran"] == ["far", THERE]
    assert found["head"].startswith(f"{HERE}:")
    settles(lambda: not hosts.live.client.boost_status()["boosts"], "its lease is over")


def test_a_worker_that_cannot_be_reached_is_lost_and_told_and_comes_back(hosts: Hosts) -> None:
    grid = hosts.live
    to_far = grid.boost("far", "cpu", 2, source_node="head")
    from_far = grid.boost("head", "memory", 1, source_node="far")
    reserved = grid.boost("head", "cpu", 1, source_node="far", delivery="reserve")
    grid.total_is("far", "CPU", 6.0)

    hosts.apart.pull_the_cable()
    until(lambda: "far" not in grid.live_nodes(), 60, "Ray knows that it is gone")

    settles(lambda: grid.totals("head") == grid.base["head"], "the head has exactly its own")
    settles(lambda: not grid.client.boost_status()["boosts"], "all three boosts are over")
    reported = {event["boost_id"] for event in grid.events("lost") if "far" in event["message"]}
    assert reported == {boost["boost_id"] for boost in (to_far, from_far, reserved)}
    refused = grid.cli("boost", "request", "head", "cpu", "1", "--source", "far")
    assert refused.returncode != 0 and "far" in refused.stderr

    # A raylet that Ray took for dead ends itself when it hears of it; the test starts the node again.
    hosts.apart.plug_it_in()
    hosts.start_far()
    until(lambda: len(grid.live_nodes()) == 2, 60, "Ray has the worker again")
    grid.ids = grid.live_nodes()
    boost = settles(lambda: _boosted(grid), "it lends again")
    grid.total_is("far", "CPU", 2.0)
    grid.total_is("head", "CPU", 6.0)
    grid.release(boost)
    settles(grid.is_at_base, "both nodes exactly at base")


def _boosted(grid: LiveGrid) -> dict | None:
    alive = {node["name"] for node in grid.client.cluster_status()["nodes"] if node["alive"]}
    return grid.boost("head", "cpu", 2, source_node="far") if "far" in alive else None
