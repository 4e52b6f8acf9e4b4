"""Other people's programs in `grid run`: Ray's own libraries, programs that start programs, and those out of reach."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
from live_grid import GRID, ONE_LENDER, LiveGrid, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]  # Ray's libraries take their time on a busy machine

CONFIG = ONE_LENDER

QUIET = 'import ray\nray.init(logging_level="ERROR", log_to_driver=False)\n'

SERVES = (
    QUIET
    + """
from ray import serve

@serve.deployment(ray_actor_options={"num_cpus": 2})
class Hello:
    def __call__(self):
        return "hello"

try:
    serve.run(Hello.bind(), name="of-the-run")
finally:
    try:
        serve.shutdown()
    except RuntimeError as error:
        print(error)
"""
)

OUT_OF_REACH = (
    QUIET
    + """
import time

@ray.remote
def stray():
    return ray.get_runtime_context().get_placement_group_id()

@ray.remote(num_cpus=1)
class Kept:
    def here(self):
        return True

kept = Kept.options(name="kept", namespace="strays", lifetime="detached").remote()
print(ray.get(kept.here.remote()), ray.get([stray.remote() for _ in range(2)]))

from distributed_grid.execution.group_work import work_of_job
me = ray.get_runtime_context()
while len(work_of_job(me.gcs_address, me.get_job_id(), "00").outside) < 2:
    time.sleep(0.05)  # until Ray has put it down
"""
)

SERVES_OUT_OF_REACH = (
    QUIET
    + """
from ray import serve

@serve.deployment(ray_actor_options={"num_cpus": 0})
class Hello:
    def __call__(self):
        return "hello"

serve.start(http_options={"port": 0})
print(serve.run(Hello.bind(), name="of-the-run", route_prefix=None).remote().result())
"""
)

TRIALS = (
    QUIET
    + """
import json, os, sys
from ray import tune

def trial(config):
    tune.report({"group": ray.get_runtime_context().get_placement_group_id()})

where = tune.RunConfig(verbose=0, storage_path=sys.argv[1])
found = tune.Tuner(trial, param_space={"x": tune.grid_search([1, 2, 3, 4])}, run_config=where).fit()
print(json.dumps([result.metrics["group"] == os.environ["GRID_PLACEMENT_GROUP"] for result in found]))
"""
)

TOO_LARGE = (
    QUIET
    + """
import os, sys
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

workers = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 2})
DataParallelTrainer(lambda config: None, scaling_config=workers).fit()
"""
)

TRAINS = (
    QUIET
    + """
import json, os, sys
import ray.train
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def train(config):
    ray.train.report({"rank": ray.train.get_context().get_world_rank()})

DataParallelTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    run_config=RunConfig(name="fits", storage_path=sys.argv[1]),
).fit()

me = ray.get_runtime_context()
request = gcs_service_pb2.GetAllActorInfoRequest()
request.filters.job_id = bytes.fromhex(me.get_job_id())
actors = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(init_grpc_channel(me.gcs_address)).GetAllActorInfo(request)
lease = os.environ["GRID_PLACEMENT_GROUP"]
found = [actor for actor in actors.actor_table_data if any(
    amount for name, amount in actor.required_resources.items() if name.startswith("CPU"))]
print(json.dumps([actor.placement_group_id.hex() == lease for actor in found]))
"""
)

TO_THE_SHARED_CLUSTER = (
    "import ray, sys\n"
    + 'ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)\n'
    + """
@ray.remote(num_cpus=1)
class Kept:
    def here(self):
        return True

kept = Kept.options(name="kept", namespace="strays", lifetime="detached").remote()
print(ray.get(kept.here.remote()))
"""
)

GROUP_AFTER_GROUP = (
    QUIET
    + """
from ray.util.placement_group import placement_group, remove_placement_group

def wait_for_room():
    first, second = placement_group([{"CPU": 2}]), placement_group([{"CPU": 1}])
    while not second.wait(1):
        if os.path.exists(sys.argv[1]):
            remove_placement_group(first)
    return second.wait(0)

import os, sys
if sys.argv[2] == "in a worker":
    path, wait = sys.argv[1], wait_for_room
    def in_a_worker():
        sys.argv = ["", path]
        return wait()
    print(ray.get(ray.remote(num_cpus=0)(in_a_worker).remote()))
else:
    print(wait_for_room())
"""
)

SEVERAL = (
    QUIET
    + """
import json, os, subprocess, sys

INNER = '''
import ray
ray.init(logging_level="ERROR", log_to_driver=False)
print(ray.get(ray.remote(lambda: ray.get_runtime_context().get_placement_group_id()).remote()))
'''

def start_another():
    return subprocess.run([sys.executable, "-c", INNER], capture_output=True, text=True).stdout.strip()

class Runner:
    def where(self):
        return ray.get_runtime_context().get_placement_group_id()

