"""Where the actors of a workload go: the documented plans, and each rule on its own."""

from collections import Counter
from typing import Any

import pytest
from builders import amounts, place, workload

from distributed_grid.decide.roles import plan_more, plan_workload, violations
from distributed_grid.model.roles.plan import DoesNotFit, Inventory, InventoryNode, Placement, UnitKind
from distributed_grid.model.roles.profiles import from_profile
from distributed_grid.model.roles.scaling import Scaling
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload


def planned(load: Workload, *nodes: InventoryNode) -> Placement:
    """The plan, which must be right."""
    found = plan_workload(load, Inventory(nodes))
    assert isinstance(found, Placement), found
    assert violations(found, load, Inventory(nodes)) == []
    return found


def per_node(found: Placement, role: str) -> dict[str, int]:
    return dict(Counter(found.nodes_of(role)))


def training(count: int, **of_all: Any) -> list[RoleSpec]:
    """A trainer with its pool and its weight sync in one process."""
    group = {"colocation_group": "training", "count": count, **of_all}
    return [
        from_profile("trainer_self_hosted", "trainer", **group),
        from_profile("trajectory_pool", **group),
        from_profile("weight_sync_controller", "weight_sync", **group),
    ]


# -- the documented plans ------------------------------------------------------------------------------------


def test_the_small_plan_fits_on_one_node() -> None:
    load = workload(
        from_profile("rollout_worker", count=8),
        *training(1),
        from_profile("data_loader"),
        from_profile("validator"),
    )

    found = planned(load, place("dev", cpus=16, gpus=1))

    assert len(found.units) == 8 + 1 + 1 + 1
    used = Inventory([place("dev", cpus=16, gpus=1)])["dev"].free - left(found, place("dev", cpus=16, gpus=1))
    assert used == amounts(cpu=14, gpu=1), "the document counts the colocated ones as well, and says 16"


def left(found: Placement, node: InventoryNode) -> Any:
    free = node.free
    for unit in found.by_node.get(node.name, ()):
        free = free - unit.resources
    return free


def test_the_medium_plan_is_even_over_four_nodes() -> None:
    nodes = [place(f"n{i}", cpus=32, gpus=2) for i in range(4)]
    load = workload(
        from_profile("rollout_worker", count=64, placement="spread"),
        *training(4, placement="spread"),
        from_profile("data_loader", count=4, placement="spread"),
        from_profile("validator", count=4, placement="spread"),
    )

    found = planned(load, *nodes)

    for role, each in (("rollout_worker", 16), ("trainer", 1), ("data_loader", 1), ("validator", 1)):
        assert per_node(found, role) == {f"n{i}": each for i in range(4)}
    assert sum(unit.resources["cpu"] for unit in found.units) == amounts(cpu=64 + 16 + 4 + 4)["cpu"]


def test_the_large_plan_keeps_rollout_off_the_gpu_nodes() -> None:
    gpu_nodes = [place(f"gpu{i}", cpus=32, gpus=8, labels={"kind": "gpu"}) for i in range(8)]
    cpu_nodes = [place(f"cpu{i:02}", cpus=32) for i in range(16)]
    load = workload(
        from_profile("rollout_worker", count=256, placement="spread"),
        *training(8, placement="spread"),
        from_profile("data_loader", count=8, placement="spread", node_affinity=["kind=gpu"]),
        from_profile("validator", count=8, placement="spread"),
    )

    found = planned(load, *gpu_nodes, *cpu_nodes)

    assert per_node(found, "rollout_worker") == {node.name: 16 for node in cpu_nodes}
    assert per_node(found, "trainer") == per_node(found, "data_loader") == {node.name: 1 for node in gpu_nodes}
    assert {name[:3] for name in found.nodes_of("validator")} == {"cpu"}


# -- each rule on its own ------------------------------------------------------------------------------------


def test_three_colocated_roles_of_one_cpu_cost_one_cpu() -> None:
    roles = [RoleSpec(name, colocation_group="g") for name in ("a", "b", "c")]

    (unit,) = planned(workload(*roles), place(cpus=1)).units

    assert (unit.kind, unit.resources) == (UnitKind.PROCESS, amounts(cpu=1))
    assert [(member.role, member.index) for member in unit.members] == [("a", 0), ("b", 0), ("c", 0)]


@pytest.mark.parametrize(
    ("parts", "bundle"),
    [
        ((0.5, 0.5), 1),
        ((0.4, 0.4), 0.8),
        ((0.6, 0.6), 2),
        ((1, 0.5), 2),
        ((0.6, 0.6, 0.4, 0.4), 2),
        ((2, 1), 3),
        ((0, 0), 0),
    ],
)
def test_parts_of_gpus_in_a_bundle_share_devices(parts: tuple[float, ...], bundle: float) -> None:
    roles = [RoleSpec(f"r{i}", gpus=part, colocation_group="g", colocation="bundle") for i, part in enumerate(parts)]

    (unit,) = planned(workload(*roles), place(cpus=8, gpus=4)).units

    assert (unit.kind, unit.resources) == (UnitKind.BUNDLE, amounts(cpu=len(parts), gpu=bundle))


