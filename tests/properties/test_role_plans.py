"""Plans of any workload on any nodes: nothing is overfilled, all or nothing is placed, and what is told to help does.

More capacity never makes a plan wrong that was made. It is not promised that the search finds a plan again with more
capacity, where several kinds of units have to be packed together on many nodes; for one kind it is, and on few nodes.
"""

import numpy as np
from builders import place, workload
from hypothesis import assume, given
from hypothesis import strategies as st
from role_worlds import nodes, workloads

from distributed_grid.decide.roles import plan_more, plan_workload, violations
from distributed_grid.decide.roles.search import Way, arrange
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.roles.plan import DoesNotFit, Inventory, InventoryNode, Placement, RemedyKind
from distributed_grid.model.roles.spec import RoleSpec
from distributed_grid.model.roles.workload import Pool, Workload


@given(workloads(), nodes())
def test_a_plan_is_right_or_there_is_none_with_a_reason(load: Workload, there: list[InventoryNode]) -> None:
    """Never more on a node than it has free, every actor exactly once, affinity, anti-affinity and pools respected."""
    found = plan_workload(load, Inventory(there))

    if isinstance(found, Placement):
        assert violations(found, load, Inventory(there)) == []
    else:
        assert found.reasons and all(reason.placed < reason.asked and reason.detail for reason in found.reasons)


@given(workloads(), nodes())
def test_equal_inputs_give_equal_plans(load: Workload, there: list[InventoryNode]) -> None:
    assert plan_workload(load, Inventory(there)) == plan_workload(load, Inventory(reversed(there)))


@given(workloads(), nodes(), nodes(usable=True))
def test_more_capacity_never_makes_a_plan_wrong(
    load: Workload, there: list[InventoryNode], more: list[InventoryNode]
) -> None:
    found = plan_workload(load, Inventory(there))
    assume(isinstance(found, Placement))
    assert isinstance(found, Placement)
    larger = Inventory(there).with_more(
        {node.name: ResourceVector({"cpu": node.free["cpu"], "gpu": 10_000}) for node in more}
    )

    assert violations(found, load, larger) == []


@given(workloads(most_roles=1), nodes(), st.integers(0, 4), st.integers(1, 30_000))
def test_one_kind_of_unit_that_fits_still_fits_with_more(
    load: Workload, there: list[InventoryNode], which: int, cpus: int
) -> None:
    assume(isinstance(plan_workload(load, Inventory(there)), Placement))
    name = there[which % len(there)].name
    larger = Inventory(there).with_more({name: ResourceVector({"cpu": cpus, "gpu": 10_000})})

    assert isinstance(plan_workload(load, larger), Placement)


@given(workloads(), nodes())
def test_what_is_missing_makes_it_fit_once_it_is_there(load: Workload, there: list[InventoryNode]) -> None:
    found = plan_workload(load, Inventory(there))
    assume(isinstance(found, DoesNotFit) and found.missing)
    assert isinstance(found, DoesNotFit)
    more: dict[str, ResourceVector] = {}
    pools = {pool.name: pool for pool in load.pools}
    for one in found.missing:
        if one.in_pool:
            pools[one.where] = Pool(
                one.where, num_cpus=(pools[one.where].quota["cpu"] + one.units) / 10_000, nodes=pools[one.where].nodes
            )
        else:
            more[one.where] = more.get(one.where, ResourceVector()) + ResourceVector({one.kind: one.units})
    larger = workload(*load.roles, pools=tuple(pools.values()))

    assert isinstance(plan_workload(larger, Inventory(there).with_more(more)), Placement)


