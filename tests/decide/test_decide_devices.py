"""GPUs are counted by device wherever something is granted: what is free in parts is no whole GPU."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import NOON, amounts, ask, boost_room, lease, node, sought

from distributed_grid.decide.capacity.devices import short_of
from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.admission import plan_queue
from distributed_grid.decide.queue.preemption import plan_preemption, plan_relief
from distributed_grid.decide.scheduler.placing import choose, choose_gang, promise, refusals
from distributed_grid.model.leases import Delivery, Lease
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.plans import NO_RULES, Grant, Refused
from distributed_grid.model.policies import AllocationPriority, SharingPolicy
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Waiting

TARGET = node("gpu-master")
PARTS = (6_000, 6_000)
"""Two bundles of 0.6 GPU: they cannot share a device."""
SPLIT = node("gpu1", gpus=2, used=amounts(gpu=1.2), gpu_parts=PARTS)
WHOLE = node("gpu1", gpus=2, used=amounts(gpu=1.2))
"""As much is free, and nothing is known of how."""


@pytest.mark.parametrize(("amount", "fits"), [(0.4, True), (0.5, False), (0.8, False)])
def test_a_part_of_a_gpu_is_lent_if_one_device_has_it(amount: float, fits: bool) -> None:
    wanted = ask("gpu-master", "gpu", amount)
    found = plan_grant(wanted, NodeTable([TARGET, SPLIT]), Usage())
    assert isinstance(found, Grant) == fits
    assert isinstance(plan_grant(wanted, NodeTable([TARGET, WHOLE]), Usage()), Grant)


def test_a_refusal_tells_what_one_device_has_and_offers_that() -> None:
    found = plan_grant(ask("gpu-master", "gpu", 0.8), NodeTable([TARGET, SPLIT]), Usage())
    assert isinstance(found, Refused)
    (refusal,) = [one for one in found.refusals if one.node == "gpu1"]
    assert refusal.code is RefusalCode.GPU_IN_PARTS
    assert refusal.detail == "0.8 of 2 GPUs free, but at most 0.4 on one device, 0.8 requested"
    assert refusal.could_lend == 4_000


def test_a_whole_gpu_is_not_lent_from_two_halves() -> None:
    halves = node("gpu1", gpus=2, used=amounts(gpu=1.2), gpu_parts=PARTS)
    three = replace(node("gpu2", gpus=3, used=amounts(gpu=1.2), gpu_parts=PARTS), limits=halves.limits)
    found = plan_grant(ask("gpu-master", "gpu", 1), NodeTable([TARGET, halves, three]), Usage())
    assert isinstance(found, Grant)
    assert found.source == "gpu2"


def test_a_task_gets_a_part_only_where_one_device_has_it() -> None:
    assert choose(sought(TARGET, SPLIT, gpu=0.4)) is not None
    asked = sought(TARGET, SPLIT, gpu=0.8)
    assert choose(asked) is None
    assert refusals(asked)["gpu1"] == "0.8 of 2 GPUs free, but at most 0.4 on one device, 0.8 requested"


def test_a_task_that_was_promised_a_part_leaves_the_others_what_is_left_on_each_device() -> None:
    asked = sought(TARGET, SPLIT, gpu=0.4)
    asked.columns.promise(asked.columns.row["gpu1"], amounts(gpu=0.4))
    assert choose(replace(asked)) is not None
    asked.columns.promise(asked.columns.row["gpu1"], amounts(gpu=0.4))
    assert choose(replace(asked)) is None


def test_parts_that_were_promised_and_are_not_held_yet_are_on_one_device_each() -> None:
    asked = sought(TARGET, node("gpu1", gpus=2), gpu=0.6)
    for _ in range(2):
        choice = choose(asked)
        assert choice is not None
        asked = promise(asked, choice)
    assert choose(asked) is None, "0.8 are free, and each device has 0.4"
    assert refusals(asked)["gpu1"] == "0.8 of 2 GPUs free, but at most 0.4 on one device, 0.6 requested"
    assert choose(promise(asked, choice, -1)) is not None


@pytest.mark.parametrize(("gpus", "places"), [(2, None), (3, ("gpu1",) * 3)])
@pytest.mark.parametrize("together", [{}, {"affinity": {"tasks": ["t"]}}], ids=["anywhere", "on-one-node"])
def test_members_with_parts_of_gpus_need_a_device_each(
    gpus: int, places: tuple[str, ...] | None, together: dict[str, Any]
) -> None:
    asked = sought(TARGET, node("gpu1", gpus=gpus), gpu=0.6, count=3, **together)
    found = choose_gang(asked, 3)
    assert (None if found is None else tuple(choice.node for choice in found)) == places


def test_members_that_share_a_device_stay_together_on_it() -> None:
    both = choose_gang(sought(TARGET, SPLIT, gpu=0.4, count=2, affinity={"tasks": ["t"]}), 2)
    assert both is not None, "each device has 0.4 left"
    assert choose_gang(sought(TARGET, SPLIT, gpu=0.4, count=3, affinity={"tasks": ["t"]}), 3) is None


def test_a_boost_carries_a_part_where_one_of_its_devices_has_it() -> None:
    asked = sought(TARGET, node("gpu1"), gpu=0.6, boosts=(boost_room(gpu=2, cpu=4),))
    for _ in range(2):
        choice = choose(asked)
        assert choice is not None and choice.boost is not None
        asked = promise(asked, choice)
    assert choose(asked) is None, "0.8 are left in the boost, and each device has 0.4"


def test_in_the_queue_a_whole_gpu_waits_until_the_parts_are_back() -> None:
    held = [
        lease(
            f"p{number}",
            kind="gpu",
            units=6_000,
            delivery=Delivery.RESERVE,
            expires_at=NOON + timedelta(minutes=10 + number),
        )
        for number in (1, 2)
    ]
    waiting = Waiting("w", ask("gpu-master", "gpu", 0.8), NOON)
    nodes = NodeTable([TARGET, SPLIT])
    (verdict,) = plan_queue([waiting], nodes, held, Usage.of(held), lambda _: NO_RULES, NOON)
    assert verdict.grant is None
    assert verdict.expected_start == NOON + timedelta(minutes=11)


# -- tried, and later ----------------------------------------------------------------------------------------


def of_a_gpu(id: str, minutes: float, amount: float = 0.6) -> Lease:
    """A lease on a part of a GPU that ends so many minutes after noon."""
    end = NOON + timedelta(minutes=minutes)
    old = {"expires_at": end, "age_s": 3600.0, "priority": AllocationPriority.LOW}
    return lease(id, kind="gpu", amount=amount, delivery=Delivery.RESERVE, **old)


HELD = tuple(of_a_gpu(f"p{number}", 10 * number) for number in range(1, 5))
FOUR = node("gpu1", cpus=8, gpus=4, used=amounts(gpu=2.4), gpu_parts=(6_000,) * 4)
"""Each of its GPUs is held in part."""


def test_a_part_that_is_tried_in_a_snapshot_is_on_one_device() -> None:
    one = node("gpu1", gpus=2, used=amounts(gpu=0.6), gpu_parts=(6_000,))
    capacity = Snapshot(NodeTable([TARGET, one]), Usage())
    with capacity.trying():
        granted = plan_grant(ask("gpu-master", "gpu", 0.6), capacity, capacity.usage)
        assert isinstance(granted, Grant)
        capacity.add(granted)
        assert isinstance(plan_grant(ask("gpu-master", "gpu", 0.8), capacity, capacity.usage), Refused)
    assert isinstance(plan_grant(ask("gpu-master", "gpu", 0.8), capacity, capacity.usage), Grant)


def test_a_part_that_comes_back_in_a_snapshot_frees_its_device() -> None:
    capacity = Snapshot(NodeTable([TARGET, FOUR]), Usage.of(HELD), HELD)
    two = ask("gpu-master", "gpu", 2)
    with capacity.trying():
        capacity.give_back(HELD[:1])
        assert isinstance(plan_grant(two, capacity, capacity.usage), Refused), "one whole GPU and three parts of 0.4"
        capacity.give_back(HELD[1:2])
        assert isinstance(plan_grant(two, capacity, capacity.usage), Grant)
    assert capacity["gpu1"] == FOUR


def test_as_many_leases_yield_to_whole_gpus_as_hold_a_device_each() -> None:
    urgent = ask("gpu-master", "gpu", 2, priority=AllocationPriority.HIGH)
    capacity = Snapshot(NodeTable([TARGET, FOUR]), Usage.of(HELD), HELD)
    found = plan_preemption(urgent, capacity, NO_RULES, POLICIES[SharingPolicy.BALANCED], NOON)
    assert found is not None
    assert len(found.victims) == 2


def test_a_lender_takes_back_as_many_leases_as_hold_the_devices_that_it_needs() -> None:
    capacity = Snapshot(NodeTable([TARGET, FOUR]), Usage.of(HELD), HELD)
    assert len(plan_relief("gpu1", [(amounts(gpu=2),)], capacity, POLICIES[SharingPolicy.BALANCED], NOON)) == 2


def test_a_lender_takes_back_no_part_that_is_on_another_device_than_it_needs() -> None:
    """Its own work has 0.7 beside `small` on one device, and 0.4 beside `half` on the other."""
    held = (of_a_gpu("small", 10, 0.2), of_a_gpu("half", 10, 0.5))
    full = node("gpu1", gpus=2, used=amounts(gpu=1.8), gpu_parts=(2_000, 4_000, 5_000, 7_000))
    capacity = Snapshot(NodeTable([TARGET, full]), Usage.of(held), held)
    assert plan_relief("gpu1", [(amounts(gpu=0.7),)], capacity, POLICIES[SharingPolicy.BALANCED], NOON) == {
        "half": 5_000
    }


def test_a_lender_takes_back_no_part_beside_one_whose_return_empties_a_device() -> None:
    """Once `half` is back, the other three parts are on one device, and two devices are free."""
    held = (of_a_gpu("small", 10, 0.3), of_a_gpu("half", 10, 0.5))
    full = node("gpu1", gpus=3, used=amounts(gpu=1.4), gpu_parts=(3_000, 3_000, 3_000, 5_000))
    capacity = Snapshot(NodeTable([TARGET, full]), Usage.of(held), held)
    assert plan_relief("gpu1", [(amounts(gpu=2),)], capacity, POLICIES[SharingPolicy.BALANCED], NOON) == {"half": 5_000}


def test_whole_gpus_are_expected_when_as_many_devices_are_free() -> None:
    waiting = Waiting("w", ask("gpu-master", "gpu", 2), NOON)
    (verdict,) = plan_queue([waiting], NodeTable([TARGET, FOUR]), HELD, Usage.of(HELD), lambda _: NO_RULES, NOON)
    assert (verdict.grant, verdict.expected_start) == (None, NOON + timedelta(minutes=20))


def test_a_part_that_is_promised_for_later_is_on_one_device_then() -> None:
    """From 12:10 both GPUs are free; the first two requests take a part of each, which leaves no 0.8 on either."""
    held = lease("all", kind="gpu", amount=2, delivery=Delivery.RESERVE, expires_at=NOON + timedelta(minutes=10))
    both = node("gpu1", cpus=8, gpus=2, used=amounts(gpu=2))
    queue = [Waiting(f"w{number}", ask("gpu-master", "gpu", 0.6), NOON) for number in (1, 2)]
    queue.append(Waiting("w3", ask("gpu-master", "gpu", 0.8), NOON))
    found = plan_queue(queue, NodeTable([TARGET, both]), [held], Usage.of([held]), lambda _: NO_RULES, NOON)
    begins = [verdict.expected_start for verdict in found]
    assert begins == [NOON + timedelta(minutes=10)] * 2 + [NOON + timedelta(minutes=70)]


@pytest.mark.parametrize(
    ("parts", "used", "asked", "short"),
    [
        ((0.6, 0.6, 0.6), 1.8, (0.4,), 0),
        ((0.6, 0.6, 0.6), 1.8, (0.8,), 0.4),
        ((0.6, 0.6, 0.6), 1.8, (0.4, 0.4, 0.4), 0),
        ((0.6, 0.6, 0.6), 1.8, (0.4, 0.4, 0.4, 0.4), 0.4),
        ((0.6, 0.6, 0.6), 1.8, (2,), 1.2),  # two of the parts have to leave
        ((0.6,), 0.6, (2, 0.4), 0),
        ((0.6,), 0.6, (2, 0.6), 0.2),
        ((), 1, (2, 0.4), 0.4),
    ],
)
def test_a_node_is_short_of_what_has_to_come_back_to_its_devices(
    parts: tuple[float, ...], used: float, asked: tuple[float, ...], short: float
) -> None:
    held = tuple(amounts(gpu=part)["gpu"] for part in parts)
    one = node("gpu1", gpus=3, used=amounts(gpu=used), gpu_parts=held)
    assert short_of(one, *(amounts(gpu=each) for each in asked)) == amounts(gpu=short)
