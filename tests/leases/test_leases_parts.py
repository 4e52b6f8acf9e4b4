"""Boosts with several lenders: one boost, renewed and released as one, whatever happens to one of its lenders."""

from collections.abc import Callable

import pytest
from builders import FOR_ANA, ask
from fake_cluster import FakeCluster
from whole_grid import WholeGrid, at_home

from distributed_grid.errors import Refused
from distributed_grid.leases.reclaim import cordon, reclaim
from distributed_grid.model.leases import WATCHED, Lease, LeaseState

ACTIVE = LeaseState.ACTIVE
SETTLED_S = 31.0  # after the start, a node that is absent may still come

pytestmark = pytest.mark.filterwarnings("ignore")


def boost_of(lab: WholeGrid, amount: float, kind: str = "cpu", **terms: object) -> Lease:
    """For b, from a and c, which have 4 CPUs and a GPU each."""
    boost = lab.run(lab.service.request(ask("b", kind, amount, max_sources=3, **terms)))
    assert len(boost.shares) == 2
    return boost


def by_lender(lease: Lease) -> dict[str, float]:
    return {part.source: part.units / 10_000 for part in lease.parts}


def totals(lab: WholeGrid) -> dict[str, float]:
    return {name: total["cpu"] / 10_000 for name, total in lab.cluster.true_totals().items()}


def test_one_boost_has_a_part_from_each_of_its_lenders(lab: WholeGrid) -> None:
    boost = boost_of(lab, 6)
    assert by_lender(boost) == {"a": 4, "c": 2}
    assert totals(lab) == {"a": 0, "b": 10, "c": 2}
    assert list(lab.leases) == list(lab.on_disk()) == [boost.id]
    renewed = lab.run(lab.service.renew(boost.id, 600.0))
    assert (renewed.duration_s, by_lender(renewed)) == (600.0, {"a": 4, "c": 2})
    lab.run(lab.service.release(boost.id))
    lab.wait(1.0)
    at_home(lab)


def test_a_reservation_on_several_nodes_is_one_placement_group(lab: WholeGrid) -> None:
    boost = boost_of(lab, 2, "gpu")
    (group,) = lab.cluster.groups()
    assert (group.id, group.name) == (boost.placement_group, boost.group_name)
    assert len(set(group.bundles)) == 2
    lab.run(lab.service.release(boost.id))
    lab.wait(1.0)
    at_home(lab)


def test_a_reservation_keeps_its_parts_while_work_runs_in_one_of_them(lab: WholeGrid) -> None:
    boost = boost_of(lab, 2, "gpu", grace_s=5.0)
    work = lab.cluster.start_in_group(boost.placement_group)
    lab.run(lab.service.release(boost.id, wait_s=0.0))
    lab.wait(2.0)
    assert lab.leases[boost.id].state is LeaseState.RELEASING
    assert lab.cluster.reserved("a") and lab.cluster.reserved("c")
    lab.cluster.finish(work)
    lab.wait(1.0)
    at_home(lab)


def test_the_last_lenders_get_back_what_is_released_first(lab: WholeGrid) -> None:
    boost = boost_of(lab, 6)
    lab.run(lab.service.release(boost.id, units=3 * 10_000))
    lab.wait(1.0)
    assert by_lender(lab.leases[boost.id]) == {"a": 3}
    assert totals(lab) == {"a": 1, "b": 7, "c": 4}


def test_no_part_is_lent_if_another_one_cannot_be(lab: WholeGrid) -> None:
    lab.wait(2.0)
    for _ in range(3):
        lab.cluster.start("c", 1)  # after the last look
    with pytest.raises(Refused):
        lab.run(lab.service.request(ask("b", amount=8, max_sources=3)))
    lab.wait(2.0)
    assert not lab.leases
    assert totals(lab) == {"a": 4, "b": 4, "c": 4}


# -- a lender that is gone -------------------------------------------------------------------------------------


def test_the_part_of_a_lender_that_dies_is_replaced(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("a", amount=5, max_sources=3)))
    assert by_lender(boost) == {"b": 4, "c": 1}
    lab.wait(SETTLED_S)
    lab.cluster.kill_node("c")
    lab.wait(5.0)
    assert by_lender(lab.leases[boost.id]) == {"b": 4}, "no other node can lend it"
    assert [waiting.ask.units for waiting in lab.parts.sharing.waiting.values()] == [10_000]
    lab.cluster.return_node("c")
    lab.wait(3.0)
    assert by_lender(lab.leases[boost.id]) == {"b": 4, "c": 1}
    assert list(lab.leases) == [boost.id]
    assert not lab.parts.sharing.waiting
    assert totals(lab) == {"a": 9, "b": 0, "c": 3}
    assert lab.events("part_lost") and lab.events("part_replaced")


def test_a_replacement_survives_a_crash(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("a", amount=5, max_sources=3)))
    lab.wait(SETTLED_S)
    lab.cluster.kill_node("c")
    lab.wait(5.0)
    lab.crash()
    lab.cluster.return_node("c")
    lab.wait(3.0)
    assert by_lender(lab.leases[boost.id]) == {"b": 4, "c": 1}
    assert list(lab.leases) == list(lab.on_disk()) == [boost.id]


def test_nothing_is_lent_to_replace_a_part_of_a_boost_that_was_released(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("a", amount=5, max_sources=3)))
    lab.wait(SETTLED_S)
    lab.cluster.kill_node("c")
    lab.wait(5.0)
    lab.run(lab.service.release(boost.id))
    lab.wait(3.0)
    assert not lab.parts.sharing.waiting, "the request went with its boost"
    lab.cluster.return_node("c")
    lab.wait(5.0)
    assert not lab.leases
    at_home(lab)


