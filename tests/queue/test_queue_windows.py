"""Windows, with the whole engine: they begin on time, survive restarts, and bound what is granted and renewed."""

from datetime import datetime, timedelta

import pytest
from builders import ask
from whole_grid import WholeGrid

from distributed_grid.errors import (
    InvalidRequest,
    NoCapacity,
    Refused,
    ReservedForWindow,
    WindowExists,
    WindowNotFound,
)
from distributed_grid.leases.rules import set_policy
from distributed_grid.model.leases import Cause, Lease, LeaseState
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.windows import Window
from distributed_grid.queue.answers import plan_answer, why_answer

pytestmark = pytest.mark.filterwarnings("ignore")

HIGH, LOW = AllocationPriority.HIGH, AllocationPriority.LOW


def in_minutes(lab: WholeGrid, minutes: float) -> datetime:
    """That many minutes from now, at a full minute."""
    at = lab.now() + timedelta(minutes=minutes)
    return at.replace(second=0, microsecond=0)


def reserve(
    lab: WholeGrid, begin: datetime, name: str = "w", *, minutes: float = 60, amount: float = 4, **terms: object
) -> Window:
    """A window of one day that begins then."""
    asked = ask("b", amount=amount, duration_s=minutes * 60, **terms)
    at = f"{begin:%Y-%m-%d %H:%M}"
    return lab.run(lab.service.queue.windows.create(name, asked, at, "UTC", who="ana"))


def wait_until(lab: WholeGrid, at: datetime) -> None:
    lab.wait(max(0.0, (at - lab.now()).total_seconds()))


def lend_all(lab: WholeGrid, **terms: object) -> list[Lease]:
    """All that a and c have is lent to b."""
    return [lab.run(lab.service.request(ask("b", amount=4, source=name, **terms))) for name in "ac"]


def boost_of(lab: WholeGrid, window: Window, begin: datetime) -> Lease | None:
    return lab.parts.ledger.get(window.id_of(begin))


def test_a_window_gets_its_boost_when_it_begins_and_it_ends_with_it(lab: WholeGrid) -> None:
    begin = in_minutes(lab, 30)
    window = reserve(lab, begin, minutes=20)
    wait_until(lab, begin - timedelta(seconds=1))
    assert not lab.leases
    wait_until(lab, begin + timedelta(seconds=1))
    boost = boost_of(lab, window, begin)
    assert boost is not None
    assert (boost.state, boost.cause, boost.label) == (LeaseState.ACTIVE, Cause.WINDOW, "window w")
    assert timedelta() <= boost.allocated_at - begin < timedelta(milliseconds=200)
    assert abs(boost.expires_at - begin - timedelta(minutes=20)) < timedelta(milliseconds=1)
    wait_until(lab, begin + timedelta(minutes=20, seconds=5))
    assert not lab.leases
    assert lab.events("window_created")
    assert lab.events("window_begun")
    assert lab.events("window_over")


def test_everything_was_lent_to_weaker_claims_and_the_window_begins_on_time(lab: WholeGrid) -> None:
    lend_all(lab, duration_s=6 * 3600.0, priority=LOW, grace_s=120.0)
    begin = in_minutes(lab, 30)
    window = reserve(lab, begin)
    wait_until(lab, begin - timedelta(seconds=150))
    assert not lab.events("reclaim_asked"), "no lease yields earlier than its grace period needs"
    wait_until(lab, begin + timedelta(seconds=1))
    boost = boost_of(lab, window, begin)
    assert boost is not None
    assert boost.allocated_at - begin < timedelta(milliseconds=200)
    (asked,) = lab.events("reclaim_asked")
    assert "the window w begins at" in asked
    assert len(lab.leases) == 2, "only as many leases yield as the window needs"


def test_a_holder_gets_notice_in_time(lab: WholeGrid) -> None:
    lab.run(
        lab.service.request(
            ask("b", source="a", amount=4, duration_s=7200.0, priority=LOW, grace_s=60.0, reclaim_hook="watch:")
        )
    )
    begin = in_minutes(lab, 30)
    window = reserve(lab, begin, sources=("a",))
    wait_until(lab, begin - timedelta(seconds=50))
    (held,) = lab.leases.values()
    assert held.notice is not None
    assert held.deadline is not None
    assert begin - timedelta(seconds=10) < held.deadline <= begin
    wait_until(lab, begin + timedelta(seconds=1))
    assert boost_of(lab, window, begin) is not None


