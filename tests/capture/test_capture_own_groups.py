"""Which placement groups of a program are a part of its lease."""

import pytest

from distributed_grid.capture.inside_lease.own_groups import Plan, fit, why_it_waits, why_never
from distributed_grid.capture.inside_lease.strategies import Place

LEASE = {"CPU": 4.0, "GPU": 1.0, "memory": float(8 * 2**30)}
PLACES = (Place("aa" * 28, {"zone": "west"}, frozenset({"CPU", "GPU", "node:10.0.0.1"}), LEASE),)
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
    assert why_never(plan, PLACES) is None
    assert fit(plan, PLACES, {}) == (0,) * len(plan.bundles)


@pytest.mark.parametrize(("plan", "reason"), DOES_NOT.values(), ids=DOES_NOT.keys())
def test_a_group_that_cannot_be_there_says_why(plan: Plan, reason: str) -> None:
    never = why_never(plan, PLACES)
    assert never is not None
    assert reason in never.why


def test_memory_is_not_counted_where_the_lease_has_none() -> None:
    assert why_never(Plan([{"CPU": 1, "memory": 2**40}]), PLACES)
    assert why_never(Plan([{"CPU": 1, "memory": 2**40}] * 2), [Place(amounts={"CPU": 4.0})]) is None


def test_what_the_program_s_other_groups_have_is_not_given_twice_but_waited_for() -> None:
    taken = {0: {"CPU": 3.0}}

    assert fit(Plan([CPU]), PLACES, taken) == (0,)
    assert fit(Plan([CPU, CPU]), PLACES, taken) is None
    assert why_never(Plan([CPU, CPU]), PLACES) is None


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
    said = why_it_waits(Plan([bundle]), PLACES, {0: taken})

    assert said is not None
    assert why in said
    assert why_it_waits(Plan([bundle]), PLACES, {}) is None


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
    never = why_never(Plan([bundle]), PLACES)

    assert never is not None
    assert never.advice == advice


def on_nodes(*cpus: float) -> tuple[Place, ...]:
    """A lease with a bundle of so many CPUs on each of several nodes, "a", "b", ..."""
    return tuple(
        Place(name, {"name": name}, frozenset({f"node:{name}"}), {"CPU": float(count)}, index)
        for index, (name, count) in enumerate(zip("abcdef", cpus, strict=False))
    )


def of(*cpus: float) -> list[dict[str, float]]:
    return [{"CPU": count} for count in cpus]


LAID_OUT = {
    "packed on few nodes": (Plan(of(1, 1)), on_nodes(2, 2), (0, 0)),
    "packed on the node with the most room": (Plan(of(1, 1, 1)), on_nodes(2, 4, 2), (1, 1, 1)),
    "each on a node, if it is large": (Plan(of(2, 2, 2)), on_nodes(2, 2, 2), (0, 1, 2)),
    "more bundles than nodes": (Plan(of(1, 1, 1, 1)), on_nodes(1, 1, 2), (2, 2, 0, 1)),
    "spread as far as it goes": (Plan(of(1, 1, 1, 1), "SPREAD"), on_nodes(2, 2, 2), (0, 1, 2, 0)),
    "strictly spread": (Plan(of(1, 1, 1), "STRICT_SPREAD"), on_nodes(4, 4, 4), (0, 1, 2)),
    "strictly packed": (Plan(of(1, 2), "STRICT_PACK"), on_nodes(2, 3), (1, 1)),
    "the large one first": (Plan(of(1, 3)), on_nodes(3, 1), (1, 0)),
    "another layout than the first that comes to mind": (Plan(of(2, 3, 2)), on_nodes(4, 3), (0, 1, 0)),
    "where its label is": (Plan(of(1), selectors=[{"name": "c"}]), on_nodes(1, 1, 1), (2,)),
    "where its address is": (Plan([{"CPU": 1, "node:b": 0.001}]), on_nodes(1, 1, 1), (1,)),
}


@pytest.mark.parametrize(("plan", "lease", "layout"), LAID_OUT.values(), ids=LAID_OUT.keys())
def test_each_bundle_of_a_group_becomes_a_part_of_one_bundle_of_the_lease(
    plan: Plan, lease: tuple[Place, ...], layout: tuple[int, ...]
) -> None:
    assert why_never(plan, lease) is None
    assert fit(plan, lease, {}) == layout


@pytest.mark.parametrize(
    ("plan", "reason", "advice"),
    [
        (Plan(of(3)), "a bundle asks for 3 CPU, and no node of the lease has so much", "--nodes 1"),
        (Plan(of(1, 2), "STRICT_PACK"), "all its bundles must be on one node", "--nodes 1"),
        (Plan(of(1, 1, 1, 1), "STRICT_SPREAD"), "on different nodes, and the lease is on 3", "--nodes 4"),
        (Plan(of(2, 2, 2, 2)), "it asks for 8 CPU, and the lease has 6", "--cpus 8"),
        (
            Plan(of(1.5, 1.5, 1.5, 1.5)),
            "its 4 bundles cannot be laid out (PACK) on the 3 nodes",
            "Ask for more on each",
        ),
        (Plan(of(1), selectors=[{"name": "z"}]), "a bundle needs a node with name=z", ""),
    ],
)
def test_a_group_that_no_layout_has_room_for_says_why_and_what_lease_would_do(
    plan: Plan, reason: str, advice: str
) -> None:
    never = why_never(plan, on_nodes(2, 2, 2))

    assert never is not None
    assert reason in never.why
    assert advice in never.advice


def test_a_group_waits_for_the_parts_of_the_nodes_that_others_hold() -> None:
    lease, taken = on_nodes(2, 2), {0: {"CPU": 1.0}, 1: {"CPU": 1.0}}

    assert fit(Plan(of(2)), lease, taken) is None
    assert "other groups of the same process hold" in str(why_it_waits(Plan(of(2)), lease, taken))
    assert fit(Plan(of(1, 1)), lease, taken) == (0, 1)
    assert fit(Plan(of(2)), lease, {0: {"CPU": 1.0}}) == (1,)
