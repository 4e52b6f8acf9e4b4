"""What is free on which GPU, where Ray tells only the sum, and placement groups what they hold."""

import pytest
from builders import amounts, place, workload

from distributed_grid.decide.capacity.devices import free_devices
from distributed_grid.decide.roles import plan_workload
from distributed_grid.decide.roles.checks import violations
from distributed_grid.model.roles.plan import DoesNotFit, Inventory, InventoryNode, Placement
from distributed_grid.model.roles.spec import RoleSpec


@pytest.mark.parametrize(
    ("node", "free"),
    [
        (place(gpus=2), [1, 1]),
        (place(gpus=2, used=amounts(gpu=1.2)), [0.8]),  # as far as is known, they share
        (place(gpus=2, gpu_parts=(0.6, 0.6)), [0.4, 0.4]),
        (place(gpus=2, gpu_parts=(0.6, 0.4)), [1]),
        (place(gpus=3, gpu_parts=(0.6,), used=amounts(gpu=1)), [1, 0.4]),
        (place(gpus=2, gpu_parts=(0.6, 0.5), used=amounts(gpu=0.5)), [0.4]),  # the fullest, since it is not known
        (place(gpus=2, gpu_parts=(0.6,), used=amounts(gpu=-0.6)), [1, 1]),  # a group that went a moment ago
    ],
)
def test_parts_that_are_held_are_on_one_device_each(node: InventoryNode, free: list[float]) -> None:
    assert free_devices(node.total["gpu"], node.free["gpu"], node.gpu_parts) == [
        amounts(gpu=left)["gpu"] for left in free
    ]


def test_two_devices_with_a_little_left_each_are_not_taken_for_one_with_much() -> None:
    node = place(gpus=2, gpu_parts=(0.6, 0.6))

    found = plan_workload(workload(RoleSpec("judge", gpus=0.8)), Inventory([node]))
    assert isinstance(found, DoesNotFit)
    assert found.reasons[0].describe().endswith("no node has 0.8 GPUs free on one device; the most is 0.4 GPUs, on n1")
    assert isinstance(plan_workload(workload(RoleSpec("judge", gpus=0.4, count=2)), Inventory([node])), Placement)


def test_a_plan_that_needs_a_whole_device_is_wrong_where_two_halves_are_left() -> None:
    load = workload(RoleSpec("trainer", gpus=1))
    planned = plan_workload(load, Inventory([place(gpus=2)]))
    assert isinstance(planned, Placement)

    assert violations(planned, load, Inventory([place(gpus=2, gpu_parts=(0.6, 0.4))])) == []
    halves = Inventory([place(gpus=2, gpu_parts=(0.5, 0.6))])
    assert violations(planned, load, halves) == ["n1: 1 GPU planned, 0.9 GPUs free"]
    assert violations(planned, load, Inventory([place(gpus=3, gpu_parts=(0.6, 0.6, 0.6))])) == [
        "n1: parts of GPUs do not fit on 1.2 GPUs"
    ]
