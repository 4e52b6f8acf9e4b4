"""What Ray's options say about where work goes, and how that is changed."""

from typing import Any

import pytest
import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
)

from distributed_grid.capture.inside_lease.options import requested_by, says_nothing, written
from distributed_grid.capture.inside_lease.standins import StandIn
from distributed_grid.capture.inside_lease.strategies import (
    AsItIs,
    InGroup,
    Inside,
    Labelled,
    Need,
    NoGroup,
    OnNode,
    Outside,
    Requested,
)

LEASE = PlacementGroup(ray.PlacementGroupID.from_random(), [{"CPU": 4.0}])
OTHER = PlacementGroup(ray.PlacementGroupID.from_random(), [{"CPU": 1.0}])
NODE = "ab" * 28
IN, OUT = Inside("asked", "why"), Outside("asked", "why")


def in_group(group: Any, index: int = -1, captures: bool | None = None) -> dict[str, Any]:
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, index, captures)}


@pytest.mark.parametrize(
    ("options", "requested"),
    [
        ({}, Requested()),
        ({"num_cpus": 2, "resources": {"widget": 1}}, Requested()),
        ({"memory": 2**20}, Requested(memory=True)),
        ({"scheduling_strategy": "SPREAD"}, Requested("SPREAD")),
        ({"placement_group": None}, Requested(NoGroup())),
        ({"placement_group_capture_child_tasks": False}, Requested(NoGroup())),
        (in_group(None), Requested(NoGroup())),
        (in_group(OTHER, 0), Requested(InGroup(OTHER.id.hex()))),
        ({"placement_group": OTHER}, Requested(InGroup(OTHER.id.hex()))),
        ({"scheduling_strategy": NodeAffinitySchedulingStrategy(NODE, soft=True)}, Requested(OnNode(NODE, soft=True))),
        (
            {
                "scheduling_strategy": NodeLabelSchedulingStrategy(
                    {"a": In("x"), "b": NotIn("y"), "c": Exists(), "d": DoesNotExist()}, soft={"e": In("z")}
                )
            },
            Requested(
                Labelled(
                    (
                        Need("a", frozenset("x")),
                        Need("b", frozenset("y"), negated=True),
                        Need("c", None),
                        Need("d", None, negated=True),
                    )
                )
            ),
        ),
        (
            {"label_selector": {"a": "x"}, "fallback_strategy": [{"label_selector": {"a": "y"}}]},
            Requested(selectors=((Need("a", frozenset("x")),), (Need("a", frozenset("y")),))),
        ),
        (
            {"accelerator_type": "A100", "resources": {"node:10.0.0.1": 0.1, "widget": 1}},
            Requested(pins=("node:10.0.0.1", "accelerator_type:A100")),
        ),
    ],
)
def test_conditions_are_read_from_all_options_that_have_them(options: dict[str, Any], requested: Requested) -> None:
    assert requested_by(options) == requested


def test_most_options_say_nothing_about_where() -> None:
    assert says_nothing(
        {"num_cpus": 2, "num_gpus": 1, "name": "f", "scheduling_strategy": None, "label_selector": None}
    )
    assert not says_nothing({"placement_group": None})
    assert not says_nothing({"label_selector": {"a": "x"}})


def test_what_goes_inside_loses_only_what_said_where() -> None:
    options = {
        "num_cpus": 2,
        "scheduling_strategy": "SPREAD",
        "label_selector": {"a": "x"},
        "accelerator_type": "A100",
        "placement_group": None,
        "resources": {"node:10.0.0.1": 0.1, "widget": 1},
        "memory": 2**20,
    }

    new = written(options, IN, LEASE, memory=False)

    strategy = new.pop("scheduling_strategy")
    assert (strategy.placement_group, strategy.placement_group_bundle_index) == (LEASE, -1)
    assert strategy.placement_group_capture_child_tasks
    assert new == {"num_cpus": 2, "resources": {"widget": 1}}
    assert written(options, IN, LEASE)["memory"] == 2**20  # where the lease has some


