"""A lease changes only along the table, and every lease ends."""

from dataclasses import replace
from datetime import timedelta

import pytest
from builders import NOON, lease
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_grid.leases.ledger import Ledger
from distributed_grid.model.endings import EndCause, Ending
from distributed_grid.model.lease_changes import (
    CHANGES,
    LEGAL,
    Change,
    Checkpointed,
    Delivered,
    EndForced,
    GraceChanged,
    GroupLost,
    Grown,
    IdleChanged,
    IllegalTransition,
    Interrupted,
    KeyTaken,
    NodeLost,
    NotDelivered,
    NoticeGiven,
    NoticeWithdrawn,
    ProgramsChanged,
    Promised,
    Reclaimed,
    Regrouped,
    ReleaseAsked,
    RenewalUndone,
    Renewed,
    Resumed,
    Returned,
    Shrunk,
    changed,
    split,
)
from distributed_grid.model.leases import Delivery, Idle, Lease, LeaseState, Notice, Program, Share
from distributed_grid.model.resources import CPU, ResourceVector

WINDING = (LeaseState.RELEASING, LeaseState.RECLAIMING, LeaseState.LOST)
ENDING = Ending(EndCause.PREEMPTED, "ann")
LATER = NOON + timedelta(minutes=5)
NOTICE = Notice(1, "needed", NOON, NOON + timedelta(seconds=15))
ONE_OF_EACH: tuple[Change, ...] = (
    Delivered("g1"),
    NotDelivered("busy", NOON),
    Interrupted(),
    Resumed(),
    Regrouped("g2", ()),
    Renewed(LATER, 300.0),
    RenewalUndone(NOON, 60.0),
    NoticeGiven(NOTICE, ENDING),
    NoticeWithdrawn(),
    IdleChanged(Idle(NOON, yields=True)),
    Grown((Share("gpu1", 1, ResourceVector({CPU: 1})),)),
    Checkpointed(NOON),
    GraceChanged(5.0),
    ProgramsChanged((Program("p", "train", LATER),)),
    KeyTaken("k2"),
    ReleaseAsked("released", NOON, 30.0, ENDING),
    Reclaimed("needed", NOON, 30.0, ENDING),
    Promised(ENDING),
    EndForced(),
    NodeLost("gpu1 left", NOON, ENDING),
    Shrunk("gpu1", 1, ResourceVector({CPU: 1}), (Share("gpu1", 1, ResourceVector({CPU: 1})),), ("gpu2 left",)),
    GroupLost("it vanished", NOON),
    Returned(),
)


def test_every_change_is_in_the_table_and_here() -> None:
    assert set(CHANGES) == {type(change) for change in ONE_OF_EACH}
    assert {each.__name__ for each in CHANGES} == {each.__name__ for each in Change.__subclasses__()}


@pytest.mark.parametrize("change", ONE_OF_EACH, ids=lambda change: type(change).__name__)
@pytest.mark.parametrize("state", LeaseState)
def test_a_change_is_made_where_the_table_has_it_and_nowhere_else(state: LeaseState, change: Change) -> None:
    before = lease(state=state)
    if state not in CHANGES[type(change)]:
        with pytest.raises(IllegalTransition, match=f"b1: {type(change).__name__} while it is {state}"):
            changed(before, change)
        return
    after = changed(before, change)
    assert after.state is CHANGES[type(change)][state]
    assert before.state is state
    assert replace(after, state=state, **{name: getattr(before, name) for name in change.__slots__}) == before


def test_what_is_released_stays_released() -> None:
    assert LEGAL[LeaseState.RELEASED] == frozenset()


def test_nothing_comes_back_from_winding_down() -> None:
    for state in WINDING:
        assert LEGAL[state] <= {*WINDING, LeaseState.RELEASED}
    assert LeaseState.RELEASING not in LEGAL[LeaseState.RECLAIMING], "a promise is not taken back"


