"""`grid run`: a script that knows nothing of grid, its Ray work in a lease; and whatever happens, nothing is left."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from live_grid import GRID, ONE_LENDER, LiveGrid, until, where_am_i
from terminal import CTRL_C, Terminal

import distributed_grid
from distributed_grid.errors import GridError, LeaseLost, NoCapacity

pytestmark = pytest.mark.cluster

CONFIG = ONE_LENDER

EVERYTHING = """
import json, sys, time
import ray
import ray._private.state as state

ray.init(logging_level="ERROR", log_to_driver=False)

def me():
    context = ray.get_runtime_context()
    return context.get_node_id(), ray.util.get_current_placement_group().id.hex()

@ray.remote
def leaf(i):
    began = time.time()
    time.sleep(0.02)
    return me(), began, time.time()

@ray.remote
def parent(i):
    return me(), ray.get([leaf.remote(i) for _ in range(2)])

@ray.remote
class Actor:
    def where(self):
        return me(), ray.get(leaf.remote(0))[0]

leaves = ray.get([leaf.remote(i) for i in range(100)])
elsewhere = {node: free.get("CPU", 0) for node, free in state.available_resources_per_node().items()}
parents = ray.get([parent.remote(i) for i in range(5)])
actors = [Actor.remote() for _ in range(2)]
where = [place for pair in ray.get([actor.where.remote() for actor in actors]) for place in pair]
leaves += [leaf for _, below in parents for leaf in below]
places = [place for place, *_ in leaves] + [place for place, _ in parents] + where
changes = sorted([(began, 1) for _, began, _ in leaves] + [(ended, -1) for _, _, ended in leaves])
at_once = most = 0
for _, change in changes:
    at_once += change
    most = max(most, at_once)
print(json.dumps({"places": sorted(set(map(tuple, places))), "count": len(places), "most": most, "free": elsewhere}))
"""

WHERE = """
import json
import ray
import ray._private.state as state
ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote
def here():
    return ray.get_runtime_context().get_node_id()

node = ray.get(here.remote())
print(json.dumps({"node": node, "free": state.available_resources_per_node()[node].get("CPU", 0)}))
"""

GETS_OUT = """
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote
def here():
    return ray.get_runtime_context().get_node_id()

head = next(node["NodeID"] for node in ray.nodes() if node["Labels"]["grid/name"] == "head")
print(ray.get(here.options(scheduling_strategy=NodeAffinitySchedulingStrategy(head, soft=False)).remote()))

import time
from distributed_grid.execution.group_work import work_of_job
me = ray.get_runtime_context()
while not work_of_job(me.gcs_address, me.get_job_id(), "00").outside:
    time.sleep(0.05)  # until Ray has put it down
"""

SURROUNDINGS = """
import os, sys
from beside import answer
print(os.getcwd(), os.environ["MINE"], sys.argv[1:], sys.stdin.read().strip(), answer)
sys.exit(3)
"""

IN_A_CLUSTER = """
import json, os, sys
import ray
ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote(scheduling_strategy="SPREAD")
def pid():
    return os.getpid()

@ray.remote(num_gpus=1)
def gpus():
    return os.environ["CUDA_VISIBLE_DEVICES"]

found = {"has": ray.cluster_resources(), "nodes": len(ray.nodes()), "pids": ray.get([pid.remote() for _ in range(4)])}
found["on"] = ray.get(ray.remote(lambda: ray.get_runtime_context().get_node_labels()["grid/name"]).remote())
found["gpus"] = ray.get(gpus.remote())

import ray.data
ray.data.DataContext.get_current().enable_progress_bars = False
numbers = ray.data.range(1000, override_num_blocks=4).map_batches(lambda batch: {"id": batch["id"] * 2})
found["sum"] = int(numbers.sum("id"))

from ray import tune
def trial(config):
    tune.report({"score": config["x"] * 2})
tuner = tune.Tuner(trial, param_space={"x": tune.grid_search([1, 3])}, run_config=tune.RunConfig(verbose=0))
found["best"] = tuner.fit().get_best_result("score", "max").metrics["score"]
print(json.dumps(found))
"""

ALL_OF_IT = """
import ray
ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=2)
def where():
    return ray.get_runtime_context().get_node_labels()["grid/name"]

