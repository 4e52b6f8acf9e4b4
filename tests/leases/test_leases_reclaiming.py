"""Boosts that are asked back for another request: the holder has its chance, and the capacity is back in time."""

import asyncio
from collections.abc import Callable

import pytest
from builders import FOR_ANA, ask, cpu
from whole_grid import WholeGrid, at_home

from distributed_grid.errors import InvalidAmount, InvalidDuration, Refused
from distributed_grid.leases.reclaim import cordon, reclaim
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import WATCHED, Lease, LeaseState
from distributed_grid.model.principals import THE_OWNER
from distributed_grid.model.resources import CPU, scale

ACTIVE, RELEASED = LeaseState.ACTIVE, LeaseState.RELEASED
RELEASING, RECLAIMING = LeaseState.RELEASING, LeaseState.RECLAIMING
CPUS = scale(CPU)
GRACE_S = 10.0

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def lab(make_grid: Callable[..., WholeGrid]) -> WholeGrid:
    return make_grid(policy="aggressive")


def lend(lab: WholeGrid, amount: float = 3, hook: str | None = WATCHED, **changes: object) -> Lease:
    """From `a` to `b`; its holder wants to be asked."""
    asked = ask("b", amount=amount, source="a", grace_s=GRACE_S, reclaim_hook=hook, **changes)
    return lab.run(lab.service.request(asked))


def want_back(lab: WholeGrid, lease: Lease, cpus: float | None = None, reason: str = "ana needs it") -> Lease:
    async def asking() -> Lease:
        asked = reclaim(lab.parts, lease, reason, FOR_ANA, units=None if cpus is None else int(cpus * CPUS))
        await lab.parts.try_commit()
        return asked

    return lab.run(asking())


def on_b(lab: WholeGrid) -> float:
    return lab.cluster.true_totals()["b"][CPU] / CPUS


def the_other(lab: WholeGrid, lease: Lease) -> Lease:
    """The part that was split off."""
    (other,) = (found for found in lab.leases.values() if found.id != lease.id)
    return other


def settled(lab: WholeGrid) -> None:
    """The nodes have exactly what the ledger says, and the file says the same."""
    lab.wait(0.5)
    assert on_b(lab) == 4 + sum(lease.units for lease in lab.leases.values()) / CPUS
    assert lab.on_disk() == lab.leases
    assert not lab.cluster.violations
    assert not lab.failures


def test_a_holder_that_is_asked_keeps_its_boost_until_the_deadline(lab: WholeGrid) -> None:
    boost = lend(lab)

    asked = want_back(lab, boost, 2)

    assert (asked.id, asked.state, asked.units) == (boost.id, ACTIVE, boost.units)
    assert asked.notice is not None
    assert asked.notice.units == 2 * CPUS
    assert (asked.notice.deadline - asked.notice.asked_at).total_seconds() == GRACE_S / 2
    assert lab.on_disk()[boost.id] == asked
    assert "2 CPUs of 3 CPUs from a to b: ana needs it" in lab.events("reclaim_asked")[0]
    lab.wait(GRACE_S / 2 - 0.5)
    assert on_b(lab) == 7


def test_a_holder_that_gives_what_is_asked_keeps_the_rest(lab: WholeGrid) -> None:
    boost = lend(lab)
    want_back(lab, boost, 2)

    given = lab.run(lab.service.release(boost.id, units=2 * CPUS))

    assert (given.state, given.units) == (RELEASED, 2 * CPUS)
    assert given.id != boost.id
    kept = lab.leases[boost.id]
    assert (kept.state, kept.units, kept.notice) == (ACTIVE, CPUS, None)
    lab.wait(2 * GRACE_S)
    assert list(lab.leases) == [boost.id]
    settled(lab)


