"""Boosts from asking to giving back, and what a crash, a busy source or a full disk leaves of them."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from builders import ask, cpu, lease
from fake_cluster import Crashed, FakeCluster, LostReply
from whole_grid import WholeGrid, together

from distributed_grid.errors import BoostNotFound, GridError, NoCapacity, NotRenewable, StoreBroken, TargetNotFound
from distributed_grid.faults import Point
from distributed_grid.model.leases import Delivery, Lease, LeaseState, OnGraceEnd

ACTIVE, RELEASED, RELEASING = LeaseState.ACTIVE, LeaseState.RELEASED, LeaseState.RELEASING

pytestmark = pytest.mark.filterwarnings("ignore")


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def at_home(lab: WholeGrid) -> None:
    """Nothing is lent, nothing is known, nothing is left over."""
    assert not lab.leases
    assert not lab.on_disk()
    assert lab.cluster.is_at_base(), lab.cluster.differences()
    assert not lab.cluster.violations, lab.cluster.violations[0]
    assert not lab.failures, repr(lab.failures[0])


# -- asking and giving back --------------------------------------------------------------------------------


def test_a_boost_is_there_at_once_and_goes_home_at_once(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2)))
    assert boost.state is ACTIVE
    assert lab.cluster.true_totals()["b"] == cpu(6)
    assert lab.run(lab.service.release(boost.id)).state is RELEASED
    lab.wait(0.1)
    at_home(lab)


def test_a_boost_ends_when_its_time_is_over(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=2, duration_s=5.0)))
    lab.wait(4.5)
    assert lab.leases
    lab.wait(1.5)
    at_home(lab)


def test_a_renewed_boost_lasts_as_long_again(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, duration_s=5.0)))
    lab.wait(4.0)
    lab.run(lab.service.renew(boost.id))
    lab.wait(4.0)
    assert lab.leases[boost.id].state is ACTIVE
    lab.wait(2.5)
    at_home(lab)


def test_a_boost_that_is_on_its_way_home_cannot_be_renewed(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2)))
    lab.cluster.start("b", 6)
    lab.run(lab.service.release(boost.id, wait_s=0.0))
    with pytest.raises(NotRenewable):
        lab.run(lab.service.renew(boost.id))


def test_who_is_refused_learns_why_within_a_moment(lab: WholeGrid) -> None:
    before = lab.clock.now
    with pytest.raises(NoCapacity) as caught:
        lab.run(lab.service.request(ask("b", amount=9)))
    assert any("4 CPUs free" in line for line in caught.value.because)
    assert lab.clock.now - before < 1.0
    at_home(lab)


def test_who_waits_gets_it_when_it_is_free(lab: WholeGrid) -> None:
    work = [lab.cluster.start(name, 4) for name in ("a", "c")]

    async def later() -> None:
        await asyncio.sleep(3.0)
        lab.cluster.finish(work[0])

    boost, _ = lab.run(together(lab.service.request(ask("b", amount=3), wait_s=10.0), later()))
    assert (boost.state, boost.source) == (ACTIVE, "a")


def test_an_unknown_target_or_boost_is_told(lab: WholeGrid) -> None:
    with pytest.raises(TargetNotFound):
        lab.run(lab.service.request(ask("nowhere")))
    with pytest.raises(BoostNotFound):
        lab.run(lab.service.release("nothing"))


@pytest.mark.parametrize("on_grace_end", [OnGraceEnd.DRAIN, OnGraceEnd.KILL])
def test_a_queue_does_not_hold_a_boost_for_ever(lab: WholeGrid, on_grace_end: OnGraceEnd) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, on_grace_end=on_grace_end)))
    lab.cluster.queue("b", 30)
    lab.run(lab.service.release(boost.id, grace_s=0.5, wait_s=0.0))

    async def short_tasks() -> None:
        for _ in range(40):
            await asyncio.sleep(0.5)
            if running := lab.cluster.running("b"):
                lab.cluster.finish(running[0])

    lab.run(short_tasks())
    assert boost.id not in lab.leases
    assert not lab.cluster.violations


def test_a_queue_holds_a_boost_that_says_hold_and_it_is_told_who(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, on_grace_end=OnGraceEnd.HOLD)))
    lab.cluster.queue("b", 30)
    lab.run(lab.service.release(boost.id, grace_s=0.5, wait_s=0.0))
    lab.wait(5.0)
    assert lab.leases[boost.id].state is RELEASING
    assert "work" in lab.parts.notes[boost.id][0]


def test_many_at_once_never_get_more_than_there_is(lab: WholeGrid) -> None:
    answers = lab.run(together(*(lab.service.request(ask("b", amount=2)) for _ in range(8))))
    granted = [a for a in answers if not isinstance(a, BaseException)]
    assert len(granted) == 4  # 8 CPUs on a and c
    assert all(isinstance(a, NoCapacity) for a in answers if isinstance(a, BaseException))
    assert lab.cluster.true_totals()["b"] == cpu(12)
    assert not lab.cluster.violations


# -- crashes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["save", "resize", "reserve"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_crash_at_any_step_of_a_grant_leaves_a_whole_boost_or_none(
    lab: WholeGrid, call: str, number: int, after: bool, kind: str
) -> None:
    lab.cluster.upcoming(number, raising(Crashed()), call=call, after=after)
    try:
        lab.run(lab.service.request(ask("b", kind, 1)))
        lab.wait(0.5)
    except Crashed:
        lab.bury()
        lab.start()
    lab.cluster.nothing_upcoming()
    lab.wait(3.0)
    assert all(lease.state is ACTIVE for lease in lab.leases.values())
    moved = lab.cluster.true_totals()["b"] != cpu(4)
    assert len(lab.cluster.groups()) + moved == len(lab.leases)
    for boost in lab.leases.values():
        lab.run(lab.service.release(boost.id))
    lab.wait(1.0)
    at_home(lab)


@pytest.mark.parametrize("call", ["save", "resize", "remove_group"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_a_crash_at_any_step_of_a_release_gives_everything_back_or_nothing(
    lab: WholeGrid, call: str, number: int, after: bool, kind: str
) -> None:
    boost = lab.run(lab.service.request(ask("b", kind, 1)))
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
    if lab.leases:  # the wish was not on disk yet
        assert lab.leases[boost.id].state is ACTIVE
        lab.run(lab.service.release(boost.id))
        lab.wait(1.0)
    at_home(lab)


@pytest.mark.parametrize("point", Point)
def test_a_crash_at_any_fault_point_of_a_life_leaves_no_half_of_a_boost(
    make_grid: Callable[..., WholeGrid], point: Point
) -> None:
    """Granted, renewed and released, by a client that asks again after each crash, as the command does."""
    reached = 0
    for kind, number in itertools.product(("cpu", "gpu"), range(4)):
        lab = make_grid(FakeCluster.lagging(number))
        lab.wait(0.5)
        lab.cluster.upcoming(number, raising(Crashed()), call=point)
        asked = ask("b", kind, 1, duration_s=60.0, idempotency_key="k")

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
        assert (lab.cluster.true_totals()["b"] == cpu(5)) == (kind == "cpu")
        assert len(lab.cluster.groups()) == (kind == "gpu")
        try:
            until_answered(lambda lab=lab, boost=boost: lab.service.release(boost.id))
        except BoostNotFound:
            assert reached  # it was released, and the answer was lost
        lab.cluster.nothing_upcoming()
        lab.wait(2.0)
        at_home(lab)
    assert reached, "nobody passes here"


def test_nothing_is_left_on_nodes_by_a_boost_that_ended_just_before_grid_stopped(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2)))
    lab.run(lab.service.release(boost.id))
    lab.stop()
    assert lab.cluster.is_at_base(), lab.cluster.differences()
    lab.start()


def test_boosts_survive_a_crash_and_a_stop(lab: WholeGrid) -> None:
    boosts = [lab.run(lab.service.request(ask("b", kind, 1))) for kind in ("cpu", "gpu")]
    lab.crash()
    assert {x.id: x.state for x in lab.leases.values()} == {b.id: ACTIVE for b in boosts}
    lab.stop()
    lab.start()
    assert {x.id: x.state for x in lab.leases.values()} == {b.id: ACTIVE for b in boosts}


def test_whoever_deletes_the_file_ends_the_boosts(lab: WholeGrid) -> None:
    for kind in ("cpu", "gpu"):
        lab.run(lab.service.request(ask("b", kind, 1)))
    lab.wait(0.5)
    lab.home.boosts.unlink()
    lab.wait(3.0)
    at_home(lab)


def test_a_file_that_was_deleted_while_nobody_looked_ends_the_boosts_too(lab: WholeGrid) -> None:
    for kind in ("cpu", "gpu"):
        lab.run(lab.service.request(ask("b", kind, 1)))
    lab.wait(0.5)
    lab.bury()
    lab.home.boosts.unlink()
    lab.start()
    lab.wait(3.0)
    at_home(lab)


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
    assert lab.parts.notes[boost.id] == ("a is busy: 2 CPUs will come as work there ends",)
    assert lab.cluster.true_totals()["b"] == cpu(4)
    for each in work[:2]:
        lab.cluster.finish(each)
    lab.wait(2.0)
    assert boost.id not in lab.parts.notes
    assert lab.cluster.true_totals()["b"] == cpu(6)


# -- what was found ----------------------------------------------------------------------------------------


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


def test_a_reservation_that_was_made_again_without_an_answer_is_known_by_its_new_group(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", "gpu", 1, source="a")))
    lab.wait(0.5)
    lab.cluster.kill_node("a")
    lab.cluster.return_node("a")
    lab.cluster.upcoming(0, raising(LostReply()), call="reserve", after=True)
    lab.wait(5.0)
    assert lab.cluster.has_place(lab.leases[boost.id].placement_group)


@pytest.mark.parametrize("listed", [False, True])
def test_a_group_that_is_made_while_upkeep_looks_is_left_alone(lab: WholeGrid, listed: bool) -> None:
    """The list was drawn up before the group was there, or before it had its place; then its grant was complete."""
    new = lease("new", "a", "b", kind="gpu", amount=1, state=LeaseState.GRANTING, delivery=Delivery.RESERVE)
    lab.parts.in_flight.add(new.id)
    lab.parts.ledger.put(new)
    made = lab.cluster.reserve(new, lab.cluster.ids()["a"], 2) if listed else None
    lab.cluster.set_standing(made, False)

    def grant() -> None:
        group = made or lab.cluster.reserve(new, lab.cluster.ids()["a"], 2)
        lab.cluster.set_standing(group, True)
        lab.parts.ledger.put(new.to(ACTIVE, placement_group=group))
        lab.parts.in_flight.discard(new.id)

    lab.cluster.upcoming(0, grant, call="groups", after=True)
    lab.wait(3.0)
    assert lab.leases[new.id].state is ACTIVE
    assert lab.cluster.has_place(lab.leases[new.id].placement_group)
    assert not lab.failures, repr(lab.failures[0])
    assert not any(event.event == "reserved_again" for event in lab.parts.journal.since(0))


def test_a_grant_that_failed_half_way_is_known_until_all_of_it_is_home(lab: WholeGrid) -> None:
    """The source gave one of two CPUs, the target's queue took it at once: somebody must bring it home."""
    lab.cluster.queue("b", 40)
    lab.cluster.upcoming(0, lambda: lab.cluster.start("a", 3), call="resize")
    with pytest.raises(GridError):
        lab.run(lab.service.request(ask("b", amount=2, source="a", on_grace_end=OnGraceEnd.DRAIN, grace_s=0.0)))

    async def short_tasks() -> None:
        for _ in range(30):
            await asyncio.sleep(0.3)
            if running := lab.cluster.running("b"):
                lab.cluster.finish(running[0])

    lab.run(short_tasks())
    assert lab.cluster.true_totals()["b"] == cpu(4)


