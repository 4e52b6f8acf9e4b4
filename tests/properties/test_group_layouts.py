"""A program's placement groups on the nodes of its lease: a layout is valid, and is found if there is one."""

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.capture.inside_lease.own_groups import Plan, fit, why_it_waits, why_never
from distributed_grid.capture.inside_lease.strategies import Place

CPUS = st.integers(1, 4)
STRATEGIES = st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"])


@st.composite
def leases(draw: st.DrawFn) -> tuple[Place, ...]:
    """Bundles of some CPUs, and perhaps a GPU, on a few nodes; a node may have several."""
    found = []
    for index in range(draw(st.integers(1, 4))):
        amounts = {"CPU": float(draw(st.integers(1, 6)))} | ({"GPU": 1.0} if draw(st.booleans()) else {})
        found.append(Place(draw(st.sampled_from("abc")), amounts=amounts, index=index))
    return tuple(found)


@st.composite
def groups(draw: st.DrawFn) -> Plan:
    bundles = [
        {"CPU": float(draw(CPUS))} | ({"GPU": 1.0} if draw(st.integers(0, 3)) == 0 else {})
        for _ in range(draw(st.integers(1, 4)))
    ]
    return Plan(bundles, draw(STRATEGIES))


def is_valid(plan: Plan, lease: tuple[Place, ...], layout: tuple[int, ...], taken: dict[int, dict[str, float]]) -> bool:
    used = {place.index: Counter(taken.get(place.index, {})) for place in lease}
    for bundle, index in zip(plan.bundles, layout, strict=True):
        used[index].update(bundle)  # type: ignore[arg-type]
    has_room = all(amount <= p.amounts.get(name, 0) for p in lease for name, amount in used[p.index].items())
    nodes = [lease[index].node_id for index in layout]
    is_apart = plan.strategy != "STRICT_SPREAD" or len(set(nodes)) == len(nodes)
    is_together = plan.strategy != "STRICT_PACK" or len(set(nodes)) == 1
    return has_room and is_apart and is_together


@given(groups(), leases(), st.data())
def test_a_layout_is_valid_and_is_found_if_there_is_one(
    plan: Plan, lease: tuple[Place, ...], data: st.DataObject
) -> None:
    taken = {p.index: {"CPU": float(data.draw(st.integers(0, int(p.amounts["CPU"]))))} for p in lease}
    every = product(range(len(lease)), repeat=len(plan.bundles))
    exists = any(is_valid(plan, lease, layout, taken) for layout in every)

    found = fit(plan, lease, taken)

    assert (found is not None) == exists
    assert found is None or is_valid(plan, lease, found, taken)
    assert (why_it_waits(plan, lease, taken) is None) == exists
    assert (why_never(plan, lease) is None) == (fit(plan, lease, {}) is not None)


@given(st.integers(1, 9), st.lists(st.integers(1, 3), min_size=1, max_size=4), st.sampled_from(["PACK", "SPREAD"]))
def test_equal_bundles_are_on_as_few_or_as_many_nodes_as_possible(count: int, cpus: list[int], strategy: str) -> None:
    lease = tuple(Place(str(number), amounts={"CPU": float(has)}, index=number) for number, has in enumerate(cpus))
    found = fit(Plan([{"CPU": 1.0}] * count, strategy), lease, {})

    if count > sum(cpus):
        assert found is None
        return
    assert found is not None
    fewest = next(n for n in range(1, len(cpus) + 1) if sum(sorted(cpus, reverse=True)[:n]) >= count)
    assert len(set(found)) == (fewest if strategy == "PACK" else min(count, len(cpus)))
