"""Nodes that die and come back, and the groups of reservations that fall with them or are made meanwhile."""

import asyncio
import json
from collections.abc import Callable, Iterable

import pytest
from builders import ask, cpu, lease
from fake_cluster import FakeCluster, LostReply
from whole_grid import WholeGrid, at_home, raising

from distributed_grid.errors import Unavailable
from distributed_grid.model.lease_changes import Delivered
from distributed_grid.model.leases import Delivery, LeaseState
from distributed_grid.model.roles.runs import RunId

ACTIVE = LeaseState.ACTIVE

pytestmark = pytest.mark.filterwarnings("ignore")


# -- nodes -------------------------------------------------------------------------------------------------


def test_a_source_that_dies_ends_its_loans(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=2, source="a")))
    lab.wait(31.0)
    lab.cluster.kill_node("a")
    lab.wait(5.0)
    assert not lab.leases
    assert lab.cluster.true_totals()["b"] == cpu(4)
    lab.cluster.return_node("a")
    lab.wait(2.0)
    at_home(lab)


def test_a_target_that_dies_gives_its_loans_back(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=2, source="a")))
    lab.wait(31.0)
    lab.cluster.kill_node("b")
    lab.wait(5.0)
    at_home(lab)


@pytest.mark.parametrize("who", ["a", "b"])
def test_a_node_that_is_back_within_a_moment_has_its_loans_again(lab: WholeGrid, who: str) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, source="a")))
    lab.wait(31.0)
    lab.cluster.kill_node(who)
    lab.wait(0.5)
    lab.cluster.return_node(who)
    lab.wait(3.0)
    assert lab.leases[boost.id].state is ACTIVE
    assert {n: t["cpu"] // 10_000 for n, t in lab.cluster.true_totals().items()} == {"a": 2, "b": 6, "c": 4}


def test_a_boost_whose_source_is_busy_when_all_nodes_are_back_says_so_and_comes_as_work_ends(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, source="a")))
    lab.wait(1.0)
    lab.bury()
    for name in "abc":
        lab.cluster.kill_node(name)
        lab.cluster.return_node(name)
    work = [lab.cluster.start("a", 1) for _ in range(4)]
    lab.start()
    lab.wait(2.0)
    assert lab.parts.notes[boost.id] == ("a is busy: the missing 2 CPUs arrive as work there ends",)
    assert lab.cluster.true_totals()["b"] == cpu(4)
    for each in work[:2]:
        lab.cluster.finish(each)
    lab.wait(2.0)
    assert boost.id not in lab.parts.notes
    assert lab.cluster.true_totals()["b"] == cpu(6)


# -- processes ---------------------------------------------------------------------------------------------

ONE, OTHER = "1" * 56, "2" * 56


def test_a_boost_ends_with_the_process_that_it_was_to_end_with(lab: WholeGrid) -> None:
    for number, process in enumerate((ONE, OTHER, None)):
        lab.run(lab.service.request(ask("b", source="a" if number else "c", duration_s=36_000, ends_with=process)))
    lab.wait(31.0)
    lab.cluster.dead = frozenset({ONE, "3" * 56})
    lab.wait(5.0)
    assert {lease.ends_with for lease in lab.leases.values()} == {OTHER, None}

    lab.bury()
    lab.start()
    lab.cluster.dead = frozenset({OTHER})
    lab.wait(5.0)
    assert [(lease.ends_with, lease.state) for lease in lab.leases.values()] == [(None, ACTIVE)]


