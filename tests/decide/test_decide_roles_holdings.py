"""What is held on a node for which units of a plan."""

from typing import Any

import pytest
from builders import amounts, place, workload

from distributed_grid.decide.roles import holdings, plan_workload
from distributed_grid.model.roles.plan import Holding, Inventory, InventoryNode, Placement
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload


def held(load: Workload, *nodes: InventoryNode) -> tuple[Holding, ...]:
    found = plan_workload(load, Inventory(nodes))
    assert isinstance(found, Placement), found
    return holdings(found.units, load)


def names(one: Holding) -> list[str]:
    return ["+".join(m.role for m in unit.members) + f" {unit.index}" for unit in one.units]


def role(name: str, **of_it: Any) -> RoleSpec:
    return RoleSpec(name, **of_it)


def test_actors_on_one_node_share_one_holding_and_its_sum() -> None:
    load = workload(role("worker", count=3), role("trainer", cpus=2, gpus=2), role("loader", cpus=0.5))

    (one,) = held(load, place("n1", cpus=8, gpus=2))

    assert names(one) == ["worker 0", "worker 1", "worker 2", "trainer 0", "loader 0"]
    assert one.resources == amounts(cpu=5.5, gpu=2)
    assert (one.node, one.pool) == ("n1", None)


def test_roles_in_one_process_count_once() -> None:
    group = {"colocation_group": "g", "count": 2}
    load = workload(role("a", **group), role("b", cpus=2, **group), role("c"))

    (one,) = held(load, place("n1"))

    assert names(one) == ["a+b 0", "a+b 1", "c 0"]
    assert one.resources == amounts(cpu=5)


def test_each_node_has_its_own() -> None:
    load = workload(role("worker", count=4, placement="spread"))

    found = held(load, place("n1"), place("n2"))

    assert [(one.node, names(one)) for one in found] == [
        ("n1", ["worker 0", "worker 1"]),
        ("n2", ["worker 2", "worker 3"]),
    ]


def test_each_pool_has_its_own_and_none_is_one_as_well() -> None:
    pools = (Pool("p", num_cpus=4), Pool("q", num_cpus=4))
    load = workload(role("a", pool="q"), role("b", pool="p"), role("c"), role("d", pool="q"), pools=pools)

    found = held(load, place("n1"))

    assert [(one.pool, names(one)) for one in found] == [(None, ["c 0"]), ("p", ["b 0"]), ("q", ["a 0", "d 0"])]


@pytest.mark.parametrize("gpus", [0.25, 0.5])
def test_parts_of_a_gpu_are_held_alone(gpus: float) -> None:
    """Of two parts in one holding, one could be on another device."""
    load = workload(role("worker"), role("judge", gpus=gpus, count=2))

    found = held(load, place("n1", gpus=1))

    assert [names(one) for one in found] == [["worker 0"], ["judge 0"], ["judge 1"]]
    assert [one.resources["gpu"] for one in found] == [0, gpus * 10_000, gpus * 10_000]


def test_a_bundle_is_held_alone_even_without_gpus() -> None:
    group = {"colocation_group": "g", "colocation": "bundle", "count": 2}
    load = workload(role("a", **group), role("b", **group), role("c", count=2))

    found = held(load, place("n1"))

    assert [names(one) for one in found] == [["c 0", "c 1"], ["a+b 0"], ["a+b 1"]]
    assert found[1].resources == amounts(cpu=2)


def test_members_beyond_the_least_are_held_one_by_one() -> None:
    load = workload(role("trainer"), role("worker", count=(2, 4)))

    found = held(load, place("n1"))

    assert [names(one) for one in found] == [["trainer 0", "worker 0", "worker 1"], ["worker 2"], ["worker 3"]]


def test_a_process_that_may_end_is_held_alone() -> None:
    group = {"colocation_group": "g", "count": (1, 2)}
    load = workload(role("a", **group), role("b", **group))

    assert [names(one) for one in held(load, place("n1"))] == [["a+b 0"], ["a+b 1"]]


def test_a_unit_that_needs_nothing_has_an_empty_holding() -> None:
    (one,) = held(workload(role("watcher", cpus=0)), place("n1"))

    assert not one.resources and names(one) == ["watcher 0"]
