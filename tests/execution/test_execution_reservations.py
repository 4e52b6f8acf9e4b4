"""What a lease has, in the words of Ray's options; and what a worker in it holds, as Ray's raylet says it."""

from builders import amounts
from ray import remote

from distributed_grid.execution.groups import asking_for
from distributed_grid.execution.ray_rpc import held_in_group
from distributed_grid.model.resources import GB, ResourceVector


def test_all_of_a_lease_is_asked_for_and_ray_takes_it() -> None:
    asked = asking_for(amounts(cpu=2, gpu=0.5, memory=1) + ResourceVector({"license": 30_000}))

    assert asked == {"num_cpus": 2, "num_gpus": 0.5, "memory": GB, "resources": {"license": 3}}
    assert remote(object).options(**asked)


def test_a_lease_without_memory_asks_for_none() -> None:
    assert asking_for(amounts(cpu=1)) == {"num_cpus": 1, "num_gpus": 0, "memory": None, "resources": {}}


def test_what_a_worker_holds_of_its_group_counts_once() -> None:
    in_a_bundle = {
        "CPU_group_0_4f": 1.0,
        "CPU_group_4f": 1.0,
        "GPU_group_0_4f": 0.5,
        "GPU_group_4f": 0.5,
        "memory_group_0_4f": float(GB),
        "memory_group_4f": float(GB),
        "license_group_0_4f": 2.0,
        "license_group_4f": 2.0,
        "bundle_group_0_4f": 0.001,
        "bundle_group_4f": 0.001,
    }
    elsewhere = {"CPU": 3.0, "CPU_group_5f": 4.0, "node:10.0.0.1": 0.001}

    found = held_in_group(in_a_bundle | elsewhere, "4f")

    assert found == amounts(cpu=1, gpu=0.5, memory=1) + ResourceVector({"license": 20_000})
    assert held_in_group({"GPU_group_4f": 1.0}, "4f") == amounts(gpu=1)  # in whichever bundle
