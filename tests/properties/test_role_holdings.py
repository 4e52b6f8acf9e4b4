"""What is held for any plan: every unit once, on its node and in its pool, and no part of a GPU beside another."""

import random
from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st
from role_worlds import nodes, workloads

from distributed_grid.decide.roles import holdings, plan_workload
from distributed_grid.model.resources import total
from distributed_grid.model.roles.plan import Inventory, InventoryNode, Placement, Unit, UnitKind
from distributed_grid.model.roles.workload import Workload


def placed(load: Workload, there: list[InventoryNode]) -> Placement:
    found = plan_workload(load, Inventory(there))
    assume(isinstance(found, Placement))
    assert isinstance(found, Placement)
    return found


@given(workloads(), nodes(usable=True))
def test_every_unit_is_in_one_holding_of_its_node_and_pool(load: Workload, there: list[InventoryNode]) -> None:
    units = placed(load, there).units

    found = holdings(units, load)

    assert Counter(unit for one in found for unit in one.units) == Counter(units)
    for one in found:
        assert {(unit.node, unit.pool) for unit in one.units} == {(one.node, one.pool)}
        assert one.resources == total([unit.resources for unit in one.units])


@given(workloads(), nodes(usable=True))
def test_gpus_of_a_holding_are_whole_or_of_one_device(load: Workload, there: list[InventoryNode]) -> None:
    for one in holdings(placed(load, there).units, load):
        gpus = one.resources["gpu"]
        assert gpus % 10_000 == 0 or (gpus < 10_000 and len(one.units) == 1)


@given(workloads(), nodes(usable=True))
def test_what_may_end_alone_or_is_a_bundle_is_held_alone_and_all_else_shares(
    load: Workload, there: list[InventoryNode]
) -> None:
    found = holdings(placed(load, there).units, load)

    least = {role.name: role.least for role in load.roles}
    for one in found:
        if len(one.units) > 1:
            assert all(unit.kind is not UnitKind.BUNDLE for unit in one.units)
            assert all(m.index < least[m.role] for unit in one.units for m in unit.members)
    shared = Counter((one.node, one.pool) for one in found if may_share(one.units[0], least))
    assert set(shared.values()) <= {1}


def may_share(unit: Unit, least: dict[str, int]) -> bool:
    whole = unit.resources["gpu"] % 10_000 == 0
    return whole and unit.kind is not UnitKind.BUNDLE and unit.index < least[unit.members[0].role]


@given(workloads(), nodes(usable=True), st.randoms(use_true_random=False))
def test_the_order_of_the_units_does_not_matter(
    load: Workload, there: list[InventoryNode], chance: random.Random
) -> None:
    units = list(placed(load, there).units)
    mixed = list(units)
    chance.shuffle(mixed)

    assert holdings(mixed, load) == holdings(units, load)
