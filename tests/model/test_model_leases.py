"""A lease changes only along the table, and every lease ends."""

from datetime import timedelta

import pytest
from builders import NOON, lease
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.model.leases import LEGAL, IllegalTransition, LeaseState

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