def test_every_state_leads_to_the_end() -> None:
    ends = {LeaseState.RELEASED}
    while more := {state for state in LeaseState if LEGAL[state] & ends} - ends:
        ends |= more
    assert ends == set(LeaseState)


@pytest.mark.parametrize("state", LeaseState)
def test_a_lease_holds_capacity_until_it_is_returned(state: LeaseState) -> None:
    found = lease(state=state)
    assert found.holds_capacity is (state is not LeaseState.RELEASED)
    assert found.is_winding_down is (state in WINDING)


def test_only_an_active_lease_has_a_notice() -> None:
    noticed = changed(lease(), NoticeGiven(NOTICE, ENDING))
    assert noticed.notice == NOTICE
    for change in (Reclaimed("", NOON, 0.0, ENDING), NodeLost("", NOON, ENDING), GroupLost("", NOON)):
        assert changed(noticed, change).notice is None


def test_only_the_notice_of_an_idle_lease_is_withdrawn() -> None:
    for cause in EndCause:
        noticed = changed(lease(), NoticeGiven(NOTICE, Ending(cause, "ann")))
        if cause is EndCause.IDLE:
            assert changed(noticed, NoticeWithdrawn()) == lease()
        else:
            with pytest.raises(IllegalTransition, match="cannot be withdrawn"):
                changed(noticed, NoticeWithdrawn())


@pytest.mark.parametrize("change", [GraceChanged(31.0), ReleaseAsked("", NOON, 31.0, ENDING)])
def test_a_promised_deadline_is_not_put_off(change: Change) -> None:
    noticed = changed(lease(grace_s=30.0), NoticeGiven(NOTICE, ENDING))
    with pytest.raises(IllegalTransition, match="promised"):
        changed(noticed, change)
    assert changed(lease(grace_s=30.0), change).grace_s == 31.0


seconds = st.floats(0.0, 600.0)
instants = seconds.map(lambda after: NOON + timedelta(seconds=after))
endings = st.builds(Ending, st.sampled_from(EndCause), st.just("ann"))
notices = st.builds(
    lambda units, at, span: Notice(units, "needed", at, at + timedelta(seconds=span)),
    st.integers(1, 9),
    instants,
    seconds,
)
some_change = st.one_of(
    *(st.just(change) for change in ONE_OF_EACH),
    st.builds(Renewed, instants, seconds),
    st.builds(NoticeGiven, notices, endings),
    st.builds(GraceChanged, seconds),
    st.builds(ReleaseAsked, st.just(""), instants, seconds, endings),
    st.builds(Reclaimed, st.just(""), instants, seconds, endings),
)


@given(st.lists(some_change | st.integers(1, 9), max_size=30))
@settings(deadline=None)
def test_whatever_is_done_to_a_lease_it_keeps_its_promises(steps: list[Change | int]) -> None:
    """A number splits that many units off. What is not legal is refused and changes nothing."""
    units = 10
    ledger = Ledger((lease(state=LeaseState.GRANTING, units=units, resources=ResourceVector({CPU: units})),))
    for number, step in enumerate(steps):
        for before in ledger:
            try:
                if isinstance(step, int):
                    ledger.split(before, step, f"{before.id}-{number}")
                else:
                    ledger.apply(before, step)
            except (IllegalTransition, ValueError):
                assert ledger.get(before.id) == before
            else:
                check_step(before, ledger.get(before.id), step)
        assert sum(one.units for one in ledger) <= units
        assert all(one.resources == ResourceVector({CPU: one.units}) for one in ledger)