print("2 CPUs of", ray.get(where.remote()))
"""

ITS_DEVICES = """
import json, os, sys
import ray
ray.init(logging_level="ERROR", log_to_driver=False)
seen = ray.get(ray.remote(lambda: os.environ.get("CUDA_VISIBLE_DEVICES")).remote())
print(json.dumps([ray.cluster_resources()["CPU"], ray.cluster_resources().get("GPU", 0), seen]))
sys.exit(5)
"""

HANGS = """
import os, pathlib, time
import ray
ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote(max_retries=-1)
def forever(path):
    pathlib.Path(path).write_text(str(os.getpid()))
    time.sleep(3600)

ray.get(forever.remote(os.environ["WORKER_PID"]))
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def hanging(grid: LiveGrid, script: Callable[[str], str], tmp_path: Path) -> Iterator["Hanging"]:
    started = Hanging(grid, script(HANGS), tmp_path)
    yield started
    started.end()


class Hanging:
    """A script that hangs in a task; started in a session of its own, so that only it is told to end."""

    def __init__(self, grid: LiveGrid, script: str, folder: Path) -> None:
        self._grid, self._script, self._path = grid, script, folder / "worker"
        self.run: subprocess.Popen[str] | None = None

    def start(self, *options: str) -> None:
        self.run = subprocess.Popen(
            [GRID, "run", *options, "--", self._script],
            env=self._grid.env | {"WORKER_PID": str(self._path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._until_it_hangs(psutil.Process(self.run.pid))

    def start_at(self, terminal: Terminal, *options: str) -> None:
        """As a person types it, with its output kept."""
        terminal.run(f"WORKER_PID={self._path} {GRID} run {' '.join(options)} -- {self._script} | tee log")
        self._until_it_hangs(terminal.shell)

    def _until_it_hangs(self, above: psutil.Process) -> None:
        until(lambda: self._path.exists() and self._path.read_text(), 30, "the task runs")
        [self.driver] = [p for p in above.children(recursive=True) if p.cmdline()[1:] == [self._script]]
        self.worker = psutil.Process(int(self._path.read_text()))

    def exit_code(self) -> tuple[int, str]:
        assert self.run is not None
        _, reported = self.run.communicate(timeout=60)
        return self.run.returncode, reported

    def is_gone(self) -> bool:
        return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in (self.driver, self.worker))

    def end(self) -> None:
        if self.run is not None and self.run.poll() is None:
            self.run.kill()
            self.run.wait()


def in_the_background(grid: LiveGrid, script: str) -> dict[str, Any]:
    done = grid.cli("run", "--detach", "--json", "--", script)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def leases(grid: LiveGrid) -> list[dict[str, Any]]:
    return [boost for boost in grid.client.boost_status()["boosts"] if boost["purpose"] == "run"]


def nothing_is_left(grid: LiveGrid) -> None:
    until(lambda: not leases(grid), 10, "the lease is returned")
    until(lambda: not grid.client.audit()["findings"], 10, "the books agree with the cluster")
    grid.settled()


def test_all_that_a_script_starts_is_in_the_lease_and_never_more_at_once_than_it_has(
    grid: LiveGrid, script: Callable[[str], str]
) -> None:
    grid.settled()
    done = grid.cli("run", "--cpus", "2", "--memory", "1", "--", script(EVERYTHING))

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["count"] == 119
    [(node, _)] = found["places"]
    assert grid.ids["lender"] == node
    assert found["most"] <= 2
    assert found["free"] == {grid.ids["head"]: 2, grid.ids["lender"]: 4}
    # Ray's own record of the tasks, which the summary is made of, knows of none elsewhere.
    assert ("outside" in done.stderr, " done" in done.stderr) == (False, True), done.stderr
    nothing_is_left(grid)


def test_what_gets_out_is_refused_unless_it_may_and_then_told_in_the_end(
    grid: LiveGrid, script: Callable[[str], str]
) -> None:
    refused = grid.cli("run", "--", script(GETS_OUT))
    assert (refused.returncode, "--allow-escapes" in refused.stderr) == (1, True), refused.stderr

    done = grid.cli("run", "--allow-escapes", "--", script(GETS_OUT))

    assert (done.returncode, done.stdout.strip()) == (0, grid.ids["head"]), done.stderr
    reported = [line for line in done.stderr.splitlines() if line.startswith("grid: ")]
    assert "exit code 0" in reported[0], done.stderr
    assert "outside the lease, 1: task __main__.here: on node" in reported[1], done.stderr
    assert "of all that ran: here (1)" in reported[1], done.stderr
    assert reported[2].endswith("report.jsonl") and len(reported) == 3, done.stderr
    nothing_is_left(grid)


def test_the_program_has_its_folder_environment_arguments_input_and_exit_code(
    grid: LiveGrid, tmp_path: Path, script: Callable[[str], str]
) -> None:
    (tmp_path / "beside.py").write_text("answer = 42")
    script(SURROUNDINGS)
    done = subprocess.run(
        [GRID, "run", "--", "script.py", "--x", "-y", "--json"],
        env=grid.env | {"MINE": "here"},
        cwd=tmp_path,
        input="from stdin",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == f"{tmp_path} here ['--x', '-y', '--json'] from stdin 42"
    assert done.returncode == 3, done.stderr
    assert grid.cli("run", "--", "sh", "-c", "exit 7").returncode == 7
    (tmp_path / "module_here.py").write_text("raise SystemExit(5)")
    assert grid.cli("run", "--", "-m", "module_here", cwd=tmp_path).returncode == 5
    states = [(task["command"], task["state"], task["exit_code"]) for task in grid.json("tasks", "ls")["tasks"][:3]]
    assert states == [
        ("-m module_here", "failed", 5),
        ("sh -c 'exit 7'", "failed", 7),
        ("script.py --x -y --json", "failed", 3),
    ]
    nothing_is_left(grid)


def test_ctrl_c_at_a_terminal_ends_what_hangs(grid: LiveGrid, hanging: Hanging, tmp_path: Path) -> None:
    with contextlib.closing(Terminal(tmp_path, grid.env)) as terminal:
        hanging.start_at(terminal, "--cpus", "1")
        [lease] = leases(grid)
        assert (lease["label"], lease["source_node"]) == ("script.py", "lender")
        assert grid.json("boost", "status")["boosts"] == []
        assert [boost["boost_id"] for boost in grid.json("boost", "status", "--all")["boosts"]] == [lease["boost_id"]]

        terminal.type(CTRL_C)

        assert terminal.until_ended() == 130
        until(hanging.is_gone, 10, "its processes are gone")
        assert terminal.shows().count("KeyboardInterrupt") == 1, "the program got it once"
    nothing_is_left(grid)


def test_if_grid_itself_is_killed_the_program_ends_and_its_lease_is_not_renewed(
    grid: LiveGrid, hanging: Hanging
) -> None:
    hanging.start("--duration", "10")
    assert hanging.run is not None
    [lease] = leases(grid)
    os.kill(hanging.run.pid, signal.SIGKILL)
    until(hanging.is_gone, 20, "its processes are gone")
    with contextlib.suppress(GridError):
        grid.client.renew_boost(lease["boost_id"], 1)  # sooner than it would expire, if nothing else renews it
    nothing_is_left(grid)


def test_a_lease_lasts_as_long_as_its_run_and_if_it_is_taken_the_run_ends(grid: LiveGrid, hanging: Hanging) -> None:
    hanging.start("--duration", "6", "--priority", "low")
    [lease] = leases(grid)
    until(lambda: [boost["expires_at"] for boost in leases(grid)] > [lease["expires_at"]], 10, "it is renewed")

    grid.release(lease["boost_id"])

    code, reported = hanging.exit_code()
    last = "\n".join(reported.splitlines()[-4:])  # Ray prints its own trace of dozens of lines before
    assert (code, "released by" in last) == (5, True), reported
    until(hanging.is_gone, 10, "its processes are gone")
    nothing_is_left(grid)


def test_a_run_in_the_background_is_listed_read_and_cancelled(grid: LiveGrid, script: Callable[[str], str]) -> None:
    waits = script("import time; print('begun', flush=True); time.sleep(600)")
    began = in_the_background(grid, waits)
    run = began["task_id"]
    assert (began["state"], began["source_node"], grid.json("tasks", "show", run)["state"]) == (
        "running", "lender", "running",
    )  # fmt: skip
    until(lambda: "begun" in grid.cli("tasks", "logs", run).stdout, 10, "its output")

    ended = grid.json("tasks", "cancel", run)

    assert (ended["state"], ended["exit_code"]) == ("cancelled", 143)
    nothing_is_left(grid)
    done = in_the_background(grid, script("print('all of it')"))["task_id"]
    assert "all of it" in grid.cli("tasks", "logs", done, "--follow").stdout
    assert grid.json("tasks", "show", done)["state"] == "done"
    refused = grid.cli("run", "--detach", "--cpus", "99", "--", "true")
    assert (refused.returncode, "No nodes have sufficient" in refused.stderr) == (4, True)
    last = grid.json("tasks", "ls")["tasks"][0]
    assert (last["command"], last["state"], last["messages"][0][:26]) == (
        "true",
        "refused",
        "No nodes have sufficient a",
    )
    nothing_is_left(grid)


def test_what_cannot_be_had_is_refused_and_nothing_runs(grid: LiveGrid, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for options in (["--cpus", "99"], ["--cpus", "9", "--wait", "0.2"], ["--gpus", "2"]):
        done = grid.cli("run", *options, "--", "touch", str(mark))
        assert (done.returncode, "No nodes have sufficient" in done.stderr) == (4, True), done.stderr
    assert not mark.exists()
    assert not [task for task in grid.json("tasks", "ls")["tasks"] if task["command"].startswith("touch")]
    nothing_is_left(grid)


def test_the_target_itself_is_reserved_where_no_node_lends(grid: LiveGrid, script: Callable[[str], str]) -> None:
    grid.boost("head", "cpu", 6, delivery="reserve")
    done = grid.cli("run", "--cpus", "2", "--", script(WHERE))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"node": grid.ids["head"], "free": 0}
    grid.release_everything()


def test_a_boost_that_was_there_before_stays(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 1, delivery="reserve")
    assert grid.cli("run", "--boost", boost["boost_id"][:8], "--", "true").returncode == 0
    assert grid.state(boost) == "active"
    grid.release(boost)
    moved = grid.boost("head", "cpu", 1)
    done = grid.cli("run", "--boost", moved["boost_id"], "--", "true")
    assert (done.returncode, "RAY_ADDRESS=" in done.stderr) == (4, True)
    grid.release_everything()


@pytest.mark.slow  # Ray's libraries: dozens of processes
@pytest.mark.timeout(600)
def test_a_private_cluster_has_exactly_what_is_leased_for_data_and_tune_too(
    grid: LiveGrid, script: Callable[[str], str]
) -> None:
    boost = grid.boost("head", "gpu", 1, along={"cpu": 2, "memory": 1})
    run = ("run", "--isolation", "cluster", "--boost", boost["boost_id"], "--", script(IN_A_CLUSTER))
    done = grid.cli(*run, timeout=500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    has, pids = found["has"], found["pids"]
    assert (has["CPU"], has["GPU"]) == (2, 1)
    assert 2**30 <= has["memory"] < 2**30 + 100
    assert found["gpus"] == "0"  # the only one of the lender's, and so of the lease's
    assert (found["sum"], found["best"]) == (999000, 6)
    assert found["on"] == "lender"
    assert found["nodes"] == 2  # the raylet in the lease, and a head without capacity
    until(lambda: not any(map(psutil.pid_exists, pids)), 20, "its workers are gone")
    until(lambda: not _private_rays(), 20, "its raylets are gone")
    again = grid.cli("run", "--boost", boost["boost_id"], "--", script(ALL_OF_IT))
    assert (again.returncode, again.stdout) == (0, "2 CPUs of lender\n"), again.stderr
    assert grid.release(boost, wait_seconds=20)["state"] == "released"
    nothing_is_left(grid)


def test_a_private_cluster_on_a_lease_of_its_own_sees_no_gpus_that_it_has_not(
    grid: LiveGrid, script: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("a" * 64)  # as a plain ray.init() leaves one

    done = grid.cli("run", "--isolation", "cluster", "--", script(ITS_DEVICES), env={"HOME": str(tmp_path)})

    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [1.0, 0, ""]  # on a lender that has one
    nothing_is_left(grid)
    until(lambda: not _private_rays(), 20, "its raylets are gone")


def test_a_lease_for_a_block_of_a_program(grid: LiveGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))

    async def use() -> str:
        async with distributed_grid.lease(cpus=2, memory=1, target="head") as lease:
            assert [boost["boost_id"] for boost in leases(grid)] == [lease.id]

            @lease.remote
            def here() -> str:
                return str(ray.get(where_am_i.remote()))

            @lease.remote(num_cpus=0)
            class Actor:
                def here(self) -> str:
                    return str(ray.get_runtime_context().get_node_id())

            assert await here.remote() == lease.node
            assert await Actor.remote().here.remote() == grid.ids[lease.node]
            found = await where_am_i.options(**lease.options(num_cpus=2)).remote()
        with pytest.raises(LeaseLost):
            lease.options()
        with pytest.raises(NoCapacity):
            async with distributed_grid.lease(cpus=99):
                pass
        return str(found)

    assert asyncio.run(use()) == "lender"
    nothing_is_left(grid)


def _private_rays() -> list[str]:
    return [p.name() for p in psutil.process_iter() if "/tmp/grid-ray-" in " ".join(_command(p))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
