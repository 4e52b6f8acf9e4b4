"""What is said where a workload has no room: why, what is missing, and what would help."""

import pytest
from builders import amounts, place, workload

from distributed_grid.decide.roles import plan_workload
from distributed_grid.errors import DoesNotFit as DoesNotFitError
from distributed_grid.model.roles.plan import DoesNotFit, Inventory, InventoryNode, Missing, Remedy, RemedyKind
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload

DOWN = "it is not connected to the cluster"


def refused(load: Workload, *nodes: InventoryNode) -> DoesNotFit:
    found = plan_workload(load, Inventory(nodes))
    assert isinstance(found, DoesNotFit)
    return found


def remedy(found: DoesNotFit, kind: RemedyKind) -> Remedy:
    return next(one for one in found.remedies if one.kind is kind)


@pytest.mark.parametrize(
    ("role", "nodes", "said"),
    [
        (RoleSpec("r"), [], "there are no nodes"),
        (RoleSpec("r", node_affinity=["gpuu1"]), [place("gpu1")], "there is no node gpuu1"),
        (RoleSpec("r"), [place("a", closed=DOWN)], f"none of the allowed nodes can be used: a: {DOWN}"),
        (
            RoleSpec("r", node_affinity=["zone=9"]),
            [place("a", labels={"zone": "1"})],
            "every node is excluded: r must be on zone=9",
        ),
        (RoleSpec("r", gpus=4), [place("a", gpus=2), place("b")], "no node has 4 GPUs free; the most is 2 GPUs, on a"),
        (RoleSpec("r", gpus=1), [place("a")], "no node has 1 GPU free; the most is 0 GPUs"),
        (
            RoleSpec("r", cpus=6, gpus=1),
            [place("a", cpus=8), place("b", cpus=4, gpus=1)],
            "no node has all of 1 GPU, 6 CPUs free: b lacks 2 CPUs, a lacks 1 GPU",
        ),
        (
            RoleSpec("r", cpus=5, count=2),
            [place("a", cpus=8)],
            "each needs 5 CPUs, and too little is left: a lacks 2 CPUs",
        ),
    ],
)
def test_the_reason_is_reported(role: RoleSpec, nodes: list[InventoryNode], said: str) -> None:
    (reason,) = refused(workload(role), *nodes).reasons

    assert reason.detail == said


def test_a_full_pool_is_reported() -> None:
    load = workload(RoleSpec("r", count=5, pool="p"), pools=(Pool("p", num_cpus=4),))
    found = refused(load, place())

    assert found.reasons[0].describe() == "r: 4 of 5 placed: the pool p has 0 of 4 CPUs left; each needs 1 CPU"
    assert found.certain
    assert found.missing == (Missing("p", "cpu", 10_000, in_pool=True),)
    assert "with 1 CPU more in the pool p, it fits" in [one.text for one in found.remedies]


@pytest.mark.parametrize(
    ("roles", "nodes", "missing"),
    [
        # One unit more where the least is lacking.
        ([RoleSpec("r", cpus=5, count=2)], [place("a", cpus=8)], [("a", "cpu", 2)]),
        # What is left on two nodes is used, rather than all being put on one.
        (
            [RoleSpec("r", cpus=4, count=4)],
            [place("a", cpus=7), place("b", cpus=7)],
            [("a", "cpu", 1), ("b", "cpu", 1)],
        ),
        # CPUs before GPUs, since they are had more easily.
        ([RoleSpec("r", cpus=6, gpus=1)], [place("a"), place("b", cpus=4, gpus=1)], [("b", "cpu", 2)]),
        # A part of a GPU takes a whole one more.
        ([RoleSpec("r", gpus=0.6, count=3)], [place("a", gpus=2)], [("a", "gpu", 1)]),
        ([RoleSpec("r", gpus=4)], [place("a", gpus=1)], [("a", "gpu", 3)]),
        ([RoleSpec("r", memory_gb=70)], [place("a", memory=64)], [("a", "memory", 6)]),
        ([RoleSpec("r", resources={"disk": 2})], [place("a", disk=1)], [("a", "disk", 1)]),
    ],
)
def test_the_smallest_amount_that_is_missing(
    roles: list[RoleSpec], nodes: list[InventoryNode], missing: list[tuple[str, str, float]]
) -> None:
    found = refused(workload(*roles), *nodes)

    expected = tuple(Missing(where, kind, amounts(**{kind: amount})[kind]) for where, kind, amount in missing)
    assert found.missing == expected


