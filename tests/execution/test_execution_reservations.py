"""What a lease has, in the words of Ray's options."""

from builders import amounts
from ray import remote

from distributed_grid.execution.groups import asking_for
from distributed_grid.model.resources import GB, ResourceVector


def test_all_of_a_lease_is_asked_for_and_ray_takes_it() -> None:
    asked = asking_for(amounts(cpu=2, gpu=0.5, memory=1) + ResourceVector({"license": 30_000}))

    assert asked == {"num_cpus": 2, "num_gpus": 0.5, "memory": GB, "resources": {"license": 3}}
    assert remote(object).options(**asked)


def test_a_lease_without_memory_asks_for_none() -> None:
    assert asking_for(amounts(cpu=1)) == {"num_cpus": 1, "num_gpus": 0, "memory": None, "resources": {}}