def test_a_holder_may_give_more_than_is_asked(lab: WholeGrid) -> None:
    boost = lend(lab)
    want_back(lab, boost, 1)

    lab.run(lab.service.release(boost.id, units=2 * CPUS))

    lab.wait(2 * GRACE_S)
    assert lab.leases[boost.id].units == CPUS
    assert lab.leases[boost.id].notice is None
    settled(lab)


def test_what_a_holder_does_not_give_by_the_deadline_is_taken(lab: WholeGrid) -> None:
    boost = lend(lab)
    want_back(lab, boost, 2)
    lab.run(lab.service.release(boost.id, units=CPUS))
    assert lab.leases[boost.id].notice.units == CPUS

    lab.wait(GRACE_S / 2 + 0.5)

    assert lab.leases[boost.id].units == CPUS
    settled(lab)


def test_a_holder_that_gives_everything_up_is_done(lab: WholeGrid) -> None:
    boost = lend(lab)
    want_back(lab, boost, 2)

    assert lab.run(lab.service.release(boost.id)).state is RELEASED

    lab.wait(1.0)
    at_home(lab)


def test_work_of_a_silent_holder_is_ended_with_the_grace_period_and_not_before(lab: WholeGrid) -> None:
    """Its lease says hold: that is for when no request waits."""
    boost = lend(lab, on_grace_end=OnGraceEnd.HOLD)
    work = lab.cluster.start("b", 7)
    want_back(lab, boost)

    lab.wait(GRACE_S / 2 + 0.5)
    taken = lab.leases[boost.id]
    assert (taken.state, taken.notice) == (RECLAIMING, None)
    assert taken.grace_s == pytest.approx(GRACE_S / 2, abs=0.2)
    lab.wait(GRACE_S / 2 - 1.5)
    assert work in lab.cluster.running("b")
    lab.wait(3.0)
    assert work not in lab.cluster.running("b")
    assert lab.events("killed")
    at_home(lab)


def test_only_what_is_asked_is_taken_of_a_silent_holder(lab: WholeGrid) -> None:
    boost = lend(lab)
    young, old = [lab.cluster.start("b", cpus) for cpus in (5, 2)][::-1]
    want_back(lab, boost, 2)

    lab.wait(GRACE_S / 2 + 0.5)
    part = the_other(lab, boost)
    assert (part.state, part.units) == (RECLAIMING, 2 * CPUS)
    lab.wait(GRACE_S)

    assert lab.leases[boost.id].units == CPUS
    assert lab.cluster.running("b") == [old]
    assert young not in lab.cluster.running("b")
    settled(lab)


def test_a_holder_that_wants_no_notice_is_not_asked(lab: WholeGrid) -> None:
    boost = lend(lab, hook=None)

    taken = want_back(lab, boost, 2)

    assert (taken.state, taken.units) == (RECLAIMING, 2 * CPUS)
    assert taken.grace_s == GRACE_S
    lab.wait(1.0)
    assert lab.leases[boost.id].units == CPUS
    settled(lab)