def test_a_lease_that_would_overlap_is_refused_and_the_offered_shorter_one_is_granted(
    lab: WholeGrid,
) -> None:
    begin = in_minutes(lab, 61)
    reserve(lab, begin, amount=8, max_sources=2)
    with pytest.raises(NoCapacity) as refused:
        lab.run(lab.service.request(ask("b", amount=2, duration_s=2 * 3600.0)))
    said = "\n".join([*refused.value.because, refused.value.try_next or ""])
    assert "ReservedForWindow" in said
    assert "promised to the window w" in said
    assert "--duration" in said
    granted = lab.run(lab.service.request(ask("b", amount=2, duration_s=3000.0)))
    assert granted.state is LeaseState.ACTIVE


def test_what_a_window_leaves_is_lent_across_it(lab: WholeGrid) -> None:
    reserve(lab, in_minutes(lab, 10))
    assert lab.run(lab.service.request(ask("b", amount=4, duration_s=7200.0))).state is LeaseState.ACTIVE
    with pytest.raises(NoCapacity):
        lab.run(lab.service.request(ask("b", amount=1, duration_s=7200.0)))


def test_a_promise_stands_while_work_of_a_lenders_own_is_in_its_way(lab: WholeGrid) -> None:
    begin = in_minutes(lab, 30)
    window = reserve(lab, begin, amount=8, max_sources=2)
    work = lab.cluster.start("a", 4)
    assert work is not None
    lab.wait(2.0)
    with pytest.raises(NoCapacity):
        lab.run(lab.service.request(ask("b", amount=2, duration_s=7200.0)))
    lab.cluster.finish(work)
    wait_until(lab, begin + timedelta(seconds=1))
    assert boost_of(lab, window, begin) is not None


def test_a_better_claim_may_overlap_a_window(lab: WholeGrid) -> None:
    begin = in_minutes(lab, 10)
    window = reserve(lab, begin, amount=8, max_sources=2)
    assert lab.run(lab.service.request(ask("b", amount=4, duration_s=3600.0, priority=HIGH))).state is LeaseState.ACTIVE
    wait_until(lab, begin + timedelta(seconds=2))
    assert boost_of(lab, window, begin) is None
    assert lab.events("window_late")
    (waiting,) = lab.service.queue.in_order()
    assert waiting.id == window.id_of(begin)


def test_a_window_that_gets_nothing_is_missed_and_says_so(lab: WholeGrid) -> None:
    for lease in lend_all(lab, duration_s=7200.0, priority=HIGH):
        assert lease.state is LeaseState.ACTIVE
    begin = in_minutes(lab, 10)
    reserve(lab, begin, minutes=5)
    wait_until(lab, begin + timedelta(minutes=6))
    assert lab.events("window_missed")
    assert not lab.parts.sharing.waiting


def test_a_plan_and_a_reason_account_for_windows(lab: WholeGrid) -> None:
    begin = in_minutes(lab, 30)
    reserve(lab, begin, amount=8, max_sources=2, minutes=60)
    asked = ask("b", amount=2, duration_s=7200.0)
    plan = lab.run(plan_answer(lab.parts, lab.service.queue, asked))
    assert not plan["fits"]
    assert plan["ahead"] == 0
    assert plan["expected_start"] is not None
    assert datetime.fromisoformat(plan["expected_start"]) == begin + timedelta(hours=1)
    assert "the window w begins" in plan["summary"]
    waiting = lab.run(lab.service.enqueue(asked))
    lab.wait(1.0)
    (verdict,) = lab.service.queue.verdicts()
    assert (verdict.position, verdict.expected_start) == (1, begin + timedelta(hours=1))
    why = lab.run(why_answer(lab.parts, lab.service, waiting.id))
    assert {"ReservedForWindow"} <= {node["verdict"] for node in why["nodes"]}
    wait_until(lab, begin + timedelta(minutes=61))
    assert isinstance(lab.service.find(waiting.id), Lease)


def test_a_boost_is_renewed_only_until_a_window_begins(lab: WholeGrid) -> None:
    held = lab.run(lab.service.request(ask("b", amount=4, source="a", duration_s=600.0)))
    begin = in_minutes(lab, 30)
    window = reserve(lab, begin, amount=4, sources=("a",))
    renewed = lab.run(lab.service.renew(held.id, 7200.0))
    assert renewed.expires_at == begin
    with pytest.raises(ReservedForWindow):
        lab.run(lab.service.renew(held.id, 7200.0))
    lab.run(lab.service.queue.cancel_window(window, who="ana"))
    assert lab.run(lab.service.renew(held.id, 7200.0)).expires_at > begin


def test_a_boost_in_no_windows_way_is_renewed_in_full(lab: WholeGrid) -> None:
    held = lab.run(lab.service.request(ask("b", amount=4, source="a", duration_s=600.0)))
    begin = in_minutes(lab, 30)
    window = reserve(lab, begin, amount=4)
    assert lab.run(lab.service.renew(held.id, 7200.0)).expires_at > begin
    wait_until(lab, begin + timedelta(seconds=1))
    assert boost_of(lab, window, begin) is not None


