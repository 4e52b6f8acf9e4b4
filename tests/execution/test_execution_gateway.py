"""How the gateway understands what Ray answers to a resize; the calls themselves are in tests/integration."""

from typing import Any

import pytest
from ray.exceptions import RaySystemError, RpcError

from distributed_grid.execution.port import RayletGone, RayletSilent
from distributed_grid.execution.ray_gateway import RayGateway


class _Gcs:
    """Answers as Ray's client of the control service was seen to."""

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)
        self.asked: list[dict[str, float]] = []

    def resize_raylet_resource_instances(self, _: str, resources: dict[str, float], timeout_s: float) -> Any:
        self.asked.append(resources)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def gateway(*answers: Any) -> tuple[RayGateway, _Gcs]:
    gcs = _Gcs(*answers)
    return RayGateway("10.0.0.1:6379", gcs), gcs


@pytest.mark.parametrize(
    "answer",
    [
        RpcError("deadline exceeded", rpc_code=4),
        RpcError("failed to connect", rpc_code=14),
        RaySystemError("System error: GRPC client is shut down."),
    ],
)
def test_a_raylet_that_dies_or_is_cut_off_while_it_is_asked_may_have_done_it_or_not(answer: Exception) -> None:
    made, _ = gateway(answer)

    with pytest.raises(RayletSilent):
        made.resize("n1", {"CPU": 2.0})


def test_a_raylet_that_is_known_to_be_dead_has_done_nothing() -> None:
    made, _ = gateway(ValueError("Raylet n1 is not alive."))

    with pytest.raises(RayletGone):
        made.resize("n1", {"CPU": 2.0})


def test_an_unexpected_error_is_not_taken_for_a_dead_raylet() -> None:
    made, _ = gateway(RpcError("no such method", rpc_code=12))

    with pytest.raises(RpcError):
        made.resize("n1", {"CPU": 2.0})


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf")])
def test_nonsense_is_not_asked_for(amount: float) -> None:
    made, gcs = gateway()

    with pytest.raises(ValueError, match="refusing"):
        made.resize("n1", {"CPU": amount})
    assert not gcs.asked


def test_where_ray_misses_by_its_smallest_step_it_is_asked_again() -> None:
    made, gcs = gateway({"CPU": 3.9901}, {"CPU": 3.99})

    assert made.resize("n1", {"CPU": 3.99}) == {"CPU": 3.99}
    assert len(gcs.asked) == 2
