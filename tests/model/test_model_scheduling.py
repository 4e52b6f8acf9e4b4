"""What a task may ask for, and how it is written."""

from typing import Any

import pytest
from builders import amounts

from distributed_grid.errors import InvalidAmount, InvalidRequest
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.scheduling import (
    Affinity,
    PlacedBy,
    Placement,
    SchedulingDecision,
    SchedulingRequest,
    SchedulingStrategy,
)


def test_strategies_and_priorities_are_taken_as_members_or_as_lower_case_names() -> None:
    for strategy in (SchedulingStrategy.BEST_FIT, "best_fit", "best-fit", "Best-Fit"):
        assert SchedulingRequest(strategy=strategy).strategy is SchedulingStrategy.BEST_FIT
    for priority in (AllocationPriority.HIGH, "high"):
        assert SchedulingRequest(priority=priority).priority is AllocationPriority.HIGH
    assert SchedulingRequest(strategy="my-own").strategy == "my_own"


def test_a_task_is_for_its_own_node_first_and_one_that_names_a_node_for_that() -> None:
    assert SchedulingRequest().strategy is SchedulingStrategy.LOCAL_FIRST
    assert SchedulingRequest(node="gpu1").strategy is SchedulingStrategy.NODE_SPECIFIC
    assert SchedulingRequest(node="gpu1").only_node == "gpu1"
    assert SchedulingRequest(target="gpu2", strategy="node-specific").only_node == "gpu2"
    assert SchedulingRequest(target="gpu2").only_node is None


def test_what_it_needs_is_in_units_and_leaves_out_what_it_does_not_need() -> None:
    asked = SchedulingRequest(cpu=0, memory=1.5, gpu=1, custom={"widget": 2})
    assert asked.needs == amounts(memory=1.5, gpu=1, widget=2)
    assert list(asked.amounts) == ["gpu", "memory", "widget"]


def test_an_affinity_may_be_written_as_a_mapping() -> None:
    asked = SchedulingRequest(
        affinity={"nodes": ["a", "a"], "labels": {"zone": 1}}, anti_affinity=Affinity(tasks=["x"])
    )
    assert asked.near == Affinity(nodes=("a",), labels={"zone": "1"})
    assert asked.far.tasks == ("x",)
    assert not SchedulingRequest().near


@pytest.mark.parametrize(
    "given",
    [
        {"cpu": -1},
        {"cpu": float("nan")},
        {"cpu": "many"},
        {"cpu": 0},
        {"gpu": -0.5},
        {"custom": {"cpu": 1}},
        {"custom": {"": 1}},
        {"count": 0},
        {"count": 1.5},
        {"count": 10**6},
        {"deadline_seconds": 0},
        {"duration_seconds": -1},
        {"priority": "urgent"},
        {"strategy": 3},
        {"tags": "one"},
        {"task_id": "a\nb"},
        {"task_id": "a/b"},
        {"affinity": {"node": "a"}},
        {"affinity": ["a"]},
        {"anti_affinity": {"labels": "zone"}},
        {"node": "a", "strategy": "spread"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_when_it_is_written(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        SchedulingRequest(**given)


def test_a_decision_is_true_if_there_is_a_place_and_shows_the_first() -> None:
    first = Placement("a", PlacedBy.BOOST, "b", boost_id="b1", placement_group="g")
    decision = SchedulingDecision("t", True, members=(first, Placement("b", PlacedBy.RESERVE, "b", "l1")))
    assert decision
    assert (decision.node, decision.delivery, decision.boost_id, decision.placement_group) == ("a", "boost", "b1", "g")
    rejected = SchedulingDecision("t", False, reasons=("a: full",))
    assert not rejected
    assert rejected.node is rejected.delivery is rejected.lease_id is None


def test_a_task_needs_a_fraction_of_one_gpu_or_whole_gpus() -> None:
    with pytest.raises(InvalidAmount, match=r"1\.5 GPUs: Ray gives out a fraction of one GPU, or whole GPUs"):
        SchedulingRequest(gpu=1.5)