def fleet():
    '''As RLlib does: a bundle for each runner, if there is a placement group at all.'''
    has_group = ray.util.get_current_placement_group() is not None
    runners = [
        ray.remote(num_cpus=0.1)(Runner).options(placement_group_bundle_index=index if has_group else -1).remote()
        for index in (1, 2)
    ]
    return ray.get([runner.where.remote() for runner in runners])

from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as InGroup

own = InGroup(placement_group([{"CPU": 0.5}, {"CPU": 0.25}, {"CPU": 0.25}]), 0, True)
found = {
    "a program of the driver's": [start_another()],
    "a program of a task's": [ray.get(ray.remote(start_another).remote())],
    "bundles in the driver": fleet(),
    "bundles in a task": ray.get(ray.remote(fleet).remote()),
    "bundles in a group's task": ray.get(ray.remote(num_cpus=0.5)(fleet).options(scheduling_strategy=own).remote()),
}
lease = os.environ["GRID_PLACEMENT_GROUP"]
print(json.dumps({name: sorted({place == lease for place in places}) for name, places in found.items()}))
"""
)

WAITS_FOR_ITS_ACTORS = (
    QUIET
    + """
import pathlib, subprocess, sys, time

@ray.remote(num_cpus=1)
class Node:
    def __init__(self, depth):
        self.below = Node.remote(depth - 1) if depth else None

    def depth(self):
        return 1 + (ray.get(self.below.depth.remote()) if self.below else 0)

INNER = '''
import ray
ray.init(logging_level="ERROR", log_to_driver=False)
ray.get(ray.remote(lambda: None).remote())
'''

enough, depth = sys.argv[1:]
root = Node.remote(int(depth))
answer = root.depth.remote()
if depth == "1":
    ray.get(answer)
    subprocess.Popen([sys.executable, "-c", INNER])
while not pathlib.Path(enough).exists():
    time.sleep(0.1)