def test_a_process_that_is_not_known_for_a_moment_keeps_its_boost(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", source="a", duration_s=36_000, ends_with=ONE)))
    for _ in range(5):
        lab.cluster.dead = frozenset({ONE})
        lab.run(lab.reconciler.turn_fully())
        lab.cluster.dead = frozenset()
        lab.run(lab.reconciler.turn_fully())

    def silent(_: Iterable[str]) -> frozenset[str]:
        raise Unavailable("Ray's control service does not answer")

    lab.cluster.dead_processes = silent  # type: ignore[method-assign]
    lab.wait(5.0)
    assert [lease.state for lease in lab.leases.values()] == [ACTIVE] and not lab.failures


def test_what_a_lost_run_of_roles_holds_is_freed_once_and_only_when_two_looks_agree(lab: WholeGrid) -> None:
    lost, lives = (RunId(name, process, "2025-01-03T10:00:00Z") for name, process in [("rl", ONE), ("other", OTHER)])
    lab.cluster.runs = {lost: 2, lives: 1}
    lab.wait(3.0)
    assert lab.cluster.runs == {lost: 2, lives: 1}

    lab.cluster.dead = frozenset({ONE})
    lab.wait(10.0)
    assert lab.cluster.runs == {lost: 0, lives: 1}
    assert lab.events("role_run_cleared") == ["rl: its owner is gone; removed its 2 placement groups"]

    lab.cluster.lost_runs = lambda: json.loads("no record")  # type: ignore[method-assign]
    lab.wait(5.0)
    assert not lab.failures, "a damaged record keeps nothing else from being done"


# -- groups ------------------------------------------------------------------------------------------------


def test_a_reservation_whose_source_came_back_has_a_place_again_or_ends(lab: WholeGrid) -> None:
    """The group of the old raylet still stands in Ray's table, pinned to a node that will never return."""
    boost = lab.run(lab.service.request(ask("b", "gpu", 1, source="a")))
    lab.wait(31.0)
    lab.cluster.kill_node("a")
    lab.wait(0.5)
    lab.cluster.return_node("a")
    lab.wait(5.0)
    left = lab.leases.get(boost.id)
    assert left is None or lab.cluster.has_place(left.placement_group)


def test_a_reservation_that_was_made_again_without_an_answer_is_known_by_its_new_group(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", "gpu", 1, source="a")))
    lab.wait(0.5)
    lab.cluster.kill_node("a")
    lab.cluster.return_node("a")
    lab.cluster.upcoming(0, raising(LostReply()), call="reserve", after=True)
    lab.wait(5.0)
    assert lab.cluster.has_place(lab.leases[boost.id].placement_group)


@pytest.mark.parametrize("listed", [False, True])
def test_a_group_that_is_made_while_reconciler_looks_is_left_alone(lab: WholeGrid, listed: bool) -> None:
    """The list was drawn up before the group was there, or before it had its place; then its grant was complete."""
    new = lease("new", "a", "b", kind="gpu", amount=1, state=LeaseState.GRANTING, delivery=Delivery.RESERVE)
    lab.parts.ledger.add(new)
    made = lab.cluster.reserve(new, [lab.cluster.ids()["a"]], 2) if listed else None
    lab.cluster.set_standing(made, False)

    def grant() -> None:
        group = made or lab.cluster.reserve(new, [lab.cluster.ids()["a"]], 2)
        lab.cluster.set_standing(group, True)
        lab.parts.ledger.apply(new, Delivered(group))

    lab.cluster.upcoming(0, grant, call="groups", after=True)
    lab.wait(3.0)
    assert lab.leases[new.id].state is ACTIVE
    assert lab.cluster.has_place(lab.leases[new.id].placement_group)
    assert not lab.failures, repr(lab.failures[0])
    assert not any(event.event == "reserved_again" for event in lab.parts.journal.since(0))


def test_a_boost_that_is_renewed_while_its_group_is_made_again_stays_renewed(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", "gpu", 1, source="a", duration_s=60.0)))
    lab.wait(2.0)

    async def renew() -> None:
        made_again = asyncio.Event()
        lab.cluster.upcoming(0, made_again.set, call="reserve")
        lab.cluster.remove_group(lab.leases[boost.id].placement_group)
        await made_again.wait()
        await lab.service.renew(boost.id, 3600.0)

    lab.run(renew())
    lab.wait(3.0)
    assert lab.leases[boost.id].duration_s == 3600.0


def test_a_reservation_made_while_groups_are_looked_for_is_left_alone(
    make_grid: Callable[..., WholeGrid],
) -> None:
    for seed in range(10):
        lab = make_grid(FakeCluster(), seed)
        lab.wait(0.9)
        for _ in range(12):
            boost = lab.run(lab.service.request(ask("b", "gpu", 1)))
            lab.wait(0.09)
            lab.run(lab.service.release(boost.id))
        lab.wait(2.0)
        at_home(lab)
