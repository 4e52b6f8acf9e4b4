"""What a raylet of a private cluster is started with: exactly what the lease has."""

from distributed_grid.client import RAYLET_S
from distributed_grid.execution import private_raylet
from distributed_grid.execution.on_node_raylet import MOST_WINDOWS
from distributed_grid.execution.private_raylet import STANDS_STILL_S, start_arguments, visible_devices
from distributed_grid.model.resources import ResourceVector


def test_it_has_what_the_lease_has() -> None:
    words = start_arguments(ResourceVector.of(cpu=2, gpu=1, memory=4), "10.0.0.1:6379")
    said = dict(zip(words[::2], words[1::2], strict=True))

    assert said["--address"] == "10.0.0.1:6379"
    assert (said["--num-cpus"], said["--num-gpus"], said["--memory"]) == ("2", "1", str(4 * 2**30))
    assert int(said["--object-store-memory"]) < 4 * 2**30


def test_it_is_waited_for_as_long_as_it_gets_on_and_its_caller_waits_longer_still() -> None:
    most_s = private_raylet.HOSTED_WITHIN_S + private_raylet.UP_WITHIN_S
    assert MOST_WINDOWS * STANDS_STILL_S < most_s < RAYLET_S


def test_without_gpus_it_sees_none() -> None:
    """Ray leaves the devices of a machine visible to whatever asks for none of them."""
    assert visible_devices(ResourceVector.of(cpu=2))["CUDA_VISIBLE_DEVICES"] == ""


def test_with_gpus_it_sees_those_that_ray_gave_to_the_lease() -> None:
    assert visible_devices(ResourceVector.of(cpu=2, gpu=1)) == {}
