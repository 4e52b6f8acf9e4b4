"""Why something waits in Ray's queues."""

from datetime import timedelta

import pytest
from builders import NOON, amounts, node
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.decide.monitoring.demand import explain_demand, only_node, seen_since, wanted_from
from distributed_grid.decide.rebalance.observed import gap
from distributed_grid.model.demand import Bundle, Demand, LabelConstraint, Pending, Pin, Shape, WaitReason
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.resources import ResourceVector, describe


def named(name: str, **others: object) -> Node:
    return node(name, labels={"grid/name": name}, **others)


NODES = NodeTable(
    [named("head", cpus=4), named("gpu1", cpus=8, gpus=1, used=amounts(cpu=6)), named("gpu2", cpus=8, gpus=1)]
)


def task(needs: ResourceVector, *places: str, is_in: bool = True) -> Shape:
    selector = (LabelConstraint("grid/name", places, is_in=is_in),)
    return Shape((Bundle(needs, (selector,) if places else ()),))


def pinned(needs: ResourceVector, *names: str, by: str = "its scheduling strategy") -> Shape:
    return Shape((Bundle(needs, pin=Pin(by, names)),))


def group(strategy: str, *needs: ResourceVector) -> Shape:
    return Shape(tuple(Bundle(one) for one in needs), strategy=strategy)


def why(shape: Shape, nodes: NodeTable = NODES) -> Demand:
    (found,) = explain_demand([Pending(shape, 1)], nodes, {}, now=NOON)
    return found


def test_what_a_busy_node_could_carry_waits_for_capacity_and_is_told_what_is_free() -> None:
    found = why(task(amounts(cpu=4), "gpu1"))

    assert found.reason is WaitReason.CAPACITY
    assert found.detail == "gpu1 has 2 CPUs of 4 CPUs free"
    assert found.could_run_on == found.wanted_on == ("gpu1",)


def test_of_several_nodes_the_one_that_comes_nearest_is_named() -> None:
    busy = NodeTable([named("a", cpus=8, used=amounts(cpu=7)), named("b", cpus=8, used=amounts(cpu=5))])

    assert why(task(amounts(cpu=4)), busy).detail == "b has 3 CPUs of 4 CPUs free"


THREE = named("gpu3", gpus=3, used=amounts(gpu=1.8), gpu_parts=(6_000, 6_000, 6_000))
"""Each of its devices has 0.4 free."""


@pytest.mark.parametrize(
    ("needs", "detail"),
    [
        (amounts(gpu=0.4), "gpu3 has room by now"),
        (amounts(gpu=0.8), "gpu3 has 1.2 GPUs free, but only 0.4 GPUs on one device"),
        (amounts(gpu=1), "gpu3 has 1.2 GPUs free, but only 0 GPUs as whole devices"),
        (amounts(gpu=2), "gpu3 has 1.2 GPUs of 2 GPUs free"),
    ],
)
def test_what_is_free_in_parts_is_no_room_for_more_than_one_device_has(needs: ResourceVector, detail: str) -> None:
    assert why(task(needs, "gpu3"), NodeTable([THREE])).detail == detail
    assert bool(gap(task(needs), THREE)) == ("room" not in detail)


@pytest.mark.parametrize(
    ("shape", "detail"),
    [
        (task(amounts(cpu=100)), "no node has more than 8 CPUs"),
        (task(amounts(cpu=8), "head"), "its labels match only head, which has 4 CPUs"),
        (task(amounts(cpu=1), "gpu9"), "no node has these labels"),
        (task(amounts(cpu=1, tpu=1)), "no node has tpu"),
        (task(amounts(gpu=1), "gpu1", "gpu2", is_in=False), "its labels match only head, which has 0 GPUs"),
        (
            task(amounts(cpu=9), "gpu1", "gpu2"),
            "its labels match only nodes that are too small (gpu1, gpu2): none has more than 8 CPUs",
        ),
        (pinned(amounts(cpu=6), "head"), "its scheduling strategy matches only head, which has 4 CPUs"),
        (pinned(amounts(gpu=1), by="accelerator_type:H200"), "no node has accelerator_type:H200"),
        (group("STRICT_SPREAD", *[amounts(cpu=8)] * 3), "it needs 3 nodes, and 2 are large enough"),
        (group("STRICT_PACK", *[amounts(cpu=4)] * 3), "one node must hold all of it: no node has more than 8 CPUs"),
        (group("PACK", *[amounts(cpu=8)] * 3), "all nodes together have 16 CPUs of 24 CPUs"),
    ],
)
def test_what_no_node_will_ever_carry_is_infeasible_and_says_why(shape: Shape, detail: str) -> None:
    found = why(shape)

    assert (found.reason, found.detail, found.could_run_on) == (WaitReason.INFEASIBLE, detail, ())


def test_where_no_kind_is_short_alone_it_is_all_of_it_at_once() -> None:
    nodes = NodeTable([named("cores", cpus=16, gpus=0), named("gpus", cpus=2, gpus=4)])

    assert why(task(amounts(cpu=8, gpu=1)), nodes).detail == "no node has all of it at once"


def test_a_node_never_has_room_for_more_parts_of_gpus_than_its_devices_take() -> None:
    two = NodeTable([named("gpus", gpus=2)])
    parts = why(group("STRICT_PACK", *[amounts(gpu=0.6)] * 3), two)

    assert (parts.reason, parts.detail) == (
        WaitReason.INFEASIBLE,
        "one node must hold all of it: no node has room for 3 x 0.6 GPUs, each on one device",
    )
    assert why(group("STRICT_PACK", *[amounts(gpu=0.5)] * 3), two).reason is WaitReason.CAPACITY