def test_what_goes_outside_is_not_captured_by_ray() -> None:
    pinned = {"label_selector": {"a": "x"}}
    affine = {"scheduling_strategy": NodeAffinitySchedulingStrategy(NODE, soft=False)}

    assert written(pinned, OUT, LEASE) == pinned | {"scheduling_strategy": "DEFAULT"}
    assert written(affine, OUT, LEASE) == affine
    assert written({"placement_group": OTHER}, OUT, LEASE) == {"placement_group": OTHER}


def test_what_says_nothing_is_left_as_it_is() -> None:
    assert written({"num_cpus": 2}, AsItIs(), LEASE) == {"num_cpus": 2}


@pytest.mark.parametrize(("index", "becomes"), [(-1, -1), (0, -1), (1, -1), (2, 2)])
def test_every_bundle_of_a_program_s_group_is_the_lease_s_only_one(index: int, becomes: int) -> None:
    own = StandIn(LEASE.id, [{"CPU": 1}, {"CPU": 1}], "one")

    strategy = written(in_group(own, index), AsItIs(), LEASE)["scheduling_strategy"]

    assert strategy.placement_group is own  # Ray checks what is asked against the program's own bundles
    assert strategy.placement_group_bundle_index == becomes  # one that it does not have is for Ray to refuse
    assert strategy.placement_group_capture_child_tasks


@pytest.mark.parametrize("options", [{"placement_group_bundle_index": 3}, in_group(LEASE, 3)])
def test_any_bundle_of_the_current_group_is_the_lease_s_only_one(options: dict[str, Any]) -> None:
    """A program in a group of its own finds the lease as its current group, and knows how many bundles that has."""
    strategy = written(options, AsItIs(), LEASE)["scheduling_strategy"]

    assert (strategy.placement_group, strategy.placement_group_bundle_index) == (LEASE, -1)


def test_two_groups_of_a_program_are_two_though_both_are_the_lease() -> None:
    one, same, two = (StandIn(LEASE.id, [{"CPU": 1}], key) for key in ("one", "one", "two"))

    assert one == same != two
    assert {one: 1, two: 2}[same] == 1
    assert one == LEASE  # what a task in it finds as its current group


WIDE = PlacementGroup(ray.PlacementGroupID.from_random(), [{"CPU": 2.0}, {"CPU": 2.0}, {"CPU": 2.0}])
"""A lease on three nodes."""


@pytest.mark.parametrize(
    ("layout", "index", "becomes"),
    [
        ((2, 0), 0, 2),
        ((2, 0), 1, 0),
        ((2, 0), -1, -1),
        ((1, 1), -1, 1),
        ((1, 1), 1, 1),
        ((), 1, -1),
        ((2, 0), 2, 2),
    ],
    ids=["first", "second", "any of several", "any, all on one", "on one", "it waits", "for Ray to refuse"],
)
def test_a_bundle_of_a_program_s_group_is_the_lease_s_bundle_that_it_is_a_part_of(
    layout: tuple[int, ...], index: int, becomes: int
) -> None:
    own = StandIn(WIDE.id, [{"CPU": 1}, {"CPU": 1}], "one", layout=layout)

    strategy = written(in_group(own, index), AsItIs(), WIDE)["scheduling_strategy"]

    assert strategy.placement_group_bundle_index == becomes
    assert strategy.placement_group == own
    assert {"CPU": 2.0} not in strategy.placement_group.bundle_specs  # Ray checks against the program's own bundles
    if index < own.bundle_count:
        assert becomes < strategy.placement_group.bundle_count


def test_the_current_group_stands_for_any_bundle_but_a_program_may_name_one_of_the_lease_s() -> None:
    named = PlacementGroup(WIDE.id, WIDE.bundle_cache)

    def index_of(group: PlacementGroup, index: int) -> int:
        return int(written(in_group(group, index), AsItIs(), WIDE)["scheduling_strategy"].placement_group_bundle_index)

    assert [index_of(WIDE, index) for index in (-1, 0, 2, 7)] == [-1, -1, -1, -1]
    assert [index_of(named, index) for index in (-1, 0, 2, 7)] == [-1, 0, 2, -1]


def test_what_one_node_of_the_lease_satisfies_goes_into_its_bundle() -> None:
    strategy = written({"label_selector": {"a": "x"}}, IN, WIDE, bundle=1)["scheduling_strategy"]

    assert (strategy.placement_group, strategy.placement_group_bundle_index) == (WIDE, 1)
