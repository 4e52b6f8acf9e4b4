"""Which placement groups of a program are a part of its lease."""

import pytest

from distributed_grid.capture.inside_lease.own_groups import Plan, has_room, why_it_waits, why_never
from distributed_grid.capture.inside_lease.strategies import Place

LEASE = {"CPU": 4.0, "GPU": 1.0, "memory": float(8 * 2**30)}
PLACE = Place("aa" * 28, {"zone": "west"}, frozenset({"CPU", "GPU", "node:10.0.0.1"}))
CPU = {"CPU": 1.0}

FITS = {
    "as large as the lease": Plan([CPU] * 4),
    "several kinds": Plan([{"CPU": 2, "GPU": 1}, {"CPU": 2, "memory": 2**30}], "STRICT_PACK"),
    "spread, if it can be": Plan([CPU, CPU], "SPREAD"),
    "one bundle is strictly spread anywhere": Plan([CPU], "STRICT_SPREAD"),
    "tenths add up": Plan([{"CPU": 0.1}] * 40),
    "on nodes like the lease's": Plan([CPU], selectors=[{"zone": "in(west, east)"}]),
    "at the lease's node": Plan([{"CPU": 1, "node:10.0.0.1": 0.001}]),
    "with a name": Plan([CPU], name="trainers"),
    "detached": Plan([CPU], detached=True),
}
DOES_NOT = {
    "more than the lease": (Plan([CPU] * 5), "it asks for 5 CPU, and the lease has 4"),
    "what the lease has not": (Plan([{"widget": 1}]), "it asks for 1 widget, and the lease has 0"),
    "must be on several nodes": (Plan([CPU, CPU], "STRICT_SPREAD"), "its 2 bundles must be on different nodes"),
    "another kind of node": (Plan([CPU], selectors=[{"zone": "east"}]), "a bundle needs a node with zone=east"),
    "another node": (Plan([{"CPU": 1, "node:10.0.0.2": 0.001}]), "a bundle must be where node:10.0.0.2 is"),
    "a topology": (Plan([CPU], topology=True), "topology"),
    "for other programs": (Plan([CPU], detached=True, name="shared"), "other programs may look for it"),
}


@pytest.mark.parametrize("plan", FITS.values(), ids=FITS.keys())
def test_a_group_that_fits_on_the_lease_s_one_node_is_a_part_of_it(plan: Plan) -> None:
    assert why_never(plan, LEASE, PLACE) is None
    assert has_room(plan, LEASE, [])


@pytest.mark.parametrize(("plan", "reason"), DOES_NOT.values(), ids=DOES_NOT.keys())
def test_a_group_that_cannot_be_there_says_why(plan: Plan, reason: str) -> None:
    never = why_never(plan, LEASE, PLACE)
    assert never is not None
    assert reason in never.why


def test_memory_is_not_counted_where_the_lease_has_none() -> None:
    assert why_never(Plan([{"CPU": 1, "memory": 2**40}]), LEASE, PLACE)
    assert why_never(Plan([{"CPU": 1, "memory": 2**40}]), {"CPU": 4.0}, PLACE) is None


def test_what_the_program_s_other_groups_have_is_not_given_twice_but_waited_for() -> None:
    taken = [{"CPU": 2.0}, {"CPU": 1.0}]

    assert has_room(Plan([CPU]), LEASE, taken)
    assert not has_room(Plan([CPU, CPU]), LEASE, taken)
    assert why_never(Plan([CPU, CPU]), LEASE, PLACE) is None


@pytest.mark.parametrize(
    ("bundle", "taken", "why"),
    [
        ({"CPU": 2}, {"CPU": 3.0}, "it needs 2 CPU, the lease has 4, and other groups of the same process hold 3 "),
        ({"CPU": 2}, {"CPU": 3.0}, "or ask for a larger lease (--cpus 5)"),
        ({"memory": 2**33}, {"memory": 2.0**32}, "or ask for a larger lease (--memory 12)"),
        ({"GPU": 1}, {"GPU": 0.5, "CPU": 4.0}, "(remove_placement_group), or ask for a larger lease (--gpus 1.5)"),
    ],
)
def test_a_group_that_waits_says_what_for_and_what_would_help(
    bundle: dict[str, float], taken: dict[str, float], why: str
) -> None:
    said = why_it_waits(Plan([bundle]), LEASE, [taken])

    assert said is not None
    assert why in said
    assert why_it_waits(Plan([bundle]), LEASE, []) is None


@pytest.mark.parametrize(
    ("bundle", "advice"),
    [
        ({"CPU": 6.5}, "Ask for a larger lease (--cpus 6.5)"),
        ({"GPU": 2}, "Ask for a larger lease (--gpus 2)"),
        ({"memory": 9 * 2**30 + 1}, "Ask for a larger lease (--memory 9.1)"),
        ({"widget": 1}, ""),
    ],
)
def test_a_group_that_is_too_large_says_what_lease_it_needs(bundle: dict[str, float], advice: str) -> None:
    never = why_never(Plan([bundle]), LEASE, PLACE)

    assert never is not None
    assert never.advice == advice