@pytest.mark.parametrize("restart_s", [-1.0, 0.0, 0.3, 60.0])
def test_a_restart_around_the_beginning_requests_an_occurrence_once(lab: WholeGrid, restart_s: float) -> None:
    begin = in_minutes(lab, 10)
    window = reserve(lab, begin, amount=4, minutes=30)
    wait_until(lab, begin + timedelta(seconds=restart_s))
    lab.crash()
    wait_until(lab, begin + timedelta(seconds=62))
    boost = boost_of(lab, window, begin)
    assert boost is not None
    assert len(lab.leases) == 1
    assert abs(boost.expires_at - begin - timedelta(minutes=30)) < timedelta(seconds=1)


def test_an_occurrence_whose_boost_was_released_is_not_requested_again_after_a_restart(lab: WholeGrid) -> None:
    begin = in_minutes(lab, 10)
    window = reserve(lab, begin)
    wait_until(lab, begin + timedelta(seconds=2))
    boost = boost_of(lab, window, begin)
    assert boost is not None
    lab.run(lab.service.release(boost.id))
    lab.wait(3.0)
    lab.crash()
    lab.wait(30.0)
    assert not lab.leases
    assert not lab.parts.sharing.waiting


def test_a_window_repeats_and_survives_restarts(lab: WholeGrid) -> None:
    first = in_minutes(lab, 10)
    asked = ask("b", amount=2, duration_s=1200.0)
    window = lab.run(lab.service.queue.windows.create("daily", asked, f"daily {first:%H:%M}", "UTC", who="ana"))
    lab.stop()
    lab.start()
    assert lab.parts.sharing.windows["daily"] == window
    for day in range(2):
        begin = first + timedelta(days=day)
        lab.stop()  # time flies while it is away
        lab.clock.sleep((begin - lab.now()).total_seconds() - 60)
        lab.start()
        wait_until(lab, begin + timedelta(seconds=1))
        assert boost_of(lab, window, begin) is not None
        lab.wait(1300.0)
        assert not lab.leases


def test_cancel_ends_the_promise_and_leaves_the_boost(lab: WholeGrid) -> None:
    begin = in_minutes(lab, 10)
    window = reserve(lab, begin, amount=8, max_sources=2)
    lab.run(lab.service.queue.cancel_window(window, who="ana"))
    assert lab.run(lab.service.request(ask("b", amount=4, duration_s=7200.0))).state is LeaseState.ACTIVE
    with pytest.raises(WindowNotFound):
        lab.service.queue.windows.find("w")
    again = reserve(lab, in_minutes(lab, 20), "again")
    wait_until(lab, in_minutes(lab, 20) + timedelta(seconds=2))
    boost = lab.run(lab.service.queue.cancel_window(lab.service.queue.windows.find("again"), who="ana"))
    assert boost is not None
    assert boost.id.startswith(again.id_of(boost.allocated_at.replace(second=0, microsecond=0))[:8])
    assert lab.leases[boost.id].state is LeaseState.ACTIVE


def test_windows_that_cannot_be_kept_are_refused_with_the_reason(lab: WholeGrid) -> None:
    begin = in_minutes(lab, 10)
    reserve(lab, begin)
    with pytest.raises(WindowExists):
        reserve(lab, begin)
    with pytest.raises(NoCapacity) as refused:
        reserve(lab, begin, "large", amount=100)
    assert any("can ever lend" in line for line in refused.value.because)
    create = lab.service.queue.windows.create
    with pytest.raises(InvalidRequest, match="overlap itself"):
        lab.run(create("long", ask("b", duration_s=25 * 3600.0), "daily 09:00", "UTC", who="ana"))
    with pytest.raises(InvalidRequest, match="is over"):
        lab.run(create("past", ask("b"), "2020-01-01 09:00", "UTC", who="ana"))
    with pytest.raises(InvalidRequest, match="time zone"):
        lab.run(create("where", ask("b"), "daily 09:00", "Mars/Olympus", who="ana"))
    for number in range(99):
        reserve(lab, begin, f"w{number}", amount=0.1)
    with pytest.raises(Refused, match="100 windows"):
        reserve(lab, begin, "more", amount=0.1)


def test_a_policy_that_never_preempts_takes_nothing_for_a_window(lab: WholeGrid) -> None:
    held = lend_all(lab, duration_s=7200.0, priority=LOW)
    lab.run(set_policy(lab.parts, policy="conservative"))
    begin = in_minutes(lab, 10)
    window = reserve(lab, begin, amount=2)
    wait_until(lab, begin + timedelta(seconds=10))
    assert boost_of(lab, window, begin) is None
    assert {one.id for one in held} <= {*lab.leases}
