"""What the documents show that the project began with, run as it stands there. Some of it has moved on since; all of it
still works."""

import ast
import asyncio
import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from live_grid import GB, PACKAGED, LiveGrid, until

from distributed_grid.config import load_config
from distributed_grid.errors import DoesNotFit
from distributed_grid.model.policies import SharingPolicy
from distributed_grid.monitoring.resource_metrics import ResourceMetricsCollector
from distributed_grid.orchestration.enhanced_offloading_executor import (
    EnhancedOffloadingExecutor,
    OffloadingMode,
    OffloadingRecommendation,
)
from distributed_grid.orchestration.intelligent_scheduler import IntelligentScheduler
from distributed_grid.orchestration.resource_boost_manager import ResourceBoostManager, ResourceBoostRequest
from distributed_grid.orchestration.resource_sharing_manager import AllocationPriority, ResourceSharingManager
from distributed_grid.orchestration.resource_sharing_orchestrator import ResourceSharingOrchestrator
from distributed_grid.roles import NexRLRole, RayResourceManager
from distributed_grid.roles.ray_resource_manager import _get_minimal_env_vars
from examples.process_large_dataset import enough_memory
from examples.train_model import a_gpu

CONFIG = PACKAGED

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NODES = ["gpu-master", "gpu1", "gpu2"]

# -- commands -------------------------------------------------------------------------------------------------

REQUESTS = """
# Request 2 CPU cores for gpu-master with high priority
poetry run grid boost request gpu-master cpu 2.0 --priority high

# Request 1 GPU for gpu-master for 30 minutes
poetry run grid boost request gpu-master gpu 1 --duration 1800

# Request 4 GB memory from a specific source node
poetry run grid boost request gpu-master memory 4.0 --source gpu2

# Request with normal priority (default)
poetry run grid boost request gpu-master cpu 4.0
"""
STATUS = """
# Show all active boosts
poetry run grid boost status

# Show boosts for a specific node
poetry run grid boost status --node gpu-master
"""
RELEASE = """
poetry run grid boost release <boost-id>
"""
CPU_EXAMPLE = """
# Check current status
poetry run grid boost status

# Request additional CPU resources
poetry run grid boost request gpu-master cpu 4.0 --priority high --duration 1800

# Run your CPU-intensive task
python intensive_computation.py

# Release the boost early (optional)
poetry run grid boost release <boost-id>
"""
GPU_EXAMPLE = """
# Request GPU for training
poetry run grid boost request gpu-master gpu 1 --priority critical --duration 3600

# The GPU is now available for Ray tasks
# Run your ML training script
python train_model.py

# Check boost status
poetry run grid boost status --node gpu-master
"""
MEMORY_EXAMPLE = """
# Request additional memory
poetry run grid boost request gpu-master memory 8.0 --source gpu2 --duration 7200

# Process large dataset
python process_large_dataset.py

# The boost will automatically expire after 2 hours
"""
DEBUG_BOOSTS = """
# Check cluster resources
poetry run grid cluster status

# Check resource sharing status
poetry run grid resource-sharing status

# Validate Ray cluster
poetry run python scripts/validate_ray_cluster.py
"""
DEBUG_SHARING = """
# Check cluster status
poetry run python -c "
import asyncio
from examples.intelligent_sharing_demo import ResourceSharingDemo
demo = ResourceSharingDemo('config/my-cluster-enhanced.yaml')
asyncio.run(demo._demo_cluster_status())
"

# Monitor resources
poetry run python -c "
import asyncio
from examples.intelligent_sharing_demo import ResourceSharingDemo
demo = ResourceSharingDemo('config/my-cluster-enhanced.yaml')
asyncio.run(demo._demo_resource_monitoring())
"
"""
# "You can find the boost ID from the status command."
ITS_ID = 'import json, sys; print(json.load(sys.stdin)["boosts"][-1]["boost_id"])'
LAST_BOOST = f"$(grid boost status --json | python -c '{ITS_ID}')"


