"""Which of the actors that a run leaves outside are Ray's own, shared by all programs."""

import pytest
from ray.core.generated import gcs_pb2

from distributed_grid.execution.group_work import is_rays_helper


def actor(module: str, **resources: float) -> gcs_pb2.ActorTableData:
    made = gcs_pb2.ActorTableData(required_resources=resources)
    made.function_descriptor.python_function_descriptor.module_name = module
    return made


def test_a_helper_of_ray_s_libraries_that_reserves_nothing_is_shared() -> None:
    assert is_rays_helper(actor("ray.data._internal.stats"))


@pytest.mark.parametrize(
    "left",
    [
        actor("ray.serve._private.controller"),
        actor("ray.serve._private.proxy"),
        actor("ray.data._internal.stats", CPU=1.0),
        actor("rayleigh.model"),
        actor("__main__"),
    ],
    ids=lambda left: left.function_descriptor.python_function_descriptor.module_name,
)
def test_all_else_is_the_run_s_own(left: gcs_pb2.ActorTableData) -> None:
    assert not is_rays_helper(left)
