"""What planning a large workload costs: `python -m bench.roles`, without a cluster.

Times are CPU times, since planning never waits.
"""

import time
from typing import TYPE_CHECKING, Final

from rich.console import Console

from bench.effort import FULL, Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.report import table
from distributed_grid.decide.roles import plan_workload
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.roles.plan import Inventory, InventoryNode
from distributed_grid.model.roles.profiles import from_profile
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload

if TYPE_CHECKING:
    from bench.stage import Stage

_PROMISED: Final = Limits(below=2000.0)
_ACTORS_PER_NODE: Final = 10
_CPU = ResourceVector.of(cpu=32, memory=128)
_GPU = ResourceVector.of(cpu=32, memory=512, gpu=8)


def run(_stage: "Stage | None", effort: Effort) -> Outcome:
    nodes = max(effort.sizes)
    actors, there = _ACTORS_PER_NODE * nodes, inventory(nodes)
    cases = {
        "a workload of 9 roles that fits": workload(actors),
        "a role for every 20 actors": many_roles(actors),
        "roles that scale to what there is": scaling(actors),
        "a workload that does not fit, with what would help": workload(actors, cpus=8),
    }
    return Outcome(
        f"planning {actors:,} actors on {nodes:,} nodes",
        "nothing else",
        tuple(Line(what, _each(load, there, effort), None, _PROMISED) for what, load in cases.items()),
    )


def _each(load: Workload, there: Inventory, effort: Effort) -> Samples:
    found = []
    for _ in range(max(3, effort.rounds // 6)):
        began = time.process_time_ns()
        plan_workload(load, there)
        found.append((time.process_time_ns() - began) / 1e6)
    return Samples.of(found)


def inventory(nodes: int) -> Inventory:
    """A third of the nodes have GPUs; every second GPU node has one GPU in use."""

    def node(number: int) -> InventoryNode:
        has = _CPU if number % 3 else _GPU
        free = has if number % 6 else has - ResourceVector.of(gpu=1, cpu=4)
        return InventoryNode(f"node-{number:04}", free, has, {"zone": str(number % 4)}, "", free)

    return Inventory(node(number) for number in range(nodes))


def workload(actors: int, cpus: float = 1) -> Workload:
    """The well-known roles: most are rollout workers, a tenth are trainers with their helpers."""
    training = {"count": actors // 50, "colocation_group": "training", "placement": "spread"}
    half = {"count": actors // 100, "colocation_group": "judging", "colocation": "bundle", "gpus": 0.5}
    few = actors // 50
    workers = actors - 3 * training["count"] - 2 * half["count"] - 4 * few  # type: ignore[operator]
    return Workload(
        "bench",
        (
            from_profile("rollout_worker", count=workers, cpus=cpus, placement="spread", pool="cpu_pool"),
            from_profile("trainer_self_hosted", "trainer", **training),
            from_profile("trajectory_pool", **training),
            from_profile("weight_sync_controller", **training),
            RoleSpec("judge", **half),  # type: ignore[arg-type]
            RoleSpec("critic", **half),  # type: ignore[arg-type]
            from_profile("data_loader", count=2 * few, memory_gb=2, node_affinity=["zone=1", "zone=2"]),
            from_profile("validator", count=few, node_anti_affinity=["zone=3"]),
            from_profile("trainer_remote_api", count=few),
        ),
        (Pool("cpu_pool", num_cpus=32 * actors),),
    )


def many_roles(actors: int) -> Workload:
    return Workload(
        "bench",
        tuple(
            RoleSpec(f"role-{n}", count=20, cpus=1 + n % 3, gpus=0.25 * (n % 2), placement=("pack", "spread")[n % 2])
            for n in range(actors // 20)
        ),
    )


def scaling(actors: int) -> Workload:
    return Workload("bench", tuple(RoleSpec(f"role-{n}", count=(1, actors // 10), cpus=2) for n in range(10)))


if __name__ == "__main__":
    Console(width=160).print(table([run(None, FULL)]))