"""
)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def serve_of_others(grid: LiveGrid) -> Iterator[None]:
    """Serve runs in the cluster, for other programs; it is their controller that a run would find."""
    from ray import serve

    serve.start(proxy_location="Disabled")
    yield
    serve.shutdown()
    grid.settled()


@pytest.mark.slow  # one of Ray's libraries: dozens of processes
def test_serve_is_refused_in_a_shared_cluster_whose_own_is_left_alone(
    grid: LiveGrid, script: Callable[[str], str], serve_of_others: None
) -> None:
    from ray import serve

    done = grid.cli("run", "--cpus", "2", "--", script(SERVES), timeout=240)

    assert done.returncode == 1, done.stderr
    assert "RuntimeError" in done.stderr or "Refusal" in done.stderr
    assert "--isolation cluster" in done.stderr
    assert "refused, 1: Ray Serve" in done.stderr, done.stderr
    assert "--isolation cluster" in done.stdout, "nor may it end the Serve of others"
    assert serve.status().applications == {}


def test_serve_is_not_started_by_a_run_where_there_is_none(grid: LiveGrid, script: Callable[[str], str]) -> None:
    done = grid.cli("run", "--cpus", "2", "--allow-escapes", "--", script(SERVES), timeout=240)

    assert (done.returncode, "--isolation cluster" in done.stderr) == (1, True), done.stderr
    assert "SERVE_CONTROLLER_ACTOR" not in names()


def test_a_program_out_of_the_hook_s_reach_is_told_of_and_what_it_leaves_is_ended(
    grid: LiveGrid, script: Callable[[str], str]
) -> None:
    done = grid.cli("run", "--", sys.executable, "-I", script(OUT_OF_REACH), timeout=240)

    assert (done.returncode, done.stdout) == (0, "True [None, None]\n"), done.stderr
    at_once, at_the_end = [line for line in done.stderr.splitlines() if line.startswith("grid: outside the lease")]
    assert "hook is not loaded" in at_once and "hook is not loaded" in at_the_end
    assert at_the_end.endswith("; of all that ran: kept:Kept.__init__ (1), stray (2)"), done.stderr
    assert "detached actor kept is ended" in done.stderr
    until(lambda: "kept" not in names(), 20, "what it left is ended")


@pytest.mark.slow  # one of Ray's libraries: dozens of processes
def test_a_serve_that_a_run_has_started_out_of_the_hook_s_reach_ends_with_it(
    grid: LiveGrid, script: Callable[[str], str]
) -> None:
    from ray import serve

    done = grid.cli("run", "--", sys.executable, "-I", script(SERVES_OUT_OF_REACH), timeout=400)

    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert "detached actor SERVE_CONTROLLER_ACTOR is ended" in done.stderr
    until(lambda: not [name for name in names() if "SERVE" in name], 20, "Serve is gone, its proxies too")
    serve.start(proxy_location="Disabled")
    try:
        assert serve.status().applications == {}, "the next Serve does not find what the run has deployed"
    finally:
        serve.shutdown()


def test_a_program_that_leaves_its_private_cluster_is_told_of_and_what_it_leaves_is_ended(
    grid: LiveGrid, script: Callable[[str], str]
) -> None:
    run = ("run", "--isolation", "cluster", "--", script(TO_THE_SHARED_CLUSTER), grid.address)

    done = grid.cli(*run, timeout=400)

    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("grid: outside the lease")]
    assert "and all its work (it is connected to the shared cluster, not to the private one" in told[-1], done.stderr
    assert "detached actor kept is ended" in done.stderr
    until(lambda: "kept" not in names(), 20, "what it left is ended")


@pytest.mark.slow  # one of Ray's libraries: dozens of processes
def test_trials_of_tune_wait_for_room_in_the_lease(
    grid: LiveGrid, script: Callable[[str], str], tmp_path: Path
) -> None:
    done = grid.cli("run", "--cpus", "2", "--", script(TRIALS), str(tmp_path / "trials"), timeout=400)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True] * 4
    assert "outside" not in done.stderr
    kept = [line for line in done.stderr.splitlines() if line.startswith("grid: kept inside")]
    assert len(kept) == 1, "one line for all of a kind"


@pytest.mark.slow  # one of Ray's libraries: dozens of processes
def test_what_can_never_fit_is_refused_with_advice(grid: LiveGrid, script: Callable[[str], str]) -> None:
    done = grid.cli("run", "--cpus", "2", "--", script(TOO_LARGE), timeout=400)

    assert done.returncode == 1
    assert "it asks for 4 CPU, and the lease has 2. Ask for a larger lease (--cpus 4)" in done.stderr, done.stderr
    assert "refused, 1: placement group CPU=2+CPU=2" in done.stderr
    assert "outside the lease, " not in done.stderr


@pytest.mark.slow  # one of Ray's libraries: dozens of processes
def test_a_train_program_that_fits_is_inside(grid: LiveGrid, script: Callable[[str], str], tmp_path: Path) -> None:
    done = grid.cli("run", "--cpus", "2", "--", script(TRAINS), str(tmp_path / "trained"), timeout=500)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [True, True], "Ray's record of both workers"
    assert "outside" not in done.stderr
    assert "refused" not in done.stderr


def test_programs_of_programs_and_bundles_by_number_are_inside(grid: LiveGrid, script: Callable[[str], str]) -> None:
    done = grid.cli("run", "--cpus", "3", "--", script(SEVERAL), timeout=400)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (len(found), set(map(tuple, found.values()))) == (5, {(True,)}), found
    assert "outside" not in done.stderr


ITSELF, ROOM = "has been blocked by its own actors", "has waited for room"
WAITING = {
    "another driver waits for its actors": (ITSELF, WAITS_FOR_ITS_ACTORS, "1"),
    "a tree of actors is too large": (ITSELF, WAITS_FOR_ITS_ACTORS, "2"),
    "a group waits in the driver": (ROOM, GROUP_AFTER_GROUP, "in the driver"),
    "a group waits in a worker": (ROOM, GROUP_AFTER_GROUP, "in a worker"),
}
"""Programs that wait for what only they themselves can give: the report, the program, how it waits."""


@pytest.fixture(scope="module")
def reports(grid: LiveGrid, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each of these programs was told. All wait at the same time, since a report takes half a minute."""
    with ThreadPoolExecutor() as threads:
        runs = {
            name: threads.submit(reports_of, grid, tmp_path_factory.mktemp("waiting"), *program)
            for name, program in WAITING.items()
        }
        return {name: run.result() for name, run in runs.items()}


def reports_of(grid: LiveGrid, folder: Path, what: str, text: str, how: str) -> list[str]:
    """The lines about it; the program, which has two CPUs, goes on once there is one."""
    script, enough = folder / "script.py", folder / "enough"
    script.write_text(text)
    command = [GRID, "run", "--cpus", "2", "--", str(script), str(enough), how]
    run = subprocess.Popen(command, env=grid.env, stderr=subprocess.PIPE, text=True)
    assert run.stderr is not None
    lines: list[str] = []
    for line in run.stderr:
        lines.append(line)
        if what in line:
            enough.touch()
    assert run.wait(60) == 0, lines
    return [line for line in lines if what in line]


@pytest.mark.parametrize("program", [name for name, (what, _, _) in WAITING.items() if what is ITSELF])
def test_a_run_that_waits_for_itself_is_told_so(reports: dict[str, list[str]], program: str) -> None:
    assert "1 of its tasks and actors wait for CPUs, and its own actors hold all 2" in reports[program][0]


@pytest.mark.parametrize("program", [name for name, (what, _, _) in WAITING.items() if what is ROOM])
def test_a_group_that_waits_for_others_of_its_program_is_told_of(reports: dict[str, list[str]], program: str) -> None:
    at_once, at_the_end = reports[program]
    assert "placement group CPU=1 has waited for room for 30 s" in at_once
    assert "it needs 1 CPU, the lease has 2, and other groups of the same process hold 2" in at_once
    assert "or ask for a larger lease (--cpus 3)" in at_once
    assert at_the_end.startswith("grid: noted, ")


def names() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]