def test_a_boost_released_while_upkeep_completes_its_grant_is_released(make_grid: Callable[..., WholeGrid]) -> None:
    """A reply was lost, so upkeep completes the grant; meanwhile the user asks it back."""
    for seed in range(6):
        lab = make_grid(FakeCluster(), seed)
        lab.cluster.upcoming(1, raising(LostReply()), after=True)
        with pytest.raises(LostReply):
            lab.run(lab.service.request(ask("b", amount=2)))
        (boost,) = lab.leases.values()
        lab.run(lab.service.release(boost.id, wait_s=0.0))
        lab.wait(3.0)
        at_home(lab)


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


def test_a_boost_asked_for_after_the_file_was_deleted_is_not_ended_with_the_others(lab: WholeGrid) -> None:
    lab.run(lab.service.request(ask("b", amount=1)))
    lab.wait(0.3)
    lab.home.boosts.unlink()
    new = lab.run(lab.service.request(ask("b", amount=2)))
    lab.wait(3.0)
    assert list(lab.leases) == [new.id]


def test_what_a_full_disk_did_not_take_is_written_when_there_is_room(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=1)))
    lab.wait(0.5)
    for number in range(20):
        lab.cluster.upcoming(number, raising(StoreBroken("no space")), call="save")
    released = lab.run(lab.service.release(boost.id))
    assert released.state is RELEASED
    assert "no space; if the controller starts again" in released.warnings[0]
    assert lab.on_disk()
    lab.wait(1.0)
    lab.cluster.nothing_upcoming()
    lab.wait(3.0)
    at_home(lab)


def test_a_client_that_gave_up_can_ask_again(lab: WholeGrid) -> None:
    asked = ask("b", amount=9, idempotency_key="k")

    async def give_up() -> None:
        asking = asyncio.ensure_future(lab.service.request(asked))
        await asyncio.sleep(0.001)
        lab.service.abandon("k")
        with pytest.raises(NoCapacity):
            await asking

    lab.run(give_up())
    again = ask("b", amount=2, idempotency_key="k")
    assert lab.run(lab.service.request(again)).state is ACTIVE


def test_a_reservation_made_while_upkeep_looks_for_groups_is_left_alone(make_grid: Callable[..., WholeGrid]) -> None:
    for seed in range(10):
        lab = make_grid(FakeCluster(), seed)
        lab.wait(0.9)
        for _ in range(12):
            boost = lab.run(lab.service.request(ask("b", "gpu", 1)))
            lab.wait(0.09)
            lab.run(lab.service.release(boost.id))
        lab.wait(2.0)
        at_home(lab)