def test_a_boost_without_a_grace_period_is_taken_at_once(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", source="a", grace_s=0.0, reclaim_hook=WATCHED)))
    lab.cluster.start("b", 6)

    assert want_back(lab, boost).state is RECLAIMING

    lab.wait(3.0)
    at_home(lab)


def short_tasks(lab: WholeGrid, count: int) -> int:
    """One task after another ends on `b`; how many could begin in the place of those."""

    async def work() -> None:
        for _ in range(count):
            await asyncio.sleep(0.4)
            if running := lab.cluster.running("b"):
                lab.cluster.finish(running[0])

    before = len(lab.cluster.running("b"))
    lab.run(work())
    return len(lab.cluster.running("b")) - before + count


def test_a_long_queue_does_not_keep_what_another_request_waits_for(lab: WholeGrid) -> None:
    """Nothing new starts on it from the beginning: so nothing need be killed at the end."""
    boost = lend(lab, hook=None, on_grace_end=OnGraceEnd.HOLD)
    lab.cluster.queue("b", 200)
    want_back(lab, boost)

    short_tasks(lab, 12)  # half of the grace period

    assert boost.id not in lab.leases
    assert on_b(lab) == 4
    assert not lab.events("killed")
    assert not lab.cluster.violations


def test_without_a_waiting_request_a_queue_holds_what_says_hold(lab: WholeGrid) -> None:
    boost = lend(lab, hook=None, on_grace_end=OnGraceEnd.HOLD)
    lab.cluster.queue("b", 200)
    lab.run(lab.service.release(boost.id, wait_s=0.0))

    short_tasks(lab, 12)

    assert lab.leases[boost.id].state is RELEASING


@pytest.mark.parametrize("hook", [None, WATCHED])
def test_a_reservation_comes_back_whole_and_in_time(lab: WholeGrid, hook: str | None) -> None:
    boost = lab.run(lab.service.request(ask("b", "gpu", 1, grace_s=GRACE_S, reclaim_hook=hook)))
    lab.cluster.start_in_group(boost.placement_group)

    asked = want_back(lab, boost, 0.5)

    assert asked.id == boost.id
    assert asked.notice is None or asked.notice.units == boost.units
    lab.wait(GRACE_S - 1.0)
    assert lab.leases[boost.id].holds_capacity
    lab.wait(2.0)
    at_home(lab)


def test_a_reservation_cannot_be_given_up_in_part_and_that_says_what_can_be_done(lab: WholeGrid) -> None:
    boost = lend(lab, delivery="reserve")

    with pytest.raises(Refused) as refused:
        lab.run(lab.service.release(boost.id, units=CPUS))

    assert "placement group" in refused.value.because[0]
    assert "grid boost request b cpu 2 --delivery reserve --source a" in refused.value.try_next
    assert lab.leases == {boost.id: boost}


def test_no_holder_gives_up_more_than_it_has(lab: WholeGrid) -> None:
    boost = lend(lab)
    with pytest.raises(InvalidAmount):
        lab.run(lab.service.release(boost.id, units=4 * CPUS))
    assert lab.run(lab.service.release(boost.id, units=3 * CPUS)).id == boost.id


def test_a_repeated_call_with_the_same_key_gives_up_a_part_only_once(lab: WholeGrid) -> None:
    boost = lend(lab)
    lab.cluster.start("b", 7)
    parts = [lab.run(lab.service.release(boost.id, units=CPUS, wait_s=0.0, idempotency_key="k")).id for _ in range(3)]
    assert len(set(parts)) == 1
    assert lab.leases[boost.id].units == 2 * CPUS


def test_being_asked_again_buys_no_time_and_being_asked_for_less_changes_nothing(lab: WholeGrid) -> None:
    boost = lend(lab)
    first = want_back(lab, boost, 1).notice
    lab.wait(2.0)

    assert want_back(lab, boost, 1).notice == first
    more = want_back(lab, boost, 2, reason="bo needs it, too").notice

    assert (more.units, more.asked_at, more.deadline) == (2 * CPUS, first.asked_at, first.deadline)


def test_one_that_is_asked_back_while_it_winds_down_is_waited_for_from_then_on(lab: WholeGrid) -> None:
    boost = lend(lab, on_grace_end=OnGraceEnd.HOLD)
    lab.cluster.start("b", 7)
    lab.run(lab.service.release(boost.id, wait_s=0.0))

    assert want_back(lab, boost).is_reclaimed

    lab.wait(GRACE_S + 2.0)
    at_home(lab)


def test_a_grace_period_has_a_limit_for_any_caller_and_at_any_time(lab: WholeGrid) -> None:
    boost = lend(lab)
    for grace_s in (601, "31000000"):
        with pytest.raises(InvalidDuration, match="at most 600 s"):
            lab.run(lab.service.release(boost.id, grace_s=grace_s, wait_s=0.0))
        with pytest.raises(InvalidDuration, match="at most 600 s"):
            lab.run(cordon(lab.parts, boost.source, grace_s=grace_s))
        body = {"target_node": "b", "resource_type": "cpu", "amount": 1, "priority": "normal", "duration_seconds": 60}
        body |= {
            "source_node": None,
            "delivery": None,
            "on_grace_end": None,
            "wait_seconds": 0,
            "grace_seconds": grace_s,
        }
        with pytest.raises(InvalidDuration, match="at most 600 s"):
            lab.run(lab.engine.request(body, caller=THE_OWNER))
    assert lab.leases[boost.id] == boost


def test_a_holder_that_was_asked_gains_no_time_by_releasing_with_a_longer_grace_period(lab: WholeGrid) -> None:
    boost = lend(lab)
    lab.cluster.start("b", 7)
    want_back(lab, boost)
    lab.wait(2.0)

    lab.run(lab.service.release(boost.id, grace_s=600.0, wait_s=0.0))
    assert lab.leases[boost.id].grace_s < GRACE_S
    lab.run(lab.service.release(boost.id, grace_s=600.0, wait_s=0.0))

    lab.wait(GRACE_S)
    at_home(lab)


def test_one_that_expires_while_it_is_asked_is_back_in_time(lab: WholeGrid) -> None:
    boost = lend(lab, duration_s=2.0, on_grace_end=OnGraceEnd.HOLD)
    lab.cluster.start("b", 7)
    want_back(lab, boost)

    lab.wait(GRACE_S + 2.0)

    at_home(lab)


def test_work_is_not_killed_because_grid_stops_while_it_is_asked(lab: WholeGrid) -> None:
    boost = lend(lab)
    work = lab.cluster.start("b", 7)
    want_back(lab, boost)

    with pytest.raises(Refused, match="still in use"):
        lab.run(lab.engine.give_all_back(wait_s=3.0))

    assert work in lab.cluster.running("b")


def test_one_whose_node_is_gone_is_asked_no_more(lab: WholeGrid) -> None:
    boost = lend(lab)
    want_back(lab, boost)
    lab.cluster.kill_node("a")
    lab.wait(2 * GRACE_S)
    assert not lab.failures
    assert boost.id not in lab.leases


def test_a_checkpoint_is_kept_and_told(lab: WholeGrid) -> None:
    boost = lend(lab)

    saved = lab.run(lab.service.checkpointed(boost.id[:6], who="ana"))

    assert saved.checkpointed_at is not None
    assert lab.on_disk()[boost.id].checkpointed_at == saved.checkpointed_at
    assert lab.events("checkpointed") == ["3 CPUs from a to b: its work is saved"]


# -- crashes -----------------------------------------------------------------------------------------------


def test_a_notice_survives_a_crash_with_its_deadline(lab: WholeGrid) -> None:
    boost = lend(lab)
    asked = want_back(lab, boost, 2)
    lab.wait(1.0)

    lab.crash()

    assert lab.leases[boost.id].notice == asked.notice
    lab.wait(GRACE_S / 2)
    assert lab.leases[boost.id].units == CPUS
    settled(lab)


def test_a_deadline_that_passes_while_no_controller_runs_is_kept_at_the_start(lab: WholeGrid) -> None:
    boost = lend(lab)
    want_back(lab, boost)
    lab.bury()
    lab.clock.sleep(60.0)

    lab.start()

    lab.wait(1.0)
    at_home(lab)
    assert boost.id not in lab.leases


def test_lent_amounts_are_the_same_before_and_after_a_part_is_given_up(lab: WholeGrid) -> None:
    boost = lend(lab)
    lab.cluster.start("b", 7)
    lab.run(lab.service.release(boost.id, units=2 * CPUS, wait_s=0.0))

    assert lab.parts.ledger.usage.lent_by("a") == cpu(3)
    assert lab.parts.ledger.usage.borrowed_by("b") == cpu(3)
