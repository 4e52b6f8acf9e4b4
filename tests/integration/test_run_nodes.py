"""`grid run` on several nodes: one lease with a bundle on each, and everything that the program starts is in it."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from live_grid import GRID, NOTICE_SOON, TWO_LENDERS, LiveGrid, group_of, until, where_am_i
from placed_programs import PLACES

import distributed_grid
from distributed_grid import EnhancedOffloadingExecutor

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON

# What every program begins with. `told(**found)` prints which nodes it found, and what is free outside of the lease.
BEGINNING = (
    PLACES
    + """
import json, os, sys, time
import ray._private.state as state
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy as OnNode, PlacementGroupSchedulingStrategy as InGroup,
)

ids = connect()
names = {node_id: name for name, node_id in ids.items()}

def free():
    known = state.available_resources_per_node()
    return {name: known[node_id].get("CPU", 0) for name, node_id in ids.items() if node_id in known}

def where_they_are(group):
    return [names[node_id] for node_id in placement_group_table(group)["bundles_to_node_id"].values()]

def told(**found):
    print(json.dumps(found), flush=True)
"""
)


@pytest.fixture(autouse=True)
def nothing_is_left(grid: LiveGrid) -> Iterator[None]:
    yield
    until(grid.is_at_base, what="the lease is back, and all nodes have what they had")


def ran(grid: LiveGrid, folder: Path, options: str, program: str, *args: str) -> tuple[dict[str, Any], str]:
    """What the program found, and what `grid run` said."""
    (script := folder / "program.py").write_text(BEGINNING + program)
    done = grid.cli("run", *options.split(), "--", str(script), *args, timeout=400, cwd=folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


TASKS_AND_GROUPS = """
@ray.remote(num_cpus=2)
class Whole:
    def where(self):
        return here()

lease = os.environ["GRID_PLACEMENT_GROUP"]
actors = [Whole.remote() for _ in range(3)]
places = ray.get([actor.where.remote() for actor in actors], timeout=60)
used = free()
for actor in actors:
    ray.kill(actor)

@ray.remote
def parent():
    return ray.get([where.remote() for _ in range(6)])

pinned = where.options(scheduling_strategy=OnNode(ids["two"], soft=False))
try:
    where.options(num_cpus=3).remote()
except ValueError as error:
    too_large = str(error)

apart = placement_group([{"CPU": 2}] * 3, strategy="STRICT_SPREAD")
in_apart = [where.options(num_cpus=2, scheduling_strategy=InGroup(apart, index)).remote() for index in range(3)]
in_apart = ray.get(in_apart, timeout=60)
shown = where_they_are(apart)
beside = placement_group([{"CPU": 1}])
waits = not beside.wait(1)
remove_placement_group(apart)
lets_in = beside.wait(30)
remove_placement_group(beside)
packed = placement_group([{"CPU": 1}] * 2)
in_packed = ray.get([where.options(scheduling_strategy=InGroup(packed, index)).remote() for index in (0, 1, -1)])
remove_placement_group(packed)

def refused(*args, **options):
    try:
        placement_group(*args, **options)
    except RuntimeError as error:
        return str(error)

told(
    actors=sorted(name for name, _ in places), free=used, too_large=too_large,
    inside={group == lease for _, group in [*places, *ray.get(parent.remote()), *in_apart, *in_packed]} == {True},
    pinned=ray.get(pinned.remote(), timeout=60) == ("two", lease),
    apart=[name for name, _ in in_apart], shown=shown, waits=waits, lets_in=lets_in,
    packed=len({name for name, _ in in_packed}),
    four=refused([{"CPU": 1}] * 4, strategy="STRICT_SPREAD"), large=refused([{"CPU": 3}]),
)
"""


def test_a_run_on_three_nodes_has_its_tasks_actors_and_groups_in_one_lease(grid: LiveGrid, tmp_path: Path) -> None:
    found, said = ran(grid, tmp_path, "--nodes 3 --cpus 2", TASKS_AND_GROUPS)

    assert found["actors"] == ["head", "one", "two"]
    assert found["free"] == {"head": 0, "one": 2, "two": 2}  # by Ray's count, nothing outside the lease was used
    assert found["inside"] and found["pinned"]
    assert found["shown"] == found["apart"] and sorted(found["apart"]) == ["head", "one", "two"]
    assert found["waits"] and found["lets_in"]
    assert found["packed"] == 1
    assert "on different nodes, and the lease is on 3" in found["four"] and "(--nodes 4)" in found["four"]
    assert "a bundle asks for 3 CPU" in found["large"]
    assert "a bundle asks for 3 CPU, and no node of the lease has so much" in found["too_large"]
    assert "is on 3 nodes: " in said
    assert all(f"{name} (2 CPUs)" in said for name in ("head", "one", "two"))


DIVIDED = """
context = ray.get_runtime_context()
group = placement_group_table(ray.util.get_current_placement_group())
told(bundles=sorted(bundle["CPU"] for bundle in group["bundles"].values()), nodes=sorted(where_they_are(
    ray.util.get_current_placement_group())))