@pytest.fixture
def desk(grid: LiveGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the Python classes find the cluster that `grid` finds."""
    monkeypatch.setenv("GRID_HOME", str(grid.home.path))


def typed(grid: LiveGrid, text: str, cwd: Path = ROOT) -> str:
    """Type a block of commands, all of which must succeed; what they print."""
    path = f"{Path(sys.executable).parent}:{grid.env['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text.replace("poetry run ", "").replace("<boost-id>", LAST_BOOST)],
        env=grid.env | {"PATH": path, "RAY_ADDRESS": grid.address},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def boosts(grid: LiveGrid) -> list[tuple[str, float, str]]:
    return [(b["resource_type"], b["amount"], b["priority"]) for b in grid.client.boost_status()["boosts"]]


@pytest.mark.cluster
def test_boosts_are_requested_listed_and_released(grid: LiveGrid) -> None:
    grid.settled()
    asked = typed(grid, REQUESTS)
    assert asked.count("active") == 4
    assert boosts(grid) == [("cpu", 2, "high"), ("gpu", 1, "normal"), ("memory", 4, "normal"), ("cpu", 4, "normal")]

    listed = typed(grid, STATUS)
    assert listed.count("Active boosts: 4   Boosted: 6 CPUs, 1 GPU, 4 GB") == 2
    for column in ("ID", "Source", "Target", "Type", "Amount", "Allocated", "Expires"):
        assert column in listed

    released = typed(grid, RELEASE)
    assert "Released boost" in released
    assert len(boosts(grid)) == 3


@pytest.mark.cluster
def test_a_cpu_boost_for_an_intensive_computation(grid: LiveGrid) -> None:
    shown = typed(grid, CPU_EXAMPLE, EXAMPLES)

    assert "12 queens: 14,200 solutions" in shown
    assert "The number is right." in shown
    until(lambda: boosts(grid) == [], 10, "everything is returned")


@pytest.mark.cluster
def test_a_gpu_boost_for_machine_learning(grid: LiveGrid) -> None:
    shown = typed(grid, GPU_EXAMPLE, EXAMPLES)

    lender = grid.client.boost_status()["boosts"][0]["source_node"]
    assert f"gpu-master has a boost: 1 GPU of {lender}" in shown
    assert f"Training on {lender}, on its GPU 0" in shown
    assert boosts(grid) == [("gpu", 1, "critical")]


@pytest.mark.cluster
def test_a_memory_boost_for_a_large_dataset(grid: LiveGrid) -> None:
    shown = typed(grid, MEMORY_EXAMPLE, EXAMPLES)

    assert "gpu-master has 16 GB of memory, and needs 12 GB at once" in shown
    assert "in 3 shards, all at once on gpu-master" in shown
    assert "All rows are there, and in order." in shown
    assert boosts(grid) == [("memory", 8, "normal")]


@pytest.mark.cluster
def test_what_is_for_looking_into_boosts(grid: LiveGrid) -> None:
    grid.settled()
    shown = typed(grid, DEBUG_BOOSTS)

    assert "Boosts: none" in shown
    rows = [line.split() for line in shown.splitlines() if line.startswith("gpu")]
    assert [row[0] for row in rows if row[-4:] == ["ok"] * 4] == NODES
    assert "All 3 nodes are sound." in shown


@pytest.mark.cluster
def test_what_is_for_looking_into_sharing(grid: LiveGrid) -> None:
    grid.settled()
    shown = typed(grid, DEBUG_SHARING)

    assert "\nCluster status" in shown and "Boosts: none" in shown
    assert "\nResource monitoring" in shown
    assert all(f"\n{name}: " in shown for name in NODES)


# -- the worked examples without a boost of yours ---------------------------------------------------------------


@pytest.mark.cluster
def test_a_plain_program_runs_in_a_lease(grid: LiveGrid) -> None:
    shown = typed(grid, "grid run --cpus 2 --source gpu1 -- examples/intensive_computation.py 9")

    assert "9 queens: 352 solutions" in shown
    assert "5 tasks, " in shown and "5 on gpu1" in shown
    assert "up to 1 " in shown or "up to 2 " in shown


@pytest.mark.cluster
def test_the_examples_borrow_what_is_missing_and_give_it_back(grid: LiveGrid, desk: None) -> None:
    @ray.remote
    def gpus_here() -> list[str]:
        return ray.get_runtime_context().get_accelerator_ids()["GPU"]

    async def use() -> None:
        async with a_gpu("gpu-master") as options:
            assert await gpus_here.options(**options).remote() == ["0"]
        async with enough_memory("gpu-master", 12):
            grid.total_is("gpu-master", "memory", 12.0 * GB)

    asyncio.run(use())

    grid.total_is("gpu-master", "memory", 8.0 * GB)
    assert boosts(grid) == []


# -- Python ---------------------------------------------------------------------------------------------------

BASIC_USAGE = """
from distributed_grid.orchestration.resource_sharing_orchestrator import ResourceSharingOrchestrator

# Create orchestrator
orchestrator = ResourceSharingOrchestrator(cluster_config, ssh_manager)

# Initialize and start
await orchestrator.initialize()
await orchestrator.start()

# Get cluster status
status = await orchestrator.get_cluster_status()

# Request resources
request_id = await orchestrator.request_resources(
    node_id="gpu-master",
    resource_type="cpu",
    amount=2.0,
    priority="high",
    duration_minutes=30
)

# Get resource snapshots
snapshots = orchestrator.get_node_resource_snapshots()
"""
ENHANCED_OFFLOADING = """
from distributed_grid.orchestration.enhanced_offloading_executor import EnhancedOffloadingExecutor

# Create enhanced executor
executor = EnhancedOffloadingExecutor(
    ssh_manager,
    cluster_config,
    mode=OffloadingMode.DYNAMIC_BALANCING
)

# Execute with intelligent resource sharing
task_id = await executor.execute_offloading(recommendation)
"""


async def run_snippet(text: str, names: dict[str, Any]) -> None:
    """As in a notebook: `await` needs no function around it."""
    compiled = compile(text, "<snippet>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if (running := eval(compiled, names)) is not None:
        await running


@pytest.mark.cluster
def test_the_python_snippets(grid: LiveGrid, desk: None) -> None:
    until(lambda: {node["state"] for node in grid.client.nodes()["nodes"]} == {"ok"}, 60, "all nodes measured")

    async def use() -> None:
        names = {"cluster_config": load_config(ROOT / "config/my-cluster-enhanced.yaml").config, "ssh_manager": None}
        await run_snippet(BASIC_USAGE, names)

        assert [node["name"] for node in names["status"]["nodes"]] == NODES
        assert grid.client.allocation(names["request_id"])["state"] == "active"
        assert boosts(grid) == [("cpu", 2, "high")]
        assert sorted(names["snapshots"]) == NODES

        assert await names["orchestrator"].release_resources(names["request_id"])
        await names["orchestrator"].stop()

        names |= {
            "OffloadingMode": OffloadingMode,
            "recommendation": OffloadingRecommendation("gpu-master", cpu=6.0, memory=0, command=("true",)),
        }
        await run_snippet(ENHANCED_OFFLOADING, names)
        assert await names["executor"].get_result(names["task_id"], timeout=60) == 0
        assert (await names["executor"].get_task_status(names["task_id"]))["offloaded"]  # gpu-master has four CPUs
        await names["executor"].stop()

    asyncio.run(use())


# -- roles ----------------------------------------------------------------------------------------------------

ACTOR_OPTIONS = """
ray_options = {
    "num_cpus": 1,              # CPU cores
    "num_gpus": 0,              # GPU devices
    "runtime_env": {            # Environment configuration
        "env_vars": env_vars
    },
    "max_concurrency": 100,     # Max concurrent tasks
}

actor = ray_actor_cls.options(**ray_options).remote(config)
"""
MINIMAL_ENVIRONMENT = """
# Good: Minimal environment
env_vars = _get_minimal_env_vars()
"""
THREE_ACTORS = """
# Before: 3 actors
register_role(NexRLRole.TRAINER, count=1, colocation_group=None)
register_role(NexRLRole.TRAJECTORY_POOL, count=1, colocation_group=None)
register_role(NexRLRole.WEIGHT_SYNC_CONTROLLER, count=1, colocation_group=None)
# Resources: 3 CPUs
"""
ONE_ACTOR = """
# After: 1 colocated actor
colocation_group = "training_group"
register_role(NexRLRole.TRAINER, count=1, colocation_group=colocation_group)
register_role(NexRLRole.TRAJECTORY_POOL, count=1, colocation_group=colocation_group)
register_role(NexRLRole.WEIGHT_SYNC_CONTROLLER, count=1, colocation_group=colocation_group)
# Resources: 1 CPU
"""
SCALED_WORKERS = """
# Compute-bound: Few workers
num_workers = 4

# I/O-bound (LLM API): Many workers
num_workers = 64

register_role(
    NexRLRole.ROLLOUT_WORKER,
    count=num_workers,
    colocation_group=None  # Standalone for parallelism
)
"""
AVAILABILITY = """
import ray

# Get cluster resources
resources = ray.cluster_resources()
print("Available resources:", resources)

# Get available resources (not in use)
available = ray.available_resources()
print("Free resources:", available)
"""
# The document calls `ray.list_actors()`, which Ray does not have; and what it has of that kind (`ray.util.state`)
# needs a dashboard. A run tells the same of its own actors. `if cpu_util < 50%:`, further down, is no Python.
ACTOR_PLACEMENT = """
# List all actors
actors = manager.run.status()["members"]
for actor in actors:
    print(f"Actor: {actor['actor']}")
    print(f"  Resources: {needs[actor['role']]}")
    print(f"  Node: {actor['node']}")
"""


def roles_at_hand(manager: RayResourceManager, cls: type) -> dict[str, Any]:
    """What the snippets have around them: they leave classes and configurations out."""

    def register_role(role: NexRLRole, **said: Any) -> None:
        manager.register_role(role, cls, {"role": role.value}, **said)

    return {"register_role": register_role, "NexRLRole": NexRLRole, "manager": manager}


@pytest.mark.cluster
def test_the_snippets_on_roles(grid: LiveGrid, desk: None, capsys: pytest.CaptureFixture[str]) -> None:
    class Anything:
        def __init__(self, config: Any) -> None:
            self.config = config

        def told(self) -> Any:
            return self.config

    grid.settled()
    names: dict[str, Any] = {"_get_minimal_env_vars": _get_minimal_env_vars}
    exec(MINIMAL_ENVIRONMENT, names)
    names |= {"ray_actor_cls": ray.remote(Anything), "config": "a configuration"}
    exec(ACTOR_OPTIONS, names)
    assert ray.get(names["actor"].told.remote()) == "a configuration"
    del names["actor"]

    for snippet, cpus, actors in ((THREE_ACTORS, 3, 3), (ONE_ACTOR, 1, 1)):
        until(lambda: cpus_in_use() == 0, 10, "what was there before has ended")
        with RayResourceManager() as manager:
            names = roles_at_hand(manager, Anything)
            exec(snippet, names)
            manager.create_all_actors()

            roles = NexRLRole.TRAINER, NexRLRole.TRAJECTORY_POOL, NexRLRole.WEIGHT_SYNC_CONTROLLER
            members = [manager.get_actor_wrapper(role)[0] for role in roles]
            assert ray.get([one.told.remote() for one in members]) == [{"role": role.value} for role in roles]
            assert len({one._actor._actor_id for one in members}) == actors

            until(lambda cpus=cpus: cpus_in_use() == cpus, 10, f"{cpus} CPUs in use")
            exec(AVAILABILITY, names)
            assert names["available"]["CPU"] == names["resources"]["CPU"] - cpus
            names["needs"] = {one["role"]: one["needs"] for one in manager.run.status()["roles"]}
            exec(ACTOR_PLACEMENT, names)
            assert capsys.readouterr().out.count("  Node: gpu") == 3

    with RayResourceManager() as manager:
        exec(SCALED_WORKERS, roles_at_hand(manager, Anything))
        with pytest.raises(DoesNotFit, match="does not fit"):
            manager.create_all_actors()
    until(lambda: cpus_in_use() == 0, 10, "all CPUs free")


def cpus_in_use() -> float:
    return ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0.0)


# -- configuration ----------------------------------------------------------------------------------------------

SHARING_AT_THE_TOP = """
resource_sharing:
  enabled: true
  policy: "balanced"  # Options: balanced, aggressive, conservative
  rebalance_interval: 30  # seconds
  pressure_thresholds:
    cpu:
      high: 0.8
      low: 0.3
    memory:
      high: 0.8
      low: 0.3
    gpu:
      high: 0.8
      low: 0.3
"""
SHARING_BELOW_EXECUTION = """
execution:
  resource_sharing:
    enabled: true
    mode: dynamic_balancing  # offload_only, share_and_offload, dynamic_balancing
    policy: balanced  # conservative, balanced, aggressive, predictive
    rebalance_interval_seconds: 30
    monitoring_interval_seconds: 10
    thresholds:
      cpu_pressure_high: 0.8
      cpu_pressure_low: 0.3
      memory_pressure_high: 0.8
      memory_pressure_low: 0.3
      gpu_pressure_high: 0.8
      gpu_pressure_low: 0.3
      excess_threshold: 0.2
"""
NODE_SETTINGS = """
nodes:
- name: gpu-master
  resource_sharing:
    can_share: true
    max_share_cpu: 4
    max_share_memory_gb: 16
    max_share_gpu: 0
    priority: 1.0
"""


@pytest.mark.parametrize("sharing", [SHARING_AT_THE_TOP, SHARING_BELOW_EXECUTION], ids=["top", "execution"])
def test_the_configuration_snippets_load_without_a_word(sharing: str, tmp_path: Path) -> None:
    path = tmp_path / "my-cluster.yaml"
    path.write_text(sharing + NODE_SETTINGS)

    loaded = load_config(path)

    assert loaded.warnings == ()
    found, (node,) = loaded.config.resource_sharing, loaded.config.nodes
    assert found.enabled and found.policy == SharingPolicy.BALANCED and found.rebalance_interval_seconds == 30
    assert (node.name, node.resource_sharing.max_share_cpu, node.resource_sharing.max_share_gpu) == ("gpu-master", 4, 0)


# -- the API reference ------------------------------------------------------------------------------------------

REFERENCE = {
    ResourceBoostManager: {
        "request_boost": ["request"],
        "release_boost": ["boost_id"],
        "get_active_boosts": ["target_node"],
        "get_boost_status": [],
    },
    ResourceSharingOrchestrator: {
        "initialize": [],
        "start": [],
        "stop": [],
        "get_cluster_status": [],
        "request_resources": ["node_id", "resource_type", "amount", "priority", "duration"],
        "release_resources": ["allocation_id"],
        "get_node_resource_snapshots": [],
    },
    ResourceMetricsCollector: {
        "start": [],
        "stop": [],
        "get_all_latest_snapshots": [],
        "get_resource_trend": ["node_id", "resource_type"],
        "get_cluster_summary": [],
    },
    ResourceSharingManager: {
        "request_resource": ["node_id", "resource_type", "amount", "priority", "duration"],
        "release_resource": ["allocation_id"],
        "get_resource_status": [],
    },
    EnhancedOffloadingExecutor: {"execute_offloading": ["recommendation"]},
    IntelligentScheduler: {"schedule_task": ["request"], "complete_task": ["task_id"], "get_scheduling_status": []},
}


@pytest.mark.parametrize("kind", REFERENCE, ids=lambda kind: kind.__name__)
def test_every_method_of_the_reference_is_there_and_takes_what_it_took(kind: type) -> None:
    for name, wanted in REFERENCE[kind].items():
        parameters = list(inspect.signature(getattr(kind, name)).parameters.values())[1:]
        assert [parameter.name for parameter in parameters[: len(wanted)]] == wanted, name
        for more in parameters[len(wanted) :]:
            assert more.default is not more.empty or more.kind is more.VAR_KEYWORD, f"{name} insists on {more}"


def test_a_boost_request_has_the_fields_and_defaults_that_it_had() -> None:
    fields = [(field.name, field.default) for field in dataclasses.fields(ResourceBoostRequest)][:6]

    assert fields == [
        ("target_node", dataclasses.MISSING),
        ("resource_type", dataclasses.MISSING),
        ("amount", dataclasses.MISSING),
        ("priority", AllocationPriority.NORMAL),
        ("duration_seconds", None),
        ("preferred_source", None),
    ]


def test_the_tests_that_are_named_are_there() -> None:
    """`pytest tests/test_intelligent_resource_sharing.py::TestResourceSharingManager -v`"""
    assert "\nclass TestResourceSharingManager:" in (ROOT / "tests/test_intelligent_resource_sharing.py").read_text()