def test_nothing_is_missing_where_more_would_not_help() -> None:
    assert refused(workload(RoleSpec("r", node_affinity=["nowhere"])), place()).missing == ()


def test_the_role_to_shrink_and_to_how_many() -> None:
    load = workload(RoleSpec("worker", count=10), RoleSpec("trainer", cpus=4))
    found = refused(load, place(cpus=8))

    reported = [one for one in found.remedies if one.kind is RemedyKind.SHRINK]
    assert [(one.text, dict(one.counts)) for one in reported] == [
        ("with 4 instead of 10 of worker, it fits", {"worker": 4})
    ]


def test_colocated_roles_shrink_together() -> None:
    roles = [RoleSpec(name, count=5, colocation_group="g") for name in "ab"]

    assert remedy(refused(workload(*roles), place(cpus=3)), RemedyKind.SHRINK).counts == {"a": 3, "b": 3}


def test_what_fits_only_without_a_role_is_reported() -> None:
    load = workload(RoleSpec("huge", cpus=99), RoleSpec("small"))

    assert remedy(refused(load, place()), RemedyKind.SHRINK).text == "without huge, it fits"


def test_a_workload_of_one_role_is_not_told_to_be_without_it() -> None:
    assert [one.kind for one in refused(workload(RoleSpec("huge", cpus=99)), place()).remedies] == [RemedyKind.ADD]


def test_a_boost_that_helps_is_reported_as_a_command() -> None:
    nodes = [place("gpu1", cpus=4, gpus=1), place("cpu1", cpus=8, lends=amounts(cpu=6))]
    load = workload(RoleSpec("trainer", cpus=6, gpus=1))

    boost = remedy(refused(load, *nodes), RemedyKind.BOOST)

    assert boost.text == "if cpu1 lends gpu1 2 CPUs, it fits"
    assert boost.commands == ("grid boost request gpu1 cpu 2 --source cpu1 --delivery transfer",)


@pytest.mark.parametrize(
    "lender",
    [
        place("cpu1", cpus=8),
        place("cpu1", cpus=8, lends=amounts(cpu=1)),
        place("cpu1", cpus=1, lends=amounts(cpu=8)),
        place("cpu1", cpus=8, lends=amounts(cpu=8), closed=DOWN),
    ],
    ids=["lends nothing", "may lend too little", "has too little", "is down"],
)
def test_no_boost_is_suggested_that_no_node_could_give(lender: InventoryNode) -> None:
    found = refused(workload(RoleSpec("trainer", cpus=6, gpus=1)), place("gpu1", cpus=4, gpus=1), lender)

    assert RemedyKind.BOOST not in [one.kind for one in found.remedies]


def test_a_lender_needs_its_own_for_the_workload_first() -> None:
    nodes = [place("gpu1", cpus=4, gpus=1), place("cpu1", cpus=8, lends=amounts(cpu=8))]
    load = workload(RoleSpec("trainer", cpus=6, gpus=1), RoleSpec("worker", count=7, node_affinity=["cpu1"]))

    assert RemedyKind.BOOST not in [one.kind for one in refused(load, *nodes).remedies]


def test_gpus_are_not_moved_by_boosts() -> None:
    nodes = [place("a", cpus=8, gpus=1), place("b", cpus=8, gpus=1, lends=amounts(cpu=8, gpu=1))]

    assert RemedyKind.BOOST not in [one.kind for one in refused(workload(RoleSpec("r", gpus=2)), *nodes).remedies]


def test_where_all_ways_were_seen_it_is_certain() -> None:
    load = workload(RoleSpec("a", cpus=6, count=2), RoleSpec("b", cpus=3, count=2))

    assert refused(load, place("x", cpus=10), place("y", cpus=8)).certain, "18 of 18 CPUs, but 6 + 3 leaves 1"


def test_where_there_are_too_many_ways_it_says_that_none_was_found() -> None:
    load = workload(RoleSpec("a", cpus=9, count=13), RoleSpec("b", cpus=4, count=20))
    found = refused(load, *(place(f"n{number}", cpus=16) for number in range(13)))

    assert not found.certain and "no placement was found" in found.headline


def test_it_becomes_an_error_that_says_what_to_do() -> None:
    error = refused(workload(RoleSpec("r", cpus=5, count=2)), place("a", cpus=8)).error()

    assert isinstance(error, DoesNotFitError)
    assert (error.message, error.exit_code) == ("The workload run does not fit", 4)
    assert error.because == ("r: 1 of 2 placed: each needs 5 CPUs, and too little is left: a lacks 2 CPUs",)
    assert error.try_next == "with 2 CPUs more on a, it fits"