def test_a_part_of_a_gpu_is_a_part_of_one_device() -> None:
    found = plan_workload(workload(RoleSpec("a", gpus=0.6, count=3)), Inventory([place(gpus=2)]))

    assert isinstance(found, DoesNotFit) and found.certain, "1.8 of 2 GPUs, but no device has 0.6 left"
    planned(workload(RoleSpec("a", gpus=0.5, count=4)), place(gpus=2))


def test_what_is_left_of_a_used_gpu_is_used() -> None:
    planned(workload(RoleSpec("a", gpus=0.5, count=3)), place(gpus=2, used=amounts(gpu=0.5)))
    found = plan_workload(workload(RoleSpec("a", gpus=2)), Inventory([place(gpus=2, used=amounts(gpu=0.5))]))

    assert isinstance(found, DoesNotFit)


def test_packing_takes_few_nodes_and_of_these_the_tightest() -> None:
    nodes = [place("big", cpus=16), place("mid", cpus=8), place("small", cpus=4)]

    assert set(planned(workload(RoleSpec("a", count=4)), *nodes).nodes_of("a")) == {"small"}
    assert per_node(planned(workload(RoleSpec("a", count=20)), *nodes), "a") == {"big": 16, "small": 4}


def test_spreading_is_as_even_as_there_is_room() -> None:
    nodes = [place("a", cpus=2), place("b", cpus=8), place("c", cpus=8)]
    found = planned(workload(RoleSpec("r", count=11, placement="spread")), *nodes)

    assert per_node(found, "r") == {"a": 2, "b": 5, "c": 4}


def test_work_without_gpus_uses_gpu_nodes_only_when_the_others_are_full() -> None:
    nodes = [place("a-gpu", cpus=8, gpus=1), place("b", cpus=4)]

    for way in ("pack", "spread"):
        assert per_node(planned(workload(RoleSpec("r", count=3, placement=way)), *nodes), "r") == {"b": 3}
        assert per_node(planned(workload(RoleSpec("r", count=6, placement=way)), *nodes), "r") == {"a-gpu": 2, "b": 4}


def test_a_custom_resource_that_others_ask_for_is_left_to_them() -> None:
    nodes = [place("a-disk", cpus=4, disk=1), place("b", cpus=4)]
    load = workload(RoleSpec("any", count=4), RoleSpec("loader", resources={"disk": 1}))

    found = planned(load, *nodes)

    assert per_node(found, "any") == {"b": 4} and per_node(found, "loader") == {"a-disk": 1}


def test_what_can_be_on_few_nodes_goes_before_what_can_be_anywhere() -> None:
    load = workload(RoleSpec("anywhere", cpus=4, count=2), RoleSpec("here", cpus=4, node_affinity=["a"]))

    assert planned(load, place("a", cpus=4), place("b", cpus=8)).nodes_of("here") == ("a",)


def test_affinity_is_by_name_or_by_label_and_anti_affinity_excludes() -> None:
    nodes = [
        place("a", labels={"zone": "1", "disk": "ssd"}),
        place("b", labels={"zone": "1"}),
        place("c", labels={"zone": "2", "disk": "ssd"}),
    ]

    def where(**choice: Any) -> set[str]:
        return set(planned(workload(RoleSpec("r", count=2, placement="spread", **choice)), *nodes).nodes_of("r"))

    assert where(node_affinity=["b", "c"]) == {"b", "c"}
    assert where(node_affinity=["zone=1"]) == {"a", "b"}
    assert where(node_affinity=["zone=1", "disk=ssd"]) == {"a"}
    assert where(node_affinity=["zone=1", "zone=2"]) <= {"a", "b", "c"}
    assert where(node_anti_affinity=["a", "zone=2"]) == {"b"}


def test_a_pool_limits_sums_and_nodes() -> None:
    nodes = [place("a", cpus=8), place("b", cpus=8)]
    pool = Pool("small", num_cpus=6, nodes=["b"])

    found = planned(workload(RoleSpec("r", count=6, pool="small"), pools=(pool,)), *nodes)

    assert per_node(found, "r") == {"b": 6}
    assert found.used_by_pool == {"small": amounts(cpu=6)}
    assert isinstance(
        plan_workload(workload(RoleSpec("r", count=7, pool="small"), pools=(pool,)), Inventory(nodes)), DoesNotFit
    )


def test_a_pool_of_gpus_lets_its_roles_have_cpus_as_well() -> None:
    load = workload(
        from_profile("trainer_self_hosted", count=2, pool="gpu_pool"), pools=(Pool("gpu_pool", num_gpus=2),)
    )

    assert len(planned(load, place(cpus=8, gpus=4)).units) == 2


