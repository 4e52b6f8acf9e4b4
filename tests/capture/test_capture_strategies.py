"""Where a task or an actor goes that says itself where it wants to be."""

import pytest

from distributed_grid.capture.inside_lease.strategies import (
    AsItIs,
    InGroup,
    Inside,
    Labelled,
    Need,
    NoGroup,
    OnNode,
    Outside,
    Place,
    Requested,
    needs_of,
    settle,
)

LEASE = "11" * 18
HERE, THERE = "aa" * 28, "bb" * 28
PLACE = Place(
    HERE,
    {"grid/name": "lender", "zone": "west"},
    frozenset({"CPU", "node:10.0.0.1", "accelerator_type:A100"}),
    {"CPU": 4.0},
)
ELSEWHERE = Place("cc" * 28, {"grid/name": "other", "zone": "north"}, frozenset({"node:10.0.0.3"}), {"CPU": 4.0}, 1)

AMONG = Need("zone", frozenset({"west"}))
NOT_AMONG = Need("zone", frozenset({"west"}), negated=True)

INSIDE = {
    "default strategy": Requested("DEFAULT"),
    "spread strategy": Requested("SPREAD"),
    "explicitly no group": Requested(NoGroup()),
    "pinned to the lease's node": Requested(OnNode(HERE, soft=False)),
    "would rather be elsewhere": Requested(OnNode(THERE, soft=True)),
    "labels that the lease's node has": Requested(Labelled((AMONG,))),
    "only soft labels": Requested(Labelled(())),
    "selector that the lease's node meets": Requested(selectors=((AMONG,),)),
    "one of several selectors will do": Requested(selectors=((NOT_AMONG,), (AMONG,))),
    "selector and spread": Requested("SPREAD", selectors=((AMONG,),)),
    "address of the lease's node": Requested(pins=("node:10.0.0.1",)),
    "kind of GPU that the lease's node has": Requested(pins=("accelerator_type:A100",)),
    "memory, where the lease has none to count": Requested(memory=True),
    "selector inside the lease's group": Requested(InGroup(LEASE), selectors=((AMONG,),)),
}
OUTSIDE = {
    "pinned to another node": Requested(OnNode(THERE, soft=False)),
    "labels that the lease's node has not": Requested(Labelled((AMONG, NOT_AMONG))),
    "selector that the lease's node does not meet": Requested(selectors=((NOT_AMONG,),)),
    "none of several selectors": Requested(selectors=((NOT_AMONG,), (Need("gone", None),))),
    "spread, but with a selector": Requested("SPREAD", selectors=((NOT_AMONG,),)),
    "address of another node": Requested(pins=("node:10.0.0.2",)),
    "another kind of GPU": Requested(pins=("accelerator_type:A100", "accelerator_type:H100")),
    "a group that is not the lease's": Requested(InGroup("22" * 18)),
}
AS_IT_IS = {
    "says nothing": Requested(),
    "in the lease's group": Requested(InGroup(LEASE)),
    "a strategy that Ray does not know": Requested("SOMEWHERE"),
}


@pytest.mark.parametrize("requested", INSIDE.values(), ids=INSIDE.keys())
def test_placement_that_the_lease_meets_or_may_waive_is_rewritten_with_a_reason(requested: Requested) -> None:
    settled = settle(requested, (PLACE,), LEASE)

    assert isinstance(settled, Inside)
    assert settled.wanted and settled.why


@pytest.mark.parametrize("requested", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_a_hard_condition_that_it_does_not_meet_stays_outside_with_a_reason(requested: Requested) -> None:
    settled = settle(requested, (PLACE,), LEASE)

    assert isinstance(settled, Outside)
    assert settled.wanted and settled.why


@pytest.mark.parametrize("requested", AS_IT_IS.values(), ids=AS_IT_IS.keys())
def test_what_ray_puts_into_the_lease_or_refuses_by_itself_is_left_to_ray(requested: Requested) -> None:
    assert settle(requested, (PLACE,), LEASE) == AsItIs()


def test_memory_is_counted_where_the_lease_has_some() -> None:
    assert settle(Requested(memory=True), (Place(HERE, amounts={"memory": 1.0}),), LEASE) == AsItIs()


def test_where_the_lease_is_may_be_unknown_then_only_what_names_no_place_is_rewritten() -> None:
    nowhere = (Place(),)

    assert isinstance(settle(Requested("SPREAD"), nowhere, LEASE), Inside)
    assert isinstance(settle(Requested(OnNode(THERE, soft=True)), nowhere, LEASE), Inside)
    assert isinstance(settle(Requested(OnNode(HERE, soft=False)), nowhere, LEASE), Outside)
    assert isinstance(settle(Requested(selectors=((AMONG,),)), nowhere, LEASE), Outside)


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ("west", True),
        ("east", False),
        ("!west", False),
        ("!east", True),
        ("in(east, west)", True),
        ("in(east,north)", False),
        ("!in(east, west)", False),
        ("!in(east)", True),
    ],
)
def test_selectors_are_read_as_ray_reads_them(condition: str, met: bool) -> None:
    (need,) = needs_of({"zone": condition})

    assert need.met_by(PLACE.labels) is met


def test_a_label_that_is_not_there_is_not_among_any_values() -> None:
    assert not needs_of({"gone": "x"})[0].met_by(PLACE.labels)
    assert needs_of({"gone": "!x"})[0].met_by(PLACE.labels)
    assert Need("gone", None, negated=True).met_by(PLACE.labels)
    assert Need("zone", None).met_by(PLACE.labels)


AT_ONE_OF_ITS_NODES = {
    "pinned to one of the lease's nodes": Requested(OnNode(HERE, soft=False)),
    "would rather be on one of them": Requested(OnNode(HERE, soft=True)),
    "labels that one of them has": Requested(Labelled((AMONG,))),
    "selector that one of them meets": Requested(selectors=((AMONG,),)),
    "address of one of them": Requested(pins=("node:10.0.0.1",)),
}


@pytest.mark.parametrize("requested", AT_ONE_OF_ITS_NODES.values(), ids=AT_ONE_OF_ITS_NODES.keys())
def test_a_condition_that_one_node_of_several_meets_leads_to_its_bundle(requested: Requested) -> None:
    settled = settle(requested, (ELSEWHERE, PLACE), LEASE)

    assert isinstance(settled, Inside)
    assert settled.bundles == (PLACE.index,)


@pytest.mark.parametrize(
    "requested",
    [Requested("SPREAD"), Requested(NoGroup()), Requested(OnNode(THERE, soft=True)), Requested(memory=True)],
)
def test_a_condition_that_all_its_nodes_meet_leads_to_any_bundle(requested: Requested) -> None:
    settled = settle(requested, (ELSEWHERE, PLACE), LEASE)

    assert isinstance(settled, Inside)
    assert settled.bundles == ()


@pytest.mark.parametrize("requested", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_a_condition_that_none_of_its_nodes_meets_stays_outside(requested: Requested) -> None:
    alike = Place("dd" * 28, PLACE.labels, PLACE.resources, index=1)
    assert isinstance(settle(requested, (PLACE, alike), LEASE), Outside)


def test_the_reason_names_all_nodes_of_the_lease() -> None:
    settled = settle(Requested(OnNode(THERE, soft=False)), (PLACE, ELSEWHERE), LEASE)

    assert isinstance(settled, Outside)
    assert settled.why == "the lease is on nodes lender, other"
