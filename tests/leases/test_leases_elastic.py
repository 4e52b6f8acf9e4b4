"""Elastic leases: they grow while capacity is idle, yield that to every request, and keep their least."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from builders import ask
from fake_cluster import Crashed
from whole_grid import WholeGrid, at_home, raising

from distributed_grid.leases.reclaim import cordon, uncordon
from distributed_grid.model.leases import Elastic, Lease, LeaseState, Purpose
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.resources import ResourceVector, total

ONE = 10_000
LOW, HIGH = AllocationPriority.LOW, AllocationPriority.HIGH

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def lab(make_grid: Callable[..., WholeGrid]) -> WholeGrid:
    return make_grid(memory=1)


def elastic(lab: WholeGrid, least: float, most: int, **terms: Any) -> Lease:
    """The lease of a run for b, from a and c, which have 4 CPUs each, or from b itself."""
    wanted = ask("b", "cpu", 1, purpose=Purpose.RUN, delivery="reserve", own_too=True, **terms)
    units = 1 if not least else round(least * ONE)
    wanted = replace(wanted, units=units, elastic=Elastic(most * ONE, wanted.sources, wanted.own_too))
    return lab.run(lab.service.request(wanted))


def cpus(lab: WholeGrid, lease: Lease) -> float:
    """What the lease shows that it has."""
    return lab.leases[lease.id].capacity["cpu"] / ONE


def extended(lab: WholeGrid, lease: Lease) -> dict[str, float]:
    """What its group has beside its bundle, as Ray's scheduler sees it."""
    group = lease.placement_group or ""
    found = {node: lab.cluster.extension_of(group, node)["cpu"] / ONE for node in lab.cluster.bases()}
    return {node: amount for node, amount in found.items() if amount}


def growth_reserves_what_groups_have(lab: WholeGrid) -> None:
    """No group ever has more beside its bundles than growth reserves for it there."""
    for lease in lab.leases.values():
        if lease.elastic is None or lease.held_by is None:
            continue
        for node, amount in extended(lab, lease).items():
            growth = [one for one in lab.leases.values() if one.grows == lease.id and one.source == node]
            reserved = total([one.resources for one in growth if one.held_by is not None])
            assert ResourceVector({"cpu": round(amount * ONE)}) and reserved["cpu"] >= amount * ONE


def ended(lab: WholeGrid) -> None:
    for lease in list(lab.leases.values()):
        if not lease.grows and not lease.is_winding_down:
            lab.run(lab.service.release(lease.id, grace_s=0.0))
    lab.wait(5.0)
    at_home(lab)


def test_it_grows_to_its_most_and_its_group_has_all_of_that(lab: WholeGrid) -> None:
    lease = elastic(lab, 2, 7)
    lab.wait(3.0)
    assert cpus(lab, lease) == 7
    assert sum(extended(lab, lease).values()) == 5
    assert [(one.id, one.units) for one in lab.service.boosts()] == [(lease.id, 2 * ONE)]
    growth_reserves_what_groups_have(lab)
    ended(lab)


def test_it_grows_on_its_target_last_and_takes_all_that_is_idle(lab: WholeGrid) -> None:
    lease = elastic(lab, 2, 40)
    lab.wait(6.0)
    assert cpus(lab, lease) == 12
    assert len([one for one in lab.leases.values() if one.grows]) == 10
    ended(lab)


def test_a_limit_without_a_reservation_has_only_what_is_idle(lab: WholeGrid) -> None:
    others = [lab.run(lab.service.request(ask("b", "cpu", 4, source=name, delivery="reserve"))) for name in ("a", "c")]
    lease = elastic(lab, 0, 4, sources=("a", "c", "b"))
    lab.wait(2.0)
    assert (cpus(lab, lease), lease.amount) == (4, "up to 4 CPUs")
    lab.run(lab.service.release(lease.id, grace_s=0.0))
    first = lab.run(lab.service.request(ask("c", "cpu", 4, source="b", delivery="reserve", priority=LOW)))
    urgent = elastic(lab, 0, 4, priority=HIGH, sources=("b",))
    lab.wait(2.0)
    assert cpus(lab, urgent) == 0
    assert lab.leases[first.id].state is LeaseState.ACTIVE, "a mere limit takes nothing from others"
    assert all(lab.leases[one.id].state is LeaseState.ACTIVE for one in others)
    ended(lab)


@pytest.mark.parametrize("policy", ["conservative", "balanced", "aggressive"])
def test_any_request_gets_what_it_grew_by_and_it_keeps_its_least(
    make_grid: Callable[..., WholeGrid], policy: str
) -> None:
    """Also a request of lower priority, and where the policy preempts nothing."""
    lab = make_grid(memory=1, policy=policy, thresholds={"excess_threshold": 0})
    lease = elastic(lab, 1, 9, priority=HIGH)
    lab.wait(3.0)
    grown = cpus(lab, lease)
    assert grown > 1
    wanted = 3 if policy != "conservative" else 1
    boost = lab.run(lab.service.request(ask("b", "cpu", wanted, priority=LOW, delivery="reserve"), wait_s=5.0))
    assert boost.state is LeaseState.ACTIVE
    lab.wait(1.0)
    assert lab.leases[lease.id].state is LeaseState.ACTIVE
    assert lab.leases[lease.id].resources["cpu"] == ONE
    assert cpus(lab, lease) <= max(1, 12 - wanted)
    growth_reserves_what_groups_have(lab)
    ended(lab)