def test_a_node_that_cannot_be_used_gets_nothing() -> None:
    nodes = [place("a", closed="it is not connected to the cluster"), place("b")]

    assert planned(workload(RoleSpec("r")), *nodes).nodes_of("r") == ("b",)


def test_all_roles_have_their_least_before_any_has_more_and_then_they_take_turns() -> None:
    load = workload(RoleSpec("a", count=(1, 10)), RoleSpec("b", count=(2, 10)), RoleSpec("c", count=2))

    assert planned(load, place(cpus=10)).counts == {"a": 3 + 1, "b": 4, "c": 2}
    assert planned(load, place(cpus=5)).counts == {"a": 1, "b": 2, "c": 2}
    assert planned(load, place(cpus=100)).counts == {"a": 10, "b": 10, "c": 2}


def test_a_role_may_begin_with_none() -> None:
    load = workload(RoleSpec("a", count=(0, 4)), RoleSpec("b", cpus=3))

    assert planned(load, place(cpus=3)).counts == {"b": 1}
    assert planned(load, place(cpus=5)).counts == {"a": 2, "b": 1}


def test_growing_stays_within_the_pool() -> None:
    load = workload(RoleSpec("a", count=(1, 10), pool="p"), pools=(Pool("p", num_cpus=3),))

    assert planned(load, place(cpus=8)).counts == {"a": 3}


def test_what_needs_nothing_fits_anywhere_that_can_be_used() -> None:
    assert len(planned(workload(RoleSpec("r", cpus=0, count=50)), place(cpus=0)).units) == 50


def test_indexes_run_node_by_node() -> None:
    found = planned(workload(RoleSpec("r", count=5, placement="spread")), place("a"), place("b"))

    assert found.nodes_of("r") == ("a", "a", "a", "b", "b")


def test_a_mix_that_packing_cannot_place_is_placed_by_spreading() -> None:
    load = workload(RoleSpec("four", cpus=4, count=2), RoleSpec("three", cpus=3, count=4))

    planned(load, place("a", cpus=10), place("b", cpus=10))


def test_a_mix_that_spreading_cannot_place_is_packed() -> None:
    load = workload(
        RoleSpec("even", cpus=4, count=2, placement="spread"), RoleSpec("whole", cpus=3, count=4, placement="spread")
    )

    planned(load, place("a", cpus=8), place("b", cpus=12))


def test_more_of_a_role_counts_what_stands_in_pools_in_evenness_and_in_indexes() -> None:
    load = workload(RoleSpec("r", count=3, placement="spread", pool="p"), pools=(Pool("p", num_cpus=6),))
    nodes = [place("a", cpus=8), place("b", cpus=8)]
    standing = planned(load, *nodes).units
    without_the_second = tuple(unit for unit in standing if unit.index != 1)
    free = Inventory([place("a", cpus=7), place("b", cpus=7)])

    more = plan_more(load, {"r": 4}, free, without_the_second)

    assert isinstance(more, Placement)
    assert sorted(unit.index for unit in more.units) == [1, 3, 4, 5]
    assert per_node(more, "r") == {"a": 2, "b": 2}
    assert isinstance(plan_more(load, {"r": 5}, free, without_the_second), DoesNotFit)


def test_a_colocation_group_grows_as_one() -> None:
    load = workload(
        RoleSpec("a", colocation_group="g", count=(1, 4)), RoleSpec("b", colocation_group="g", count=(1, 4))
    )

    more = plan_more(load, {"b": 2}, Inventory([place()]), ())

    assert isinstance(more, Placement) and more.counts == {"a": 2, "b": 2}


# -- roles that follow a signal ------------------------------------------------------------------------------


def test_a_role_that_follows_a_signal_begins_with_its_least_and_others_grow() -> None:
    load = workload(
        RoleSpec("worker", count=(2, 8), scaling=Scaling("queue", up_at=4, down_at=1)), RoleSpec("loader", count=(1, 4))
    )

    assert planned(load, place("n1", cpus=16)).counts == {"worker": 2, "loader": 4}


def test_a_colocation_group_begins_with_its_least_if_one_of_its_roles_follows_a_signal() -> None:
    group: dict[str, Any] = {"count": (1, 3), "colocation_group": "g"}
    load = workload(RoleSpec("a", **group), RoleSpec("b", scaling=Scaling("queue", up_at=4, down_at=1), **group))

    assert planned(load, place("n1")).counts == {"a": 1, "b": 1}


def test_a_role_that_follows_a_signal_gets_more_members_up_to_its_most() -> None:
    load = workload(RoleSpec("worker", count=(2, 8), scaling=Scaling("queue", up_at=4, down_at=1)))
    node = place("n1", cpus=16)
    found = planned(load, node)

    more = plan_more(load, {"worker": 6}, Inventory([place("n1", cpus=14)]), found.units)

    assert isinstance(more, Placement)
    assert [unit.index for unit in more.units] == [2, 3, 4, 5, 6, 7]
    assert violations(Placement("run", (*found.units, *more.units)), load, Inventory([node])) == []
