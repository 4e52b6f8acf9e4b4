"""grid start --supervise, a real process beside a real Ray cluster that is killed and started again."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from live_grid import GRID, LiveGrid, until

from bench.raylets import kill_trees, wait_until_up
from distributed_grid.cluster import NodeSpec
from distributed_grid.cluster.nodes import ray_executable, spawn, start_command
from distributed_grid.cluster.ports import LockedPorts, own_address
from distributed_grid.cluster.processes import child_environment

pytestmark = pytest.mark.cluster

HEAD = NodeSpec(name="head", cpus=1, gpus=0, memory_bytes=2**30, resources={}, is_head=True)
WORKER = NodeSpec(name="worker", cpus=6, gpus=0, memory_bytes=2**30, resources={}, is_head=False)


class RayCluster:
    """A head and a worker that other people run: grid does not know them from an earlier life."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with LockedPorts() as ports:
            self.address = f"{own_address()}:{ports.take()}"
        self._nodes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        env = child_environment(os.environ, f"supervised-{self.address}")
        with LockedPorts() as ports:
            for number, spec in enumerate((HEAD, WORKER)):
                log = self._folder / f"ray-{spec.name}-{time.monotonic_ns()}-{number}.log"
                node = spawn([*ray_executable(), *start_command(spec, self.address, ports)], log, env)
                self._nodes.append(node)
                wait_until_up(spec.name, node, log)

    def kill(self) -> None:
        """Without a word, as when the power goes."""
        kill_trees(node.pid for node in self._nodes if node.poll() is None)
        for node in self._nodes:
            node.wait(60)
        self._nodes.clear()