def test_all_nodes_together_never_have_room_for_more_parts_of_gpus_than_devices_take() -> None:
    two = NodeTable([named("gpu1", gpus=1), named("gpu2", gpus=1)])
    parts = why(group("PACK", *[amounts(gpu=0.6)] * 3), two)

    assert (parts.reason, parts.detail, parts.could_run_on) == (
        WaitReason.INFEASIBLE,
        "all nodes together have 2 GPUs, and no room for 3 x 0.6 GPUs, each on one device",
        (),
    )
    assert why(group("PACK", *[amounts(gpu=0.6)] * 2, amounts(gpu=0.4)), two).reason is WaitReason.CAPACITY


def test_borrowed_capacity_counts() -> None:
    nodes = NodeTable([named("head", cpus=4, borrowed=amounts(cpu=4), used=amounts(cpu=8))])

    assert why(task(amounts(cpu=8)), nodes).reason is WaitReason.CAPACITY


def test_a_node_that_is_down_can_carry_nothing() -> None:
    nodes = NodeTable([named("head", cpus=4), named("gpu1", cpus=8, alive=False)])

    assert why(task(amounts(cpu=8)), nodes).reason is WaitReason.INFEASIBLE


def test_a_group_for_whose_bundles_there_is_room_one_by_one() -> None:
    assert why(group("STRICT_SPREAD", *[amounts(cpu=2)] * 3)).detail == (
        "there is room for each of its bundles alone, but not for all"
    )


def test_what_waits_inside_a_group_waits_for_that() -> None:
    inside = Shape((Bundle(amounts(cpu=1)),), in_group="6ec788e711340be3")

    assert why(inside).detail == "its placement group is in use"
    assert inside.describe() == "1 CPU in placement group 6ec788e7"


def test_it_has_waited_for_as_long_as_it_was_seen_without_a_break() -> None:
    early, late = task(amounts(cpu=1)), task(amounts(cpu=2))
    minute = timedelta(minutes=1)

    first = seen_since([Pending(early, 3)], {}, now=NOON)
    then = seen_since([Pending(early, 1), Pending(late, 1)], first, now=NOON + minute)
    gone = seen_since([Pending(late, 1)], then, now=NOON + 2 * minute)
    again = seen_since([Pending(early, 1), Pending(late, 1)], gone, now=NOON + 3 * minute)
    found = explain_demand([Pending(early, 1), Pending(late, 1)], NODES, again, now=NOON + 4 * minute)

    assert [(d.pending.shape, d.waited(NOON + 4 * minute)) for d in found] == [(late, 3 * minute), (early, minute)]
    assert found[0].waited(NOON - minute) == timedelta()  # a clock that was put back


def test_what_waits_for_long_though_there_is_room_says_what_may_keep_it() -> None:
    shape = task(amounts(cpu=1))
    since = {shape: NOON - timedelta(minutes=1)}
    (found,) = explain_demand([Pending(shape, 1)], NODES, since, now=NOON)

    assert why(shape).detail == "gpu1 has room by now"
    assert found.detail.startswith("gpu1 has room by now, but Ray has not placed it there")
    assert "NodeLabelSchedulingStrategy" in found.detail


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    wanted=st.integers(1, 9),
    chosen=st.sets(st.integers(0, 4)),
    by_labels=st.booleans(),
)
def test_a_pin_is_read_the_same_however_it_was_made(
    sizes: list[int], wanted: int, chosen: set[int], by_labels: bool
) -> None:
    nodes = NodeTable([named(f"n{i}", cpus=cpus) for i, cpus in enumerate(sizes)])
    places = [f"n{i}" for i in sorted(chosen) if i < len(sizes)]
    shape = task(amounts(cpu=wanted), *places or ["nowhere"]) if by_labels else pinned(amounts(cpu=wanted), *places)

    found = why(shape, nodes)

    large = [name for name in places if nodes[name].total["cpu"] >= amounts(cpu=wanted)["cpu"]]
    assert found.could_run_on == tuple(large)
    assert (found.reason is WaitReason.INFEASIBLE) == (not large)
    assert found.wanted_on == (() if len(places) == len(sizes) else tuple(places))
    if len(places) == 1 and len(sizes) > 1:
        assert only_node(found) == places[0]
        assert large or f"only {places[0]}, which has {describe('cpu', nodes[places[0]].total['cpu'])}" in found.detail


def test_a_node_is_wanted_by_what_is_pinned_to_it_and_by_what_only_it_can_carry() -> None:
    held, large, anywhere = task(amounts(cpu=1), "gpu1"), task(amounts(cpu=6), "head", "gpu1"), task(amounts(cpu=1))
    found = explain_demand([Pending(shape, 1) for shape in (held, large, anywhere)], NODES, {}, now=NOON)

    assert {demand.pending.shape for demand in wanted_from(found, "gpu1")} == {held, large}
    assert not wanted_from(found, "gpu2")


def test_shapes_are_reported_in_words() -> None:
    assert task(amounts(cpu=2), "gpu1").describe() == "2 CPUs where grid/name=gpu1"
    assert task(amounts(gpu=1), "a", "b", is_in=False).describe() == "1 GPU where grid/name!=a|b"
    assert group("SPREAD", amounts(cpu=8), amounts(cpu=8), amounts(gpu=1)).describe() == (
        "placement group, SPREAD: 2 x (8 CPUs); 1 GPU"
    )