def test_a_reservation_that_loses_a_lender_reports_its_new_size_and_its_work_goes_on(lab: WholeGrid) -> None:
    boost = boost_of(lab, 2, "gpu")
    lab.wait(SETTLED_S)
    work = lab.cluster.start_in_group(boost.placement_group)
    lab.cluster.kill_node("c")
    lab.wait(5.0)
    left = lab.leases[boost.id]
    assert (left.state, by_lender(left), left.placement_group) == (ACTIVE, {"a": 1}, boost.placement_group)
    assert left.warnings == ("c left the cluster with 1 GPU of this boost",)
    assert work in lab.cluster.running()
    lab.crash()
    lab.wait(3.0)
    assert lab.leases[boost.id].placement_group == boost.placement_group, "the group is not made again"
    lab.cluster.return_node("c")
    lab.run(lab.service.release(boost.id, grace_s=0.0))
    lab.wait(2.0)
    at_home(lab)


def test_a_boost_that_loses_all_its_lenders_is_lost(lab: WholeGrid) -> None:
    boost_of(lab, 6)
    lab.wait(SETTLED_S)
    for name in "ac":
        lab.cluster.kill_node(name)
    lab.wait(5.0)
    assert not lab.leases
    assert totals(lab) == {"b": 4}


# -- reclaim ---------------------------------------------------------------------------------------------------


def test_a_lender_that_is_cordoned_gets_its_part_back_and_the_others_parts_stay(lab: WholeGrid) -> None:
    boost = boost_of(lab, 6)
    lab.run(cordon(lab.parts, "c"))
    lab.wait(3.0)
    assert by_lender(lab.leases[boost.id]) == {"a": 4}
    assert totals(lab) == {"a": 0, "b": 8, "c": 4}


def test_a_reservation_comes_back_whole_when_one_of_its_lenders_needs_it(lab: WholeGrid) -> None:
    boost = boost_of(lab, 2, "gpu")
    part = next(part for part in boost.parts if part.source == "c")
    lab.run(_reclaimed(lab, part))
    assert lab.leases[boost.id].state is LeaseState.RECLAIMING
    lab.wait(3.0)
    at_home(lab)


def test_a_request_takes_from_one_lender_only_what_it_needs(lab: WholeGrid) -> None:
    boost = boost_of(lab, 8)
    part = next(part for part in boost.parts if part.source == "c")
    lab.run(_reclaimed(lab, part, 10_000))
    lab.wait(3.0)
    assert by_lender(lab.leases[boost.id]) == {"a": 4, "c": 3}
    assert totals(lab) == {"a": 0, "b": 11, "c": 1}


def test_a_holder_is_told_how_much_and_what_it_gives_up_goes_to_the_lenders_that_need_it(lab: WholeGrid) -> None:
    boost = boost_of(lab, 8, reclaim_hook=WATCHED, grace_s=60.0)
    first, second = boost.parts
    lab.run(_reclaimed(lab, first, 20_000))
    lab.run(_reclaimed(lab, second, 10_000))
    lab.run(_reclaimed(lab, first, 10_000))  # it asks again, for no more than before
    told = lab.leases[boost.id]
    assert told.notice is not None
    assert (told.notice.units, {one.source: one.units for one in told.notice.wanted}) == (
        30_000,
        {"a": 20_000, "c": 10_000},
    )
    lab.run(lab.service.release(boost.id, units=10_000))
    lab.wait(1.0)
    left = lab.leases[boost.id]
    assert by_lender(left) == {"a": 4, "c": 3}
    assert left.notice is not None and left.notice.units == 20_000
    assert lab.on_disk() == lab.leases
    lab.wait(31.0)  # the notice is over
    assert by_lender(lab.leases[boost.id]) == {"a": 2, "c": 3}
    assert lab.leases[boost.id].notice is None
    assert totals(lab) == {"a": 2, "b": 9, "c": 1}


async def _reclaimed(lab: WholeGrid, part: Lease, units: int | None = None) -> Lease:
    asked = reclaim(lab.parts, part, "another request needs it", FOR_ANA, units=units)
    await lab.parts.commit()
    return asked


def test_a_group_that_was_made_again_for_the_parts_left_loses_one_more_of_them(
    make_grid: Callable[..., WholeGrid],
) -> None:
    """Its bundles are counted anew: those that are left are the first ones of the new group."""
    cluster = FakeCluster()
    cluster.add_node("d", cpus=4)
    lab = make_grid(cluster)
    boost = lab.run(lab.service.request(ask("b", amount=12, delivery="reserve", max_sources=3)))
    assert by_lender(boost) == {"a": 4, "c": 4, "d": 4}
    lab.wait(SETTLED_S)
    lab.cluster.kill_node("a")
    lab.wait(5.0)
    lab.cluster.remove_group(lab.leases[boost.id].placement_group)
    lab.wait(5.0)
    again = lab.leases[boost.id]
    assert (again.state, by_lender(again)) == (ACTIVE, {"c": 4, "d": 4})
    assert again.placement_group != boost.placement_group
    lab.cluster.kill_node("d")
    lab.wait(5.0)
    left = lab.leases[boost.id]
    assert (left.state, by_lender(left), left.placement_group) == (ACTIVE, {"c": 4}, again.placement_group)
