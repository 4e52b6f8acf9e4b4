"""Every way that a program may get out of its lease, one test each; the programs run once, side by side."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from live_grid import BIG_AND_SMALL, GRID, LiveGrid, until
from placed_programs import PLACES

pytestmark = pytest.mark.cluster

CONFIG = BIG_AND_SMALL
INSIDE, ELSEWHERE = "lender inside", "small outside"

# What every program has. A way that fails says so under its own name, and the others go on.
WORK = (
    PLACES
    + """
import contextlib, os, sys

current = ""

@contextlib.contextmanager
def way(name):
    global current
    current = name
    try:
        yield
    except Exception as error:
        print(f"{name}/failed: {error!r}", flush=True)

def say(what, text):
    print(f"{current}/{what}: {text}", flush=True)

def told(what, reference):
    node, group = ray.get(reference, timeout=60)
    say(what, f"{node} {'inside' if group == os.environ['GRID_PLACEMENT_GROUP'] else 'outside'}")

def try_it(**options):
    told("task", where.options(**options).remote())

def try_both(**options):
    try_it(**options)
    actor = Actor.options(**options).remote()
    told("actor", actor.where.remote())
    ray.kill(actor)

def connect_and_try(how):
    with way(how):
        connect()
        try_it(scheduling_strategy="SPREAD")
"""
)

PLACING = """
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from work import *

ids = connect()
with way("SPREAD"):
    try_both(scheduling_strategy="SPREAD")
with way("DEFAULT"):
    try_it(scheduling_strategy="DEFAULT")
with way("affinity to the lease's node"):
    try_it(scheduling_strategy=NodeAffinitySchedulingStrategy(ids["lender"], soft=False))
with way("soft affinity to another node"):
    try_it(scheduling_strategy=NodeAffinitySchedulingStrategy(ids["small"], soft=True))
with way("hard affinity to another node"):
    try_both(scheduling_strategy=NodeAffinitySchedulingStrategy(ids["small"], soft=False))
with way("own group"):
    group = placement_group([{"CPU": 1}])
    try_it(scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0))
    remove_placement_group(group)
with way("detached actor"):
    told("actor", Actor.options(name="kept", namespace="ways", lifetime="detached").remote().where.remote())
"""

CONNECTING = """
from work import *

with way("runtime_env"):
    connect(runtime_env={"env_vars": {"MINE": "yes"}})
    say("passed on", ray.get(ray.remote(lambda: os.environ.get("MINE")).remote(), timeout=60))
    try_it(scheduling_strategy="SPREAD")
ray.shutdown()
with way("namespace"):
    connect(address="auto", namespace="mine")
    say("passed on", ray.get(ray.remote(lambda: ray.get_runtime_context().namespace).remote(), timeout=60))
    try_it(scheduling_strategy="SPREAD")
ray.shutdown()
with way("again"):
    try_it(scheduling_strategy="SPREAD")  # connects by itself
say("job", ray.get_runtime_context().get_job_id())
"""

MODULE = """
import multiprocessing, sys
from .work import *

if __name__ == "__main__":
    for how in ("fork", "spawn"):
        process = multiprocessing.get_context(how).Process(target=connect_and_try, args=(how,))
        process.start()
        process.join()
    connect_and_try("relative imports")
    with way("stdin"):
        say("typed", sys.stdin.read().strip())
        say("arguments", sys.argv[1:])
"""


class Program:
    """One that runs in the lease, beside others."""

    def __init__(self, grid: LiveGrid, boost: str, folder: Path, *words: str) -> None:
        self._report = folder / f"{words[-1]}.report"
        self._running = subprocess.Popen(
            [GRID, "boost", "shell", "--allow-escapes", boost, "--", sys.executable, *words],
            cwd=folder,
            env=grid.env | {"GRID_RUN_REPORT": str(self._report)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self, stdin: str | None = None) -> None:
        """Take down what it printed, and what grid's hook told of it."""
        try:
            self._printed, self.stderr = self._running.communicate(stdin, timeout=240)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._printed, self.stderr = self._running.communicate()

    def of(self, way: str) -> dict[str, str]:
        """What it saw when it tried this way."""
        lines = [line.removeprefix(f"{way}/") for line in self._printed.splitlines() if line.startswith(f"{way}/")]
        assert lines, f"it did not get to {way!r}: {self.stderr}"
        return dict(line.split(": ", 1) for line in lines)

    def reports(self, event: str) -> list[dict[str, str]]:
        lines = self._report.read_text().splitlines() if self._report.exists() else []
        return [report for line in lines if (report := json.loads(line))["event"] == event]

    def said(self, event: str) -> list[str]:
        return [f"{report['what']}: {report['why']}" for report in self.reports(event)]