"""


def test_an_amount_that_no_node_has_is_divided_or_spread(grid: LiveGrid, tmp_path: Path) -> None:
    assert ran(grid, tmp_path, "--cpus 4", DIVIDED)[0]["bundles"] == [4]
    divided, said = ran(grid, tmp_path, "--cpus 7", DIVIDED)
    assert divided == {"bundles": [3, 4], "nodes": ["one", "two"]}
    assert "is on 2 nodes: " in said
    spread, _ = ran(grid, tmp_path, "--cpus 4 --spread", DIVIDED)
    assert spread == {"bundles": [1, 1, 2], "nodes": ["head", "one", "two"]}
    gpus, _ = ran(grid, tmp_path, "--gpus 2 --cpus 4 --memory 1", DIVIDED)
    assert gpus == {"bundles": [2, 2], "nodes": ["one", "two"]}


def test_a_refusal_says_how_many_nodes_could(grid: LiveGrid, tmp_path: Path) -> None:
    done = grid.cli("run", "--nodes", "3", "--gpus", "1", "--", "true", cwd=tmp_path)
    assert done.returncode == 4
    assert "2 of 3 nodes have room for 1 GPU: grid run --nodes 2 --gpus 1" in done.stderr
    done = grid.cli("run", "--nodes", "1", "--cpus", "7", "--", "true", cwd=tmp_path)
    assert done.returncode == 4


TRAINS = """
import ray.train
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

folder = sys.argv[1]

def train(config):
    context = ray.train.get_context()
    with open(f"{config['folder']}/{context.get_world_rank()}", "w") as file:
        json.dump([ray.get_runtime_context().get_node_id(), config["free"]()], file)
    ray.train.report({"rank": context.get_world_rank()})

os.mkdir(folder + "/workers")
DataParallelTrainer(
    train,
    train_loop_config={"folder": folder + "/workers", "free": free},
    scaling_config=ScalingConfig(num_workers=4, resources_per_worker={"CPU": 1}, placement_strategy="SPREAD"),
    run_config=RunConfig(name="fits", storage_path=folder),
).fit()

me = ray.get_runtime_context()
request = gcs_service_pb2.GetAllActorInfoRequest()
request.filters.job_id = bytes.fromhex(me.get_job_id())
actors = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(init_grpc_channel(me.gcs_address)).GetAllActorInfo(request)
lease = os.environ["GRID_PLACEMENT_GROUP"]
placed = [actor for actor in actors.actor_table_data if any(
    amount for name, amount in actor.required_resources.items() if name.startswith("CPU"))]
workers = [json.load(open(f"{folder}/workers/{rank}")) for rank in range(4)]
told(
    nodes=sorted(names[node_id] for node_id, _ in workers),
    free=[free for _, free in workers],
    inside=[actor.placement_group_id.hex() == lease for actor in placed],
    groups=[group["name"] for group in ray.util.placement_group_table().values() if group["state"] == "CREATED"],
)
"""


@pytest.mark.slow
def test_ray_train_with_four_workers_on_three_nodes_is_all_inside(grid: LiveGrid, tmp_path: Path) -> None:
    found, _ = ran(grid, tmp_path, "--nodes 3 --cpus 2", TRAINS, str(tmp_path))

    assert sorted(set(found["nodes"])) == ["head", "one", "two"]
    assert len(found["nodes"]) == 4
    assert len(found["inside"]) >= 4 and all(found["inside"])  # by Ray's own record of this job's actors
    assert all(free == {"head": 0, "one": 2, "two": 2} for free in found["free"])
    assert len(found["groups"]) == 1 and found["groups"][0].startswith("grid-boost-")  # it made none of its own


def test_a_run_in_a_boost_of_two_lenders_uses_both_and_names_its_bundles(grid: LiveGrid, tmp_path: Path) -> None:
    boost = grid.boost("head", "gpu", 2)
    names = {node_id: name for name, node_id in grid.ids.items()}
    nodes = [names[node_id] for node_id in group_of(boost)["bundles_to_node_id"].values()]
    program = """
