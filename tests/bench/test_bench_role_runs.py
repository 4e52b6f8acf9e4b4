"""What is measured of running roles, without a cluster: who is called, in what order, and what is promised."""

from collections.abc import Callable

from bench.figures import Samples
from bench.role_runs import in_turns, lines, members, pair
from distributed_grid.decide.roles import plan_workload
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.roles.plan import Inventory, InventoryNode, Placement
from distributed_grid.roles import launch


def test_both_sides_take_turns_and_neither_is_always_first() -> None:
    order: list[str] = []

    def way(name: str) -> Callable[[], float]:
        def once() -> float:
            order.append(name)
            return float(len(order))

        return once

    found = in_turns({"ours": way("ours"), "plain": way("plain")}, rounds=2)

    assert order == ["ours", "plain", "plain", "ours"]
    assert found == {"ours": Samples((1.0, 4.0)), "plain": Samples((2.0, 3.0))}


def test_all_that_is_promised_is_shown_with_its_limit() -> None:
    sides = ("launch", "actors", "group call", "calls", "calls of members", "beside", "elsewhere")
    found = lines(dict.fromkeys((*sides, "launch: CPU", "actors: CPU"), Samples((1.0,))))

    assert [line.limits.describe(line.unit) for line in found if line.met is not None] == [
        "≤ 1.2x",
        "≤ 1.1x",
        "≤ 0.05x",
    ]


def test_sixty_actors_fit_on_the_cluster_they_are_measured_on() -> None:
    sizes = {name: ResourceVector.of(cpu=cpus) for name, cpus in (("gpu-master", 4), ("gpu1", 8), ("gpu2", 8))}
    nodes = [InventoryNode(name, size, size) for name, size in sizes.items()]

    assert isinstance(plan_workload(members(60), Inventory(nodes)), Placement)


def test_the_caller_reaches_its_sibling_and_a_member_elsewhere() -> None:
    with launch(pair(), local=True) as run:
        assert run["caller"].rank_zero.call("beside", 2) > 0
        assert run["caller"].rank_zero.call("elsewhere", 2) > 0
