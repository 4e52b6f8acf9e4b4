"""The embedded cluster, with real raylets; what is true of it is asked of Ray and of the kernel."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from distributed_grid.cluster import ClusterRecord, NodeSpec, running, start, stop
from distributed_grid.cluster.processes import alive, carrying, trees
from distributed_grid.cluster.record import load
from distributed_grid.cluster.starting import NodeStart
from distributed_grid.errors import AlreadyRunning, ClusterStartFailed
from distributed_grid.store.home import GridHome

pytestmark = pytest.mark.cluster

GB = 2**30
HEAD = NodeSpec("gpu-master", cpus=0, gpus=0, memory_bytes=GB, resources={}, is_head=True)
WORKER = NodeSpec("gpu1", 2, 1, 2 * GB, {"custom": 3}, is_head=False, labels={"zone": "a"})
UNSTARTABLE = NodeSpec("gpu2", 1, 0, GB, {}, is_head=False, labels={"not a label!": "x"})


def silent(_: str) -> None:
    pass


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GridHome]:
    home = GridHome(tmp_path)
    yield home
    stop(home, progress=silent)


def python(script: str, *args: str) -> "subprocess.CompletedProcess[str]":
    """Run a script in a process of its own, to its end."""
    command = [sys.executable, "-c", textwrap.dedent(script), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def start_elsewhere(home: GridHome) -> ClusterRecord:
    """Start head and worker from a process that is gone when this returns."""
    script = f"""
        import sys
        from pathlib import Path
        from distributed_grid.cluster import NodeSpec, start
        from distributed_grid.store.home import GridHome
        nodes = [{WORKER!r}, {HEAD!r}]
        start(GridHome(Path(sys.argv[1])), "test", nodes, config_digest="abc", progress=print)
        assert "ray" not in sys.modules
    """
    started = python(script, str(home.path))
    assert started.returncode == 0, started.stderr
    record = running(home)
    assert record is not None
    return record


def ask_ray(address: str, script: str) -> Any:
    """What a driver of its own prints as JSON."""
    setup = "import json, sys, ray; ray.init(sys.argv[1], namespace='t', log_to_driver=False)"
    driver = python(f"{setup}\n{textwrap.dedent(script)}", address)
    assert driver.returncode == 0, driver.stderr
    return json.loads(driver.stdout.splitlines()[-1])


def processes_of(record: ClusterRecord) -> set[psutil.Process]:
    return trees(psutil.Process(node.pid) for node in record.nodes if psutil.pid_exists(node.pid))


def titles(record: ClusterRecord) -> list[str]:
    return [title for process in processes_of(record) if process.is_running() for title in process.cmdline()[:1]]


class Witness:
    """A progress callback that looks at the cluster whenever a node has come up."""

    def __init__(self, home: GridHome, then: BaseException | None = None) -> None:
        self.home = home
        self.then = then
        self.lines: list[str] = []
        self.seen: set[psutil.Process] = set()
        self.marker = ""

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        record = load(self.home)
        assert record is not None
        self.marker = record.marker
        self.seen |= processes_of(record)
        if self.then:
            raise self.then

    def nothing_is_left(self) -> bool:
        return not (any(map(alive, self.seen)) or carrying(self.marker) or self.home.cluster.exists())


def test_a_node_that_fails_takes_the_whole_cluster_with_it_and_says_why(home: GridHome) -> None:
    witness = Witness(home)

    with pytest.raises(ClusterStartFailed, match="Node gpu2 did not start") as failed:
        start(home, "test", [HEAD, UNSTARTABLE], progress=witness)

    log = home.logs / "ray-gpu2.log"
    assert any("not a label!" in line for line in failed.value.because)
    assert str(log) in str(failed.value.try_next)
    assert log.exists()
    assert [line.split(":")[0] for line in witness.lines] == ["gpu-master", "gpu2", "gpu2"]
    assert all("trying again" in line for line in witness.lines[1:])
    assert witness.seen
    assert witness.nothing_is_left()


def test_a_node_whose_first_start_is_cut_off_starts_again(home: GridHome, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off: list[int] = []

    def let_go_and_cut_off(node: NodeStart) -> None:
        really_let_go(node)
        if node.spec.name == WORKER.name and not cut_off:
            cut_off.append(node.pid)
            os.kill(node.pid, signal.SIGKILL)

    really_let_go = NodeStart.let_go
    monkeypatch.setattr(NodeStart, "let_go", let_go_and_cut_off)
    lines: list[str] = []

    record = start(home, "test", [HEAD, WORKER], progress=lines.append)

    assert [line.partition(":")[0] for line in lines] == ["gpu-master", "gpu1", "gpu1"]
    assert "trying again" in lines[1]
    assert [node.name for node in record.nodes] == ["gpu-master", "gpu1"]
    assert record.nodes[1].pid not in cut_off
    nodes = ask_ray(record.ray_address, "print(json.dumps([node['Alive'] for node in ray.nodes()]))")
    assert nodes == [True, True]


def test_an_interrupted_start_leaves_nothing_behind(home: GridHome) -> None:
    witness = Witness(home, then=KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        start(home, "test", [HEAD, WORKER], progress=witness)

    assert witness.seen
    assert witness.nothing_is_left()


def test_what_a_killed_starter_began_is_found_by_stop(home: GridHome) -> None:
    script = f"""
        import os, signal, sys
        from pathlib import Path
        from distributed_grid.cluster import NodeSpec, start
        from distributed_grid.store.home import GridHome
        die = lambda line: os.kill(os.getpid(), signal.SIGKILL)
        start(GridHome(Path(sys.argv[1])), "test", [{HEAD!r}, {WORKER!r}], progress=die)
    """
    python(script, str(home.path))
    record = running(home)
    assert record is not None
    processes = processes_of(record)

    assert stop(home, progress=silent) == record
    assert not any(map(alive, processes))


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GridHome]:
    home = GridHome(tmp_path_factory.mktemp("grid"))
    yield home
    stop(home, progress=silent)


@pytest.fixture(scope="module")
def cluster(shared_home: GridHome) -> ClusterRecord:
    return start_elsewhere(shared_home)


class TestWhileItRuns:
    def test_ray_has_the_nodes_as_they_were_given(self, cluster: ClusterRecord) -> None:
        nodes = ask_ray(
            cluster.ray_address,
            "print(json.dumps([[n['Alive'], n['Labels'], n['Resources']] for n in ray.nodes()]))",
        )
        by_name = {labels["grid/name"]: (labels, resources) for _, labels, resources in nodes}

        assert all(is_alive for is_alive, _, _ in nodes)
        assert set(by_name) == {"gpu-master", "gpu1"}
        labels, resources = by_name["gpu1"]
        assert labels["zone"] == "a"
        assert {"CPU": 2, "GPU": 1, "memory": 2 * GB, "custom": 3}.items() <= resources.items()
        assert "CPU" not in by_name["gpu-master"][1]
        assert by_name["gpu-master"][1]["memory"] == GB

    def test_the_record_has_the_head_first_and_what_was_said_of_the_cluster(
        self, shared_home: GridHome, cluster: ClusterRecord
    ) -> None:
        assert [node.name for node in cluster.nodes] == ["gpu-master", "gpu1"]
        assert (cluster.name, cluster.config_digest) == ("test", "abc")
        assert shared_home.cluster.stat().st_mode & 0o777 == 0o600

    def test_nodes_have_no_dashboard_agent_and_one_for_runtime_environments_once_a_program_needs_it(
        self, cluster: ClusterRecord
    ) -> None:
        assert not [title for title in titles(cluster) if title.endswith("Agent")]

        greeted = """
            import os
            greeting = ray.remote(lambda: os.environ["GREETING"])
            several = [greeting.options(runtime_env={"env_vars": {"GREETING": word}}).remote() for word in ("a", "b")]
            print(json.dumps(ray.get(several)))
        """
        assert ask_ray(cluster.ray_address, greeted) == ["a", "b"]

        agents = [title for title in titles(cluster) if title.endswith("Agent")]
        assert agents == ["ray::RuntimeEnvAgent"], "that of the only node with a CPU"

    def test_it_is_not_started_twice(self, shared_home: GridHome, cluster: ClusterRecord) -> None:
        with pytest.raises(AlreadyRunning, match=cluster.ray_address):
            start(shared_home, "test", [HEAD], progress=silent)

        assert running(shared_home) == cluster


def test_stop_ends_every_process_of_the_cluster_and_no_other(shared_home: GridHome, cluster: ClusterRecord) -> None:
    busy = """
        @ray.remote(num_cpus=1, lifetime="detached", name="busy")
        class Busy:
            def pid(self):
                import os
                return os.getpid()
            def work(self):
                import time
                time.sleep(600)
        actor = Busy.remote()
        print(json.dumps(ray.get(actor.pid.remote())))
        actor.work.remote()
    """
    actor = psutil.Process(ask_ray(cluster.ray_address, busy))
    processes = processes_of(cluster)
    assert actor in processes
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", f"--gcs-address={cluster.ray_address}"],
        start_new_session=True,
    )
    try:
        assert stop(shared_home, progress=silent) == cluster

        assert not any(map(alive, processes))
        assert bystander.poll() is None
        assert running(shared_home) is None
        assert stop(shared_home, progress=silent) is None
    finally:
        bystander.kill()
        bystander.wait()