from distributed_grid import ResourceBoost
from distributed_grid.client import GridClient

boost = ResourceBoost.from_dict(GridClient().boost(os.environ["GRID_BOOST"]))
named = [where.options(**boost.options(bundle=part["bundle"], num_gpus=1)).remote() for part in boost.parts]
told(named=[name for name, _ in ray.get(named, timeout=60)])
"""
    found, _ = ran(grid, tmp_path, f"--boost {boost['boost_id']}", program)

    assert found["named"] == nodes
    assert sorted(nodes) == ["one", "two"]
    grid.release(boost, wait_seconds=10)


@pytest.fixture
def lost(grid: LiveGrid) -> Iterator[str]:
    """A node that the test kills; it is back for the next one."""
    yield "one"
    grid.start_node("one")
    until(lambda: set(grid.live_nodes()) == {"head", "one", "two"}, what="all nodes are back")


GOES_ON = """
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
own = placement_group([{"CPU": 1}] * 2, strategy="SPREAD")
found = [where.options(scheduling_strategy=InGroup(own, index)).remote() for index in (0, 1)]
found += [where.remote() for _ in range(4)]
told(nodes=sorted({name for name, _ in ray.get(found, timeout=60)}), all=len(found))
"""


def test_a_run_that_loses_a_node_is_told_and_goes_on_with_the_others(grid: LiveGrid, lost: str, tmp_path: Path) -> None:
    (script := tmp_path / "program.py").write_text(BEGINNING + GOES_ON)
    command = [GRID, "run", "--nodes", "3", "--cpus", "1", "--", str(script), str(tmp_path / "go")]
    with subprocess.Popen(
        command, env=grid.env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        grid.kill_node(lost)
        (boost,) = (each for each in grid.client.boost_status()["boosts"] if each["purpose"] == "run")
        until(lambda: len(grid.shown(boost)["parts"]) == 2, 60, "the lease has two parts")
        (tmp_path / "go").touch()
        out, said = run.communicate(timeout=120)

    assert run.returncode == 0, said
    assert json.loads(out.splitlines()[-1])["nodes"] == ["head", "two"]
    assert f"{lost} has left the cluster" in said and "goes on with two (1 CPU), head (1 CPU)" in said


def test_ray_shows_the_bundles_of_the_lease_pinned_apart(grid: LiveGrid, tmp_path: Path) -> None:
    command = [GRID, "run", "--nodes", "2", "--cpus", "1", "--detach", "--json", "--", "sleep", "60"]
    run = json.loads(subprocess.run(command, env=grid.env, cwd=tmp_path, capture_output=True, check=True).stdout)
    boost = grid.client.boost(run["boost_id"])

    assert sorted(run["source_nodes"]) == sorted(part["source_node"] for part in boost["parts"])
    assert [part["bundle"] for part in boost["parts"]] == [1, 2]
    assert len(set(group_of({**boost})["bundles_to_node_id"].values())) == 2
    assert grid.cli("tasks", "cancel", run["task_id"]).returncode == 0


PRIVATE = """
import json, sys, time
import ray
from ray.util.placement_group import placement_group, placement_group_table

ray.init(log_to_driver=False, logging_level="ERROR")
nodes = [node for node in ray.nodes() if node["Resources"].get("CPU")]
group = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
print(json.dumps({
    "cpus": sorted(node["Resources"]["CPU"] for node in nodes),
    "nodes": sorted(node["Labels"]["grid/name"] for node in nodes),
    "apart": group.wait(60),
}), flush=True)
if sys.argv[1:]:
    time.sleep(600)
