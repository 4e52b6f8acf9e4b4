"""A lease changes only along the table, and every lease ends."""

from dataclasses import replace
from datetime import timedelta

import pytest
from builders import NOON, lease
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.model.leases import LEGAL, Delivery, IllegalTransition, LeaseState, Notice
from distributed_grid.model.resources import CPU, ResourceVector

ILLEGAL = [(a, b) for a in LeaseState for b in LeaseState if b not in LEGAL[a]]


def test_every_state_is_in_the_table() -> None:
    assert set(LEGAL) == set(LeaseState)


@pytest.mark.parametrize(("now", "then"), [(a, b) for a in LeaseState for b in sorted(LEGAL[a])])
def test_a_legal_step_changes_the_state_and_what_was_given(now: LeaseState, then: LeaseState) -> None:
    before = lease(state=now)
    after = before.to(then, release_reason="because")
    assert (after.state, after.release_reason, after.id) == (then, "because", before.id)
    assert before.state is now


@pytest.mark.parametrize(("now", "then"), ILLEGAL)
def test_an_illegal_step_is_a_bug_and_says_which(now: LeaseState, then: LeaseState) -> None:
    with pytest.raises(IllegalTransition, match=f"b1: {now} -> {then}"):
        lease(state=now).to(then)


def test_what_is_released_stays_released() -> None:
    assert LEGAL[LeaseState.RELEASED] == frozenset()


@given(st.lists(st.integers(0, 4), min_size=10, max_size=30))
def test_any_path_without_renewals_ends_and_ends_released(choices: list[int]) -> None:
    state = LeaseState.GRANTING
    for steps, choice in enumerate(choices):
        onward = sorted(LEGAL[state] - {state})
        if not onward:
            assert state is LeaseState.RELEASED
            assert steps <= len(LeaseState)
            return
        state = onward[choice % len(onward)]
    raise AssertionError("a lease went round in circles")


def test_nothing_comes_back_from_winding_down() -> None:
    reachable, todo = set(), [LeaseState.RELEASING, LeaseState.LOST]
    while todo:
        state = todo.pop()
        reachable.add(state)
        todo += [s for s in LEGAL[state] if s not in reachable]
    assert reachable == {LeaseState.RELEASING, LeaseState.LOST, LeaseState.RELEASED}


@pytest.mark.parametrize("state", LeaseState)
def test_a_lease_holds_capacity_until_it_is_home(state: LeaseState) -> None:
    found = lease(state=state)
    assert found.holds_capacity is (state is not LeaseState.RELEASED)
    assert found.is_winding_down is (state in (LeaseState.RELEASING, LeaseState.LOST))


def test_a_renewed_lease_is_the_same_lease_with_a_later_end() -> None:
    later = NOON + timedelta(days=1)
    assert lease().to(LeaseState.ACTIVE, expires_at=later).expires_at == later


def test_a_lease_says_what_it_is() -> None:
    assert lease(kind="memory", amount=2.5).describe() == "2.5 GB of memory from gpu1 to gpu-master"
    assert lease("b7").group_name == "grid-boost-b7"


@given(units=st.integers(2, 10**6), data=st.data())
def test_the_two_parts_of_a_lease_are_what_it_was(units: int, data: st.DataObject) -> None:
    before = lease(units=units, resources=ResourceVector({CPU: units}), idempotency_key="k", team="vision")
    part = data.draw(st.integers(1, units - 1))

    kept, given_up = before.split(part, "b2")

    assert (kept.id, kept.units, kept.idempotency_key) == ("b1", units - part, "k")
    assert (given_up.id, given_up.units, given_up.idempotency_key) == ("b2", part, None)
    assert kept.resources + given_up.resources == before.resources
    for same in (kept, given_up):
        assert replace(same, id="b1", units=units, resources=before.resources, idempotency_key="k") == before


@pytest.mark.parametrize("units", [0, -1, 20_000, 30_000])
def test_nothing_all_and_more_cannot_be_split_off(units: int) -> None:
    with pytest.raises(ValueError, match="cannot be split off"):
        lease(amount=2).split(units, "b2")


def test_a_reservation_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="cannot be split off"):
        lease(delivery=Delivery.RESERVE).split(1, "b2")


def test_a_notice_is_due_before_its_lease_expires_or_with_it() -> None:
    notice = Notice(1, "", NOON, NOON + timedelta(seconds=5))
    assert lease().next_due == lease().expires_at
    assert lease(notice=notice).next_due == notice.deadline
    assert lease(notice=notice, expires_at=NOON).next_due == NOON


def test_what_comes_back_is_what_was_asked_or_all_that_winds_down() -> None:
    assert lease(amount=2).coming_back == 0
    assert lease(amount=2, notice=Notice(5_000, "", NOON, NOON)).coming_back == 5_000
    assert lease(amount=2, state=LeaseState.RELEASING).coming_back == 20_000
