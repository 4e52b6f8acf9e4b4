"""Which change a lease is due for: expiry, notices, reclaim, release, and the end of its grace period."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from builders import FOR_ANA, NOON, ask, lease, node, reservation
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.returns import expected_end
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.leases.lifecycle import (
    GroupEnd,
    Pressure,
    Take,
    group_end,
    is_expired,
    is_gone,
    is_lost_with,
    is_notice_over,
    lease_from,
    may_have_grace,
    must_leave,
    pressure_on,
    reclaim_of,
    release_of,
)
from distributed_grid.model.endings import EndCause, Ending, OnGraceEnd
from distributed_grid.model.lease_changes import NoticeGiven, Promised, Reclaimed, ReleaseAsked, changed, split
from distributed_grid.model.leases import Lease, LeaseState, Notice, Program
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.plans import Grant

ASKED_BACK = Notice(10_000, "ana needs it", NOON, NOON + timedelta(seconds=15))
HOOK = {"reclaim_hook": "watch:"}
DRAINS, RECLAIMED = LeaseState.RELEASING, LeaseState.RECLAIMING


def later(seconds: float) -> Any:
    return NOON + timedelta(seconds=seconds)


def winding(state: LeaseState = DRAINS, **more: Any) -> Lease:
    return lease(state=state, release_asked_at=NOON, release_reason="released", **more)


def test_a_grant_becomes_a_lease_with_what_the_request_says_and_otherwise_the_defaults() -> None:
    nodes = NodeTable([node("gpu-master"), node("gpu1")])
    for said, expected in (({}, (9.0, OnGraceEnd.DRAIN)), ({"grace_s": 3.0, "on_grace_end": OnGraceEnd.KILL},) * 2):
        plan = plan_grant(ask(label="mine", idempotency_key="k", **said), nodes, Usage())
        assert isinstance(plan, Grant)
        found = lease_from((plan,), "b1", NOON, grace_s=9.0, on_grace_end=OnGraceEnd.DRAIN)
        assert (found.state, found.expires_at) == (LeaseState.GRANTING, later(3600))
        assert (found.label, found.idempotency_key) == ("mine", "k")
        assert (found.grace_s, found.on_grace_end) == (tuple(said.values()) or expected)


def test_what_is_due() -> None:
    noticed = lease(notice=ASKED_BACK)
    assert is_expired(lease(), later(3600)) and not is_expired(lease(), later(3599))
    assert not is_expired(winding(), later(9999))
    assert is_notice_over(noticed, later(15)) and not is_notice_over(noticed, later(14))
    assert must_leave(lease(), {"gpu1"}) and must_leave(lease(), {"gpu-master"})
    assert not any(must_leave(one, {"gpu1"}) for one in (noticed, winding(), lease(source="gpu2")))


@pytest.mark.parametrize(
    ("one", "gone", "expected"),
    [
        (lease(), {"gpu1"}, True),
        (lease(), {"gpu-master"}, True),
        (reservation(), {"gpu1"}, True),
        (reservation(), {"gpu-master"}, False),  # its target is only a name
        (lease(state=LeaseState.GRANTING), {"gpu1"}, False),
        (lease(state=LeaseState.LOST), {"gpu1"}, False),
    ],
)
def test_a_lease_goes_with_the_nodes_that_it_needs(one: Lease, gone: set[str], expected: bool) -> None:
    assert is_lost_with(one, gone) is expected


@pytest.mark.parametrize(
    ("absent_s", "since_start_s", "was_seen", "expected"),
    [
        (1.9, 100, True, False),
        (2.0, 100, True, True),
        (2.0, 10, True, True),
        (10.0, 10, False, False),  # after a restart of the cluster it may still come
        (2.0, 30, False, True),
    ],
)
def test_a_node_counts_as_gone_after_a_moment(
    absent_s: float, since_start_s: float, was_seen: bool, expected: bool
) -> None:
    began, absent_since = later(-since_start_s), later(-absent_s)
    assert is_gone(absent_since, NOON, began=began, was_seen=was_seen) is expected


@pytest.mark.parametrize(
    ("one", "units", "expected"),
    [
        (lease(), None, Take(20_000)),
        (lease(), 5_000, Take(5_000)),
        (lease(), 90_000, Take(20_000)),
        (reservation(), 5_000, Take(10_000)),  # a placement group cannot shrink
        (lease(**HOOK, grace_s=0.0), None, Take(20_000)),
        (lease(**HOOK, notice=ASKED_BACK), 10_000, None),
        (lease(state=RECLAIMED), None, None),
        (lease(state=LeaseState.GRANTING), None, None),
    ],
)
def test_a_reclaim_takes_what_is_needed_unless_it_is_taken_already(
    one: Lease, units: int | None, expected: Any
) -> None:
    assert reclaim_of(one, units, "why", FOR_ANA, NOON) == expected


def test_a_holder_with_a_hook_gets_half_of_its_grace_period_and_no_more_when_more_is_needed() -> None:
    first = reclaim_of(lease(**HOOK), 5_000, "why", FOR_ANA, NOON)
    assert first == NoticeGiven(Notice(5_000, "why", NOON, later(15)), FOR_ANA)
    more = reclaim_of(changed(lease(**HOOK), first), 15_000, "more", FOR_ANA, later(9))
    assert more == NoticeGiven(Notice(15_000, "more", NOON, later(15)), FOR_ANA)


def test_what_winds_down_anyway_is_promised_and_keeps_its_reason() -> None:
    released = Ending(EndCause.RELEASED, "bob")
    found = reclaim_of(winding(ending=released), None, "why", FOR_ANA, later(9))
    assert found == Promised(replace(released, claimant=FOR_ANA.claimant))


def test_an_answer_to_a_notice_gains_no_time() -> None:
    noticed = lease(notice=ASKED_BACK, ending=FOR_ANA)
    assert release_of(noticed, "done", later(10), by="bob") == Reclaimed("done", later(10), 20.0, FOR_ANA)
    assert release_of(lease(), "done", NOON, by="bob") == ReleaseAsked(
        "done", NOON, 30.0, Ending(EndCause.RELEASED, "bob")
    )


def test_only_the_grace_period_of_what_is_promised_to_none_may_become_longer() -> None:
    assert may_have_grace(lease(), 60.0) and may_have_grace(lease(), 10.0) and not may_have_grace(lease(), 30.0)
    for promised in (lease(notice=ASKED_BACK), winding(RECLAIMED)):
        assert may_have_grace(promised, 10.0) and not may_have_grace(promised, 60.0)


@pytest.mark.parametrize(
    ("state", "ending", "at_first", "then"),
    [
        (DRAINS, OnGraceEnd.HOLD, Pressure(), Pressure()),
        (DRAINS, OnGraceEnd.DRAIN, Pressure(), Pressure(gates=True)),
        (DRAINS, OnGraceEnd.KILL, Pressure(), Pressure(gates=True, kills=True)),
        (RECLAIMED, OnGraceEnd.HOLD, Pressure(gates=True), Pressure(gates=True, kills=True)),
    ],
)
def test_work_that_stays_is_pressed_as_the_lease_says(
    state: LeaseState, ending: OnGraceEnd, at_first: Pressure, then: Pressure
) -> None:
    one = winding(state, on_grace_end=ending)
    assert (pressure_on(one, later(29)), pressure_on(one, later(30))) == (at_first, then)


def test_a_group_goes_with_its_last_work_or_at_its_deadline_and_a_program_has_a_moment_to_end() -> None:
    group = reservation(state=DRAINS, release_asked_at=NOON)
    inside = replace(group, programs=(Program("p", "", later(900)),))
    assert group_end(group, NOON, is_in_use=False) is GroupEnd.OVER
    assert group_end(group, later(29), is_in_use=True) is GroupEnd.IN_USE
    assert group_end(group, later(30), is_in_use=True) is GroupEnd.OVER
    assert group_end(inside, later(29), is_in_use=False) is GroupEnd.IN_USE
    assert group_end(inside, later(31), is_in_use=False) is GroupEnd.BEING_ENDED
    assert group_end(inside, later(60), is_in_use=False) is GroupEnd.OVER
    assert group_end(replace(inside, state=LeaseState.LOST), NOON, is_in_use=False) is GroupEnd.OVER


@given(
    st.sampled_from([LeaseState.ACTIVE, LeaseState.RELEASING, LeaseState.RECLAIMING, LeaseState.GRANTING]),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 40), st.none() | st.integers(1, 30_000)), min_size=1, max_size=5),
)
def test_what_is_decided_is_legal_and_what_was_promised_is_never_later(
    state: LeaseState, hooked: bool, reclaims: list[tuple[int, int | None]]
) -> None:
    one = winding(state, **(HOOK if hooked else {})) if state in (DRAINS, RECLAIMED) else lease(state=state, **HOOK)
    passed = 0
    for seconds, units in reclaims:
        passed += seconds
        before = one
        match reclaim_of(one, units, "why", FOR_ANA, later(passed)):
            case Take(wanted) if wanted < one.units:
                one, given = split(one, wanted, "part")
                one = changed(given, release_of(given, "why", later(passed), by="ana", is_reclaimed=True))
            case Take():
                one = changed(one, release_of(one, "why", later(passed), by="ana", is_reclaimed=True))
            case None:
                pass
            case change:
                one = changed(one, change)
        if before.is_promised and before.deadline is not None:
            assert one.deadline is not None and one.deadline <= before.deadline
        if one.is_promised and one.deadline is not None and one.deadline > later(passed + 10):
            assert expected_end(one, later(passed)) <= max(one.deadline, one.expires_at)