@given(workloads(), nodes())
def test_shrinking_and_boosts_that_are_told_make_it_fit(load: Workload, there: list[InventoryNode]) -> None:
    found = plan_workload(load, Inventory(there))
    assume(isinstance(found, DoesNotFit))
    assert isinstance(found, DoesNotFit)

    for remedy in found.remedies:
        if remedy.kind is RemedyKind.SHRINK and all(remedy.counts.values()):
            assert isinstance(plan_workload(load.with_counts(remedy.counts), Inventory(there)), Placement)
        if remedy.kind is RemedyKind.BOOST:
            moved: dict[str, ResourceVector] = {}
            for one in remedy.boosts:
                units = ResourceVector({one.kind: one.units})
                moved[one.target] = moved.get(one.target, ResourceVector()) + units
                moved[one.source] = moved.get(one.source, ResourceVector()) - units
                assert Inventory(there)[one.source].lends.covers(units)
            assert isinstance(plan_workload(load, Inventory(there).with_more(moved)), Placement)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=3),
    st.lists(st.integers(1, 10), min_size=1, max_size=3),
)
def test_a_small_workload_fits_exactly_if_it_can(sizes: list[tuple[int, int]], rooms: list[int]) -> None:
    """Held against all ways there are; on so few nodes a place is found if there is one."""
    load = workload(*(RoleSpec(f"r{n}", cpus=cpus, count=count) for n, (cpus, count) in enumerate(sizes)))
    found = plan_workload(load, Inventory(place(f"n{n}", cpus=cpus) for n, cpus in enumerate(rooms)))
    possible = can_be_packed([cpus for cpus, count in sizes for _ in range(count)], tuple(sorted(rooms)))

    assert possible == isinstance(found, Placement)
    assert isinstance(found, Placement) or found.certain


def can_be_packed(sizes: list[int], rooms: tuple[int, ...]) -> bool:
    if not sizes:
        return True
    first, *rest = sorted(sizes, reverse=True)
    return any(
        can_be_packed(rest, tuple(sorted((*rooms[:n], room - first, *rooms[n + 1 :]))))
        for n, room in enumerate(rooms)
        if room >= first and (n == 0 or rooms[n - 1] != room)
    )


ROOMS = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@given(ROOMS, st.integers(1, 30), st.data())
def test_packing_takes_the_fewest_nodes_there_can_be(rooms: list[int], count: int, data: st.DataObject) -> None:
    counts = arranged(rooms, count, Way.PACK, data)

    fewest = next(n for n in range(len(rooms) + 1) if sum(sorted(rooms, reverse=True)[:n]) >= sum(counts))
    assert sum(map(bool, counts)) == fewest


@given(ROOMS, st.integers(1, 30), st.data())
def test_spreading_is_even_but_for_nodes_that_are_full(rooms: list[int], count: int, data: st.DataObject) -> None:
    counts = arranged(rooms, count, Way.SPREAD, data)

    open_ones = [here for here, room in zip(counts, rooms, strict=True) if here < room]
    assert max(counts) <= min(open_ones, default=max(counts)) + 1


def arranged(rooms: list[int], count: int, way: Way, data: st.DataObject) -> list[int]:
    """So many on nodes with so much room, of which none is shunned: all that fit are placed, and nowhere too many."""
    fits, nothing = np.array(rooms, dtype=np.int64), np.zeros(len(rooms), dtype=np.int64)
    counts = arrange(fits, nothing > 0, count, nothing, way).tolist()
    assert sum(counts) == min(count, sum(rooms))
    assert all(0 <= here <= room for here, room in zip(counts, rooms, strict=True))
    shunned = np.array(data.draw(st.lists(st.booleans(), min_size=len(rooms), max_size=len(rooms))), dtype=bool)
    apart = arrange(fits, shunned, count, nothing, way)
    assert int(apart[shunned].sum()) == max(0, min(count, sum(rooms)) - int(fits[~shunned].sum()))
    return [int(here) for here in counts]


@given(workloads(), nodes(), st.integers(1, 3))
def test_more_of_a_role_fits_beside_what_stands(load: Workload, there: list[InventoryNode], by: int) -> None:
    found = plan_workload(load, Inventory(there))
    assume(isinstance(found, Placement))
    assert isinstance(found, Placement)
    used = {name: sum((unit.resources for unit in units), ResourceVector()) for name, units in found.by_node.items()}
    # Devices are told apart here, but not in sums: of GPUs, whole ones are used only.
    assume(all(vector["gpu"] % 10_000 == 0 for vector in used.values()))
    assume(all(node.free["gpu"] % 10_000 == 0 for node in there))
    left = Inventory(there).with_more({name: ResourceVector() - vector for name, vector in used.items()})
    role = load.roles[0]

    more = plan_more(load, {role.name: by}, left, found.units)

    if isinstance(more, Placement):
        both = Placement(load.name, (*found.units, *more.units))
        grown = {one.name: (one.least, one.most + by) for one in load.roles if one.name in more.counts}
        assert violations(both, load.with_counts(grown), Inventory(there)) == []
