"""What is told of places that could not be had."""

import pytest
from builders import amounts, place, workload

from distributed_grid.decide.roles import holdings, plan_workload
from distributed_grid.decide.roles.checks import what_waits
from distributed_grid.model.roles.plan import Inventory, InventoryNode, Placement
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload

LOAD = workload(
    RoleSpec("worker", count=3, pool="cpu_pool"), RoleSpec("loader", pool="cpu_pool"), pools=(Pool("cpu_pool", 8),)
)


def reported(load: Workload, *now: InventoryNode) -> tuple[str, ...]:
    """Planned on an empty node; then the cluster is as said."""
    planned = plan_workload(load, Inventory([place("n1", cpus=8, gpus=2)]))
    assert isinstance(planned, Placement)
    return what_waits(holdings(planned.units, load), Inventory(now))


@pytest.mark.parametrize(
    ("now", "end"),
    [
        ((place("n1", cpus=1),), "waits for 4 CPUs; free: 1 CPU"),
        ((place("n1", cpus=0),), "waits for 4 CPUs; free: 0 CPUs"),
        ((place("n1", cpus=8),), "waits for 4 CPUs, which is free again"),
        ((InventoryNode("n1", amounts(cpu=8), amounts(cpu=8), closed="it sleeps"),), "waits for 4 CPUs; it sleeps"),
        ((place("n2", cpus=8),), "waits for 4 CPUs; that node is gone"),
    ],
)
def test_each_bundle_says_for_whom_it_waits_for_what_where(now: tuple[InventoryNode, ...], end: str) -> None:
    (line,) = reported(LOAD, *now)

    assert line == f"n1: the bundle for 3 worker, 1 loader in the pool cpu_pool {end}"


def test_whole_gpus_wait_for_whole_devices() -> None:
    (line,) = reported(workload(RoleSpec("trainer", gpus=2)), place("n1", gpus=4, gpu_parts=(0.6, 0.6, 0.6)))

    assert line.endswith("; 2.2 GPUs are free, but only 1 GPU as whole devices")


@pytest.mark.parametrize(
    ("now", "end"),
    [
        (place("n1", gpus=2, gpu_parts=(0.6, 0.6)), "; 0.8 GPUs are free, but only 0.4 GPUs on one device"),
        (place("n1", gpus=2), ", which is free again"),
        (place("n1", gpus=1), ", which is free again"),
        (
            place("n1", gpus=2, used=amounts(gpu=1.2)),
            ", which is free again, if it is on one device: Ray reports only the sum over all devices",
        ),
    ],
)
def test_a_part_of_a_gpu_waits_for_one_device(now: InventoryNode, end: str) -> None:
    (line,) = reported(workload(RoleSpec("judge", gpus=0.8)), now)

    assert line == f"n1: the bundle for 1 judge waits for 0.8 GPUs, 1 CPU{end}"
