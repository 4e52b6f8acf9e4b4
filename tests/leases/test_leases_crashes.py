"""What a crash leaves of boosts, at whatever step it comes: whole ones, or none."""

import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from builders import FOR_ANA, ask, cpu
from fake_cluster import Crashed, FakeCluster
from whole_grid import WholeGrid, at_home, raising

from distributed_grid.errors import BoostNotFound
from distributed_grid.faults import Point
from distributed_grid.leases.reclaim import reclaim
from distributed_grid.leases.release import part_id
from distributed_grid.model.leases import WATCHED, Lease, LeaseState
from distributed_grid.model.resources import scale

ACTIVE = LeaseState.ACTIVE

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("call", ["save", "resize", "reserve"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("kind", "amount"), [("cpu", 1), ("gpu", 1), ("cpu", 6), ("gpu", 2)])
def test_a_crash_at_any_step_of_a_grant_leaves_a_whole_boost_or_none(
    lab: WholeGrid, call: str, number: int, after: bool, kind: str, amount: int
) -> None:
    """The larger amounts come from two lenders together: all of it, or none."""
    lab.cluster.upcoming(number, raising(Crashed()), call=call, after=after)
    try:
        lab.run(lab.service.request(ask("b", kind, amount, max_sources=2)))
        lab.wait(0.5)
    except Crashed:
        lab.bury()
        lab.start()
    lab.cluster.nothing_upcoming()
    lab.wait(3.0)
    assert all((lease.state, lease.units) == (ACTIVE, amount * 10_000) for lease in lab.leases.values())
    moved = lab.cluster.true_totals()["b"] != cpu(4)
    assert not moved or lab.cluster.true_totals()["b"] == cpu(4 + amount)
    assert len(lab.cluster.groups()) + moved == len(lab.leases)
    for boost in lab.leases.values():
        lab.run(lab.service.release(boost.id))
    lab.wait(1.0)
    at_home(lab)


@pytest.mark.parametrize("call", ["save", "resize", "remove_group"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("kind", "amount"), [("cpu", 1), ("gpu", 1), ("cpu", 6), ("gpu", 2)])
def test_a_crash_at_any_step_of_a_release_gives_everything_back_or_nothing(
    lab: WholeGrid, call: str, number: int, after: bool, kind: str, amount: int
) -> None:
    boost = lab.run(lab.service.request(ask("b", kind, amount, max_sources=2)))
    lab.wait(0.5)
    lab.cluster.upcoming(number, raising(Crashed()), call=call, after=after)
    try:
        lab.run(lab.service.release(boost.id, grace_s=0.0))
        lab.wait(0.5)
    except Crashed:
        lab.bury()
        lab.start()
    lab.cluster.nothing_upcoming()
    lab.wait(3.0)
    if lab.leases:  # the request was not on disk yet
        assert lab.leases[boost.id].state is ACTIVE
        lab.run(lab.service.release(boost.id))
        lab.wait(1.0)
    at_home(lab)


async def want_one_back(lab: WholeGrid, boost: Lease) -> Lease:
    """A caller that needs it asks again for as long as it does not see that it comes."""
    asked = reclaim(lab.parts, boost, "another request needs it", FOR_ANA, units=scale("cpu"))
    await lab.parts.commit()
    return asked


async def give_one(lab: WholeGrid, boost: Lease) -> Lease:
    """With a key, as the client does, and as the API then looks whether it was done."""
    if await lab.service.released_before(part_id("part")) is not None:
        return boost
    return await lab.service.release(boost.id, units=scale("cpu"), idempotency_key="part")


@pytest.mark.parametrize("point", Point)
def test_a_crash_at_any_fault_point_of_a_life_leaves_no_half_of_a_boost(
    make_grid: Callable[..., WholeGrid], point: Point
) -> None:
    """Granted, renewed, given up in part and then all, by a client that asks again after each crash."""
    reached = 0
    for kind, number in itertools.product(("cpu", "gpu"), range(4)):
        lab = make_grid(FakeCluster.lagging(number))
        lab.wait(0.5)
        lab.cluster.upcoming(number, raising(Crashed()), call=point)
        amount = 2 if kind == "cpu" else 1
        asked = ask("b", kind, amount, duration_s=60.0, grace_s=600.0, idempotency_key="k", reclaim_hook=WATCHED)

        def until_answered(do: Callable[[], Coroutine[Any, Any, Lease]], lab: WholeGrid = lab) -> Lease:
            nonlocal reached
            while True:
                try:
                    answer = lab.run(do())
                    lab.wait(2.0)  # outcomes are written, markers are lowered
                    return answer
                except Crashed:
                    reached += 1
                    lab.bury()
                    lab.start()

        boost = until_answered(lambda lab=lab, asked=asked: lab.service.request(asked))
        assert list(lab.leases) == list(lab.on_disk()) == [boost.id]
        until_answered(lambda lab=lab, boost=boost: lab.service.renew(boost.id, 600.0))
        assert lab.on_disk()[boost.id] == lab.leases[boost.id]
        assert lab.leases[boost.id].duration_s == 600.0
        assert (lab.cluster.true_totals()["b"] == cpu(6)) == (kind == "cpu")
        until_answered(lambda lab=lab, boost=boost: want_one_back(lab, boost))
        assert lab.on_disk()[boost.id].notice is not None
        if kind == "cpu":
            until_answered(lambda lab=lab, boost=boost: give_one(lab, boost))
            assert {lease.id: lease.units for lease in lab.leases.values()} == {boost.id: scale("cpu")}
            assert lab.on_disk() == lab.leases
        assert (lab.cluster.true_totals()["b"] == cpu(5)) == (kind == "cpu")
        assert len(lab.cluster.groups()) == (kind == "gpu")
        try:
            until_answered(lambda lab=lab, boost=boost: lab.service.release(boost.id))
        except BoostNotFound:
            assert reached  # it was released, and the answer was lost
        lab.cluster.nothing_upcoming()
        lab.wait(2.0)
        at_home(lab)
    assert reached, "the code does not pass here"


def test_boosts_survive_a_crash_and_a_stop(lab: WholeGrid) -> None:
    boosts = [lab.run(lab.service.request(ask("b", kind, 1))) for kind in ("cpu", "gpu")]
    lab.crash()
    assert {x.id: x.state for x in lab.leases.values()} == {b.id: ACTIVE for b in boosts}
    lab.stop()
    lab.start()
    assert {x.id: x.state for x in lab.leases.values()} == {b.id: ACTIVE for b in boosts}


def test_a_grant_that_a_crash_cut_off_is_not_completed_with_a_group_that_lost_its_node(lab: WholeGrid) -> None:
    lab.cluster.upcoming(0, raising(Crashed()), call="reserve", after=True)
    with pytest.raises(Crashed):
        lab.run(lab.service.request(ask("b", "gpu", 1, source="a")))
    lab.bury()
    lab.cluster.kill_node("a")
    lab.cluster.return_node("a")
    lab.start()
    (boost,) = lab.leases.values()
    assert boost.state is ACTIVE
    assert lab.cluster.has_place(boost.placement_group)