"""


def _private_rays() -> list[int]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "/tmp/grid-ray-" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


def test_a_private_cluster_has_a_raylet_on_each_node_of_the_lease(grid: LiveGrid, tmp_path: Path) -> None:
    (script := tmp_path / "program.py").write_text(PRIVATE)
    options = ("run", "--nodes", "3", "--cpus", "1", "--isolation", "cluster", "--duration", "10", "--", str(script))

    done = grid.cli(*options, timeout=400, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"cpus": [1, 1, 1], "nodes": ["head", "one", "two"], "apart": True}
    until(lambda: not _private_rays(), 20, "its raylets are gone")
    with subprocess.Popen(
        [GRID, *options, "stay"], env=grid.env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert b"apart" in run.stdout.readline()
        run.kill()
        until(lambda: not _private_rays(), 60, "its raylets are gone, too, when the run was killed")


DRAINED = """
import json, time
import ray
import ray._private.state as state

ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=1)
class Worker:
    def where(self):
        return ray.get_runtime_context().get_node_id()

workers = [Worker.options(scheduling_strategy="SPREAD").remote() for _ in range(2)]
nodes = set(ray.get([worker.where.remote() for worker in workers]))
print(len(nodes), flush=True)
while set(state.state.get_draining_nodes()) != nodes:
    time.sleep(0.2)
print(len(ray.get([worker.where.remote() for worker in workers])), flush=True)
"""


def test_all_nodes_of_a_private_cluster_are_drained_when_its_lease_ends(grid: LiveGrid, tmp_path: Path) -> None:
    (script := tmp_path / "program.py").write_text(DRAINED)
    command = [GRID, "run", "--nodes", "2", "--cpus", "1", "--isolation", "cluster", "--grace", "60", "--", str(script)]
    with subprocess.Popen(command, env=grid.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"2\n", "an actor on each node"
        [lease] = [boost for boost in grid.client.boost_status()["boosts"] if boost["purpose"] == "run"]
        grid.release(lease, wait_seconds=0)
        assert run.stdout.readline() == b"2\n", "both are drained, and their actors go on"
        run.wait(120)
    until(lambda: not _private_rays(), 60, "its raylets are gone")


def test_parts_of_a_core_are_no_private_cluster(grid: LiveGrid, tmp_path: Path) -> None:
    command = ("run", "--gpus", "2", "--cpus", "3", "--isolation", "cluster", "--", "true")
    done = grid.cli(*command, cwd=tmp_path)
    assert done.returncode != 0
    assert "whole numbers of CPUs on each node" in done.stderr


def test_a_lease_for_a_block_of_a_program_is_on_several_nodes(grid: LiveGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))

    async def use() -> tuple[tuple[str, ...], list[str]]:
        async with distributed_grid.lease(nodes=3, cpus=1, target="head") as lease:
            bundles = [part["bundle"] for part in lease.boost.parts]
            found = [where_am_i.options(**lease.options(bundle=bundle)).remote() for bundle in bundles]
            return lease.nodes, [await node for node in found]

    nodes, found = asyncio.run(use())
    assert sorted(nodes) == ["head", "one", "two"]
    assert found == list(nodes)


def test_a_function_of_an_executor_has_several_nodes_for_what_it_starts(
    grid: LiveGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))

    def on_all() -> list[str]:  # defined here, so that it travels by value
        class Where:
            def where(self) -> str:
                me = ray.get_runtime_context().get_node_id()
                return str(next(node["Labels"]["grid/name"] for node in ray.nodes() if node["NodeID"] == me))

        actors = [ray.remote(num_cpus=1)(Where).remote() for _ in range(3)]  # each takes all of a node's part
        return sorted(ray.get([actor.where.remote() for actor in actors], timeout=60))

    async def use() -> tuple[list[str], str | None]:
        async with EnhancedOffloadingExecutor(mode="share_and_offload") as executor:
            task_id = await executor.submit(on_all, nodes=3, cpu=1, target="head")
            found = await executor.get_result(task_id, timeout=120)
            return found, (await executor.get_task_status(task_id))["runs_on"]

    found, runs_on = asyncio.run(use())
    assert found == ["head", "one", "two"]
    assert all(name in str(runs_on) for name in found)