class Programs:
    def __init__(self, grid: LiveGrid, folder: Path) -> None:
        package = folder / "theirs"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(MODULE)
        for place in (package, folder):
            (place / "work.py").write_text(WORK)
        (folder / "placing.py").write_text(PLACING)
        (folder / "connecting.py").write_text(CONNECTING)
        boost = grid.boost("head", "cpu", 3, delivery="reserve", source_node="lender")["boost_id"]
        self.placing = Program(grid, boost, folder, "placing.py")
        self.connecting = Program(grid, boost, folder, "connecting.py")
        self.module = Program(grid, boost, folder, "-m", "theirs")
        self.placing.end()
        self.connecting.end()
        self.module.end("hello")
        self.detached = "kept" in names()
        grid.release(boost, grace_seconds=0)


@pytest.fixture(scope="module")
def programs(grid: LiveGrid, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    yield Programs(grid, tmp_path_factory.mktemp("ways"))
    grid.settled()


def names() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


TASK = {"task": INSIDE}


def test_spread(programs: Programs) -> None:
    assert programs.placing.of("SPREAD") == TASK | {"actor": INSIDE}
    assert any(line.startswith("task work.where: SPREAD: ") for line in programs.placing.said("rewritten"))


def test_default(programs: Programs) -> None:
    assert programs.placing.of("DEFAULT") == TASK


def test_node_affinity_that_the_lease_meets(programs: Programs) -> None:
    assert programs.placing.of("affinity to the lease's node") == TASK


def test_soft_node_affinity(programs: Programs) -> None:
    assert programs.placing.of("soft affinity to another node") == TASK


def test_hard_node_affinity_gets_out_where_that_is_allowed_and_is_reported(programs: Programs, grid: LiveGrid) -> None:
    assert programs.placing.of("hard affinity to another node") == {"task": ELSEWHERE, "actor": ELSEWHERE}
    assert sorted(programs.placing.said("escaped")) == [
        f"{what}: on node {grid.ids['small'][:8]}: the lease is on node lender"
        for what in ("actor work.Actor", "task work.where")
    ]


def test_own_groups(programs: Programs) -> None:
    assert programs.placing.of("own group") == TASK


def test_detached_actors(programs: Programs) -> None:
    assert programs.placing.of("detached actor") == {"actor": INSIDE}
    assert programs.detached, "it outlives its program"
    assert programs.placing.said("note") == ["detached actor work.Actor: it is in the lease, and ends with it"]
    until(lambda: "kept" not in names(), 10, "it ended with the lease")


def test_ray_init_with_a_runtime_env(programs: Programs) -> None:
    assert programs.connecting.of("runtime_env") == TASK | {"passed on": "yes"}


def test_ray_init_with_a_namespace(programs: Programs) -> None:
    assert programs.connecting.of("namespace") == TASK | {"passed on": "mine"}


def test_ray_shutdown_and_init_again(programs: Programs) -> None:
    found = programs.connecting.of("again")
    last = found.pop("job")
    assert found == TASK
    jobs = [report["job_id"] for report in programs.connecting.reports("job")]
    assert (len(set(jobs)), jobs[-1]) == (3, last)


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_multiprocessing(programs: Programs, how: str) -> None:
    assert programs.module.of(how) == TASK


def test_relative_imports(programs: Programs) -> None:
    assert programs.module.of("relative imports") == TASK


def test_stdin(programs: Programs) -> None:
    assert programs.module.of("stdin") == {"typed": "hello", "arguments": "[]"}