def check_step(before: Lease, after: Lease | None, step: Change | int) -> None:
    if after is None:
        assert before.is_winding_down, "it was released first"
        return
    assert after.state in LEGAL[before.state]
    assert after.is_winding_down or not before.is_winding_down, "a release is never undone"
    assert after.is_reclaimed or after.state is LeaseState.LOST or not before.is_reclaimed
    assert after.notice is None or after.state is LeaseState.ACTIVE
    assert after.units == before.units or isinstance(step, int)
    assert after.units <= before.units
    if after.expires_at != before.expires_at:
        assert isinstance(step, Renewed | RenewalUndone)
    if before.is_promised and after.deadline is not None and before.deadline is not None and after.grace_s > 0:
        assert after.deadline <= before.deadline + timedelta(milliseconds=1)


def test_an_old_copy_of_a_lease_cannot_undo_its_release() -> None:
    """A keeper that read the lease before it was released renews it afterwards."""
    ledger = Ledger((lease(),))
    old = ledger.find("b1")
    released = ledger.apply(old, ReleaseAsked("released", NOON, 30.0, ENDING))

    with pytest.raises(IllegalTransition, match="Renewed while it is releasing"):
        ledger.apply(old, Renewed(LATER, 300.0))
    with pytest.raises(IllegalTransition):
        ledger.restore(old)
    with pytest.raises(IllegalTransition):
        ledger.add(old)

    assert ledger.find("b1") is released


def test_a_lease_that_has_ended_does_not_come_back_by_a_late_change() -> None:
    ledger = Ledger((lease(state=LeaseState.RELEASING),))
    old = ledger.find("b1")
    ledger.apply(old, Returned())
    with pytest.raises(IllegalTransition, match="has ended"):
        ledger.apply(old, Checkpointed(NOON))
    assert len(ledger) == 0


def test_a_change_keeps_what_others_changed_meanwhile() -> None:
    ledger = Ledger((lease(),))
    old = ledger.find("b1")
    ledger.apply(old, Renewed(LATER, 300.0))
    after = ledger.apply(old, Checkpointed(NOON))
    assert (after.expires_at, after.checkpointed_at) == (LATER, NOON)


def test_a_lease_says_what_it_is() -> None:
    assert lease(kind="memory", amount=2.5).describe() == "2.5 GB of memory from gpu1 to gpu-master"
    assert lease("b7").group_name == "grid-boost-b7"


@given(units=st.integers(2, 10**6), data=st.data())
def test_the_two_parts_of_a_lease_are_what_it_was(units: int, data: st.DataObject) -> None:
    before = lease(units=units, resources=ResourceVector({CPU: units}), idempotency_key="k", team="vision")
    part = data.draw(st.integers(1, units - 1))

    kept, given_up = split(before, part, "b2")

    assert (kept.id, kept.units, kept.idempotency_key) == ("b1", units - part, "k")
    assert (given_up.id, given_up.units, given_up.idempotency_key) == ("b2", part, None)
    assert kept.resources + given_up.resources == before.resources
    for same in (kept, given_up):
        assert replace(same, id="b1", units=units, resources=before.resources, idempotency_key="k") == before


@pytest.mark.parametrize("units", [0, -1, 20_000, 30_000])
def test_nothing_all_and_more_cannot_be_split_off(units: int) -> None:
    with pytest.raises(ValueError, match="cannot be split off"):
        split(lease(amount=2), units, "b2")


def test_a_reservation_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="cannot be split off"):
        split(lease(delivery=Delivery.RESERVE), 1, "b2")


def test_a_notice_is_due_before_its_lease_expires_or_with_it() -> None:
    notice = Notice(1, "", NOON, NOON + timedelta(seconds=5))
    assert lease().next_due == lease().expires_at
    assert lease(notice=notice).next_due == notice.deadline
    assert lease(notice=notice, expires_at=NOON).next_due == NOON


def test_what_comes_back_is_what_was_asked_or_all_that_winds_down() -> None:
    assert lease(amount=2).coming_back == 0
    assert lease(amount=2, notice=Notice(5_000, "", NOON, NOON)).coming_back == 5_000
    assert lease(amount=2, state=LeaseState.RELEASING).coming_back == 20_000