def test_it_grows_again_once_a_request_has_ended(lab: WholeGrid) -> None:
    lease = elastic(lab, 2, 12)
    lab.wait(5.0)
    boost = lab.run(lab.service.request(ask("b", "cpu", 4, delivery="reserve", source="c"), wait_s=5.0))
    lab.wait(1.0)
    assert cpus(lab, lease) == 8
    lab.run(lab.service.release(boost.id))
    lab.wait(3.0)
    assert cpus(lab, lease) == 12
    ended(lab)


def test_what_its_work_does_not_use_goes_first_and_work_ends_by_itself(lab: WholeGrid) -> None:
    lease = elastic(lab, 2, 10, grace_s=30.0)
    lab.wait(5.0)
    busy, idle = sorted(extended(lab, lease), key=lambda name: -extended(lab, lease)[name])[:2]
    pids = [lab.cluster.start_in_extension(lease.placement_group or "", busy) for _ in range(2)]
    assert None not in pids
    lab.wait(1.5)
    lab.run(lab.service.request(ask("b", "cpu", 2, delivery="reserve", own_too=False), wait_s=5.0))
    assert set(pids) <= set(lab.cluster.running()), f"work on {busy} goes on, since {idle} had room"
    ended(lab)


def test_work_that_is_in_the_way_has_its_grace_period_and_then_the_youngest_ends(lab: WholeGrid) -> None:
    lease = elastic(lab, 2, 12, grace_s=10.0)
    lab.wait(5.0)
    pids = []
    for name, amount in extended(lab, lease).items():
        for _ in range(int(amount)):
            pids.append(lab.cluster.start_in_extension(lease.placement_group or "", name))
            lab.wait(0.01)
    boost = lab.service.request(ask("b", "cpu", 1, delivery="reserve", source="c"), wait_s=0.0)
    asked = lab.clock.now
    assert lab.run(boost).state is LeaseState.ACTIVE
    assert lab.clock.now - asked >= 10.0, "the work had its grace period"
    left = [pid for pid in pids if pid in lab.cluster.running()]
    assert len(left) == len(pids) - 1, "no more work ended than was needed"
    assert lease.id not in lab.parts.notes, "its status no longer says that work is in the way"
    assert cpus(lab, lease) == 11
    ended(lab)


def test_growth_ends_before_its_lease_so_that_no_work_is_left_in_a_group_that_is_gone(lab: WholeGrid) -> None:
    lease = elastic(lab, 2, 10)
    lab.wait(5.0)
    name = next(iter(extended(lab, lease)))
    lab.cluster.start_in_extension(lease.placement_group or "", name)
    lab.run(lab.service.release(lease.id, grace_s=2.0, wait_s=0.0))
    lab.wait(1.0)
    assert lab.leases[lease.id].state is LeaseState.RELEASING, "its work still has time"
    lab.wait(4.0)
    assert lab.cluster.running() == []
    at_home(lab)


def test_two_elastic_leases_grow_in_turns(lab: WholeGrid) -> None:
    one, other = elastic(lab, 1, 12), elastic(lab, 1, 12)
    lab.wait(6.0)
    assert {cpus(lab, one), cpus(lab, other)} == {6}
    ended(lab)


def test_its_team_may_have_its_limit_whatever_the_lease_has_grown_to(make_grid: Callable[..., WholeGrid]) -> None:
    lab = make_grid(memory=1, teams=[{"name": "red", "guaranteed": {"cpu": 2}, "borrowing_limit": {"cpu": 4}}])
    lease = elastic(lab, 2, 12, team="red")
    lab.wait(5.0)
    assert cpus(lab, lease) == 6, "growth counts against the team's limit"
    boost = lab.run(lab.service.request(ask("b", "cpu", 4, team="red", delivery="reserve"), wait_s=5.0))
    assert boost.state is LeaseState.ACTIVE
    lab.wait(3.0)
    assert cpus(lab, lease) == 2, "and gives way to the team's requests"
    ended(lab)


def test_a_lender_that_dies_takes_its_part_of_the_growth_only(lab: WholeGrid) -> None:
    lease = elastic(lab, 2, 12)
    lab.wait(35.0)
    other = next(name for name in extended(lab, lease) if name not in (lease.source, "b"))
    lab.cluster.kill_node(other)
    lab.wait(5.0)
    assert lab.leases[lease.id].state is LeaseState.ACTIVE
    assert cpus(lab, lease) == 8
    lab.cluster.return_node(other)
    lab.wait(5.0)
    assert cpus(lab, lease) == 12
    ended(lab)


def test_a_cordoned_node_gets_its_part_back(lab: WholeGrid) -> None:
    lease = elastic(lab, 2, 12)
    lab.wait(5.0)
    other = next(name for name in extended(lab, lease) if name not in (lease.source, "b"))
    lab.run(cordon(lab.parts, other))
    lab.wait(3.0)
    assert other not in extended(lab, lease)
    lab.run(uncordon(lab.parts, other))
    ended(lab)


CALLS = ("save", "reserve", "extend", "remove_group", "groups")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_step_leaves_no_group_with_more_than_is_reserved(
    lab: WholeGrid, call: str, number: int, after: bool
) -> None:
    lease = elastic(lab, 2, 8)
    lab.cluster.upcoming(number, raising(Crashed()), call=call, after=after)
    boost = None
    try:
        lab.wait(2.0)
        boost = lab.run(lab.service.request(ask("b", "cpu", 6, delivery="reserve", max_sources=3), wait_s=5.0))
        lab.wait(1.0)
    except Crashed:
        lab.bury()
        lab.start()
    lab.cluster.nothing_upcoming()
    lab.wait(4.0)
    growth_reserves_what_groups_have(lab)
    assert lab.leases[lease.id].state is LeaseState.ACTIVE
    if boost is None:
        assert cpus(lab, lease) in (2, 6, 8)
    ended(lab)