class Supervised:
    """The process `grid start --supervise`, and what it says."""

    def __init__(self, grid: LiveGrid, address: str, *options: str) -> None:
        self._log = grid.folder / f"supervisor-{time.monotonic_ns()}.log"
        self._ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ear.bind(str(grid.folder / f"notify-{time.monotonic_ns()}"))
        self._ear.setblocking(False)
        self._heard: list[str] = []
        self._forgotten = 0
        reported = {"NOTIFY_SOCKET": self._ear.getsockname(), "WATCHDOG_USEC": "30000000"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [GRID, "start", "--address", address, "--supervise", *options],
                env=grid.env | reported,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def said(self) -> str:
        """On stderr, since it was last told to forget."""
        self.heard()
        return self._log.read_text()[self._forgotten :]

    def forget(self) -> None:
        self._forgotten = len(self._log.read_text())

    def heard(self) -> list[str]:
        """What systemd was told so far."""
        while True:
            try:
                self._heard.append(self._ear.recv(4096).decode())
            except BlockingIOError:
                return self._heard

    def is_ready(self) -> None:
        until(lambda: "READY=1" in self.heard() or self._has_ended(), 90, "the supervisor ready")

    def _has_ended(self) -> bool:
        assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.said()}"
        return False

    def ends(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def runs(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self._ear.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    cluster = RayCluster(tmp_path_factory.mktemp("ray"))
    cluster.start()
    yield cluster
    ray.shutdown()
    cluster.kill()


@pytest.fixture(scope="module")
def live(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveGrid]:
    grid = LiveGrid(tmp_path_factory.mktemp("live"))
    connect(grid, cluster)
    yield grid
    grid.cli("stop", "--force")
    grid.client.close()


@pytest.fixture(scope="module")
def service(live: LiveGrid) -> Iterator[list[Supervised]]:
    """The supervisor that runs, if one does: it stays for the next test, and so does the controller."""
    running: list[Supervised] = []
    yield running
    for supervised in running:
        supervised.close()


@pytest.fixture
def supervised(live: LiveGrid, cluster: RayCluster, service: list[Supervised]) -> Iterator[Supervised]:
    while service and not service[0].runs():
        service.pop().close()
    if not service:
        service.append(Supervised(live, cluster.address))
        service[0].is_ready()
    service[0].forget()
    yield service[0]
    if live.home.controller.exists():
        live.release_everything()


def connect(grid: LiveGrid, cluster: RayCluster) -> None:
    ray.shutdown()
    grid.connect_to(cluster.address)


def answers(grid: LiveGrid) -> bool:
    return grid.cli("boost", "status").returncode == 0


def test_after_the_cluster_was_killed_and_started_again_so_are_the_controller_and_the_boosts(
    live: LiveGrid, cluster: RayCluster, supervised: Supervised
) -> None:
    moved = live.boost("head", "cpu", 2, duration_seconds=3600)
    reserved = live.boost("head", "cpu", 1, delivery="reserve", duration_seconds=3600)
    live.total_is("head", "CPU", 3.0)
    short = live.boost("head", "cpu", 1, duration_seconds=2)
    first = live.controller_pid()
    live.client.close()
    ray.shutdown()

    cluster.kill()
    until(lambda: "waiting for it to come back" in supervised.said(), 60)
    cluster.start()

    until(lambda: "in the cluster again" in supervised.said(), 120, "grid in the cluster again")
    connect(live, cluster)
    assert live.controller_pid() != first
    live.total_is("head", "CPU", 3.0)
    live.total_is("worker", "CPU", 4.0)
    assert live.state(moved) == "active"
    until(lambda: live.state(reserved) == "active" and live.free("worker").get("CPU") == 3.0, 20)
    assert live.state(short) == "released", "what has expired meanwhile does not come back"
    assert supervised.heard().count("READY=1") == 1
    assert "WATCHDOG=1" in supervised.heard()

    loaded = Path(f"/proc/{supervised.process.pid}/maps").read_text()
    assert "_raylet" not in loaded, "the process of grid itself never imports ray"

    assert supervised.ends(signal.SIGTERM) == 0
    assert supervised.heard()[-1] == "STOPPING=1"
    assert answers(live), "the controller stays"
    assert live.state(moved) == "active"
    live.total_is("head", "CPU", 3.0)


def test_a_controller_that_was_killed_for_good_is_put_back(live: LiveGrid, supervised: Supervised) -> None:
    boost = live.boost("head", "cpu", 1)

    ray.kill(ray.get_actor("grid-controller", namespace="grid"), no_restart=True)

    until(lambda: "in the cluster again" in supervised.said(), 90)
    assert live.state(boost) == "active"
    live.total_is("head", "CPU", 2.0)


def test_a_controller_that_crashed_is_left_to_ray(live: LiveGrid, supervised: Supervised) -> None:
    boost = live.boost("head", "cpu", 1)
    first = live.controller_pid()

    os.kill(first, signal.SIGKILL)

    until(lambda: live.controller_pid() != first and answers(live), 60)
    assert live.state(boost) == "active"
    assert supervised.process.poll() is None
    assert "in the cluster again" not in supervised.said(), "there is never a second controller"


def test_grid_stop_gives_everything_back_and_ends_the_supervisor_too(live: LiveGrid, supervised: Supervised) -> None:
    live.boost("head", "cpu", 2)

    stopped = live.cli("stop")

    assert stopped.returncode == 0, stopped.stderr
    assert supervised.process.wait(60) == 0
    assert "removed from the cluster" in supervised.said()
    until(live.is_at_base, 10)
    until(lambda: not _controllers(), 10, "the controller gone")


def test_a_service_that_is_started_again_finds_the_controller_and_does_not_disturb_it(
    live: LiveGrid, cluster: RayCluster, supervised: Supervised
) -> None:
    boost = live.boost("head", "cpu", 1)
    first = live.controller_pid()
    assert supervised.ends(signal.SIGINT) == 0
    assert "ends on SIGINT; the controller and all boosts stay" in supervised.said()

    again = Supervised(live, cluster.address, "--json")
    try:
        again.is_ready()
        assert live.controller_pid() == first
        assert live.state(boost) == "active"
        assert again.ends(signal.SIGTERM) == 0
        assert json.loads(again.process.stdout.read())["ray_address"] == cluster.address
    finally:
        again.close()


def test_a_head_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    grid = LiveGrid(tmp_path)
    with LockedPorts() as ports:
        waiting = Supervised(grid, f"{own_address()}:{ports.take()}")
        try:
            until(lambda: "waiting for it to come back" in waiting.said(), 30)
            assert "READY=1" not in waiting.heard()
            assert waiting.ends(signal.SIGTERM) == 0
            assert "grid was not added yet" in waiting.said()
        finally:
            waiting.close()


def test_another_home_waits_until_grid_is_taken_out_and_then_takes_its_place(
    live: LiveGrid, cluster: RayCluster, supervised: Supervised, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = LiveGrid(tmp_path / "other")
    waiting = Supervised(other, cluster.address)
    try:
        until(lambda: "grid is already in this cluster; its controller is at http" in waiting.said(), 60)
        assert live.cli("stop").returncode == 0
        waiting.is_ready()
        assert answers(other)
        assert supervised.process.wait(30) == 0
        assert other.cli("stop", "--force").returncode == 0
        assert waiting.process.wait(30) == 0
    finally:
        waiting.close()


def test_what_cannot_get_better_is_an_error_at_once(live: LiveGrid, cluster: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("nodes: [{nam: x}]\n")

    done = live.cli("start", "--address", cluster.address, "--supervise", "--config", str(tmp_path / "bad.yaml"))

    assert done.returncode == 2


def test_a_port_that_another_program_has_ends_it_at_first_but_not_once_grid_was_in(
    live: LiveGrid, cluster: RayCluster, service: list[Supervised]
) -> None:
    if live.home.controller.exists():
        assert live.cli("stop", "--force").returncode == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])

        refused = Supervised(live, cluster.address, "--port", port)
        try:
            until(lambda: not refused.runs() or "Retrying in" in refused.said(), 30, "the supervisor at its end")
            assert f"Port {port} of 127.0.0.1 is not available" in refused.said()
            assert "Retrying in" not in refused.said()
            assert refused.process.wait(60) == 5
        finally:
            refused.close()

    supervised = Supervised(live, cluster.address, "--port", port)
    try:
        supervised.is_ready()
        ray.kill(ray.get_actor("grid-controller", namespace="grid"), no_restart=True)
        until(lambda: "does not answer" in supervised.said(), 60)
        with until(lambda: _taken(int(port)), 20, "the port free"):
            until(lambda: "in the cluster again" in supervised.said(), 120)
            assert supervised.runs()
    finally:
        supervised.close()


def _taken(port: int) -> socket.socket | None:
    """By a program of its own, if it is free."""
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return None


def _controllers() -> list[str]:
    from ray.util import list_named_actors

    return [actor["name"] for actor in list_named_actors(all_namespaces=True) if actor["name"] == "grid-controller"]
