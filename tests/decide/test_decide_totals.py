"""Desired totals and growth, worked out by hand."""

import pytest
from builders import amounts, cpu, lease

from distributed_grid.decide.capacity.totals import Growth, desired_totals, plan_growth
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.resources import ResourceVector

GRANTING, ACTIVE, RELEASING = LeaseState.GRANTING, LeaseState.ACTIVE, LeaseState.RELEASING
LOST, RELEASED = LeaseState.LOST, LeaseState.RELEASED


def cpus(**nodes: float) -> dict[str, ResourceVector]:
    return {name: cpu(amount) for name, amount in nodes.items()}


BASES = cpus(a=4, b=4, c=4)


def loan(id: str, source: str, target: str, amount: float, state: LeaseState = ACTIVE, age_s: float = 0.0) -> Lease:
    return lease(id, source, target, amount=amount, state=state, age_s=age_s)


def grow(
    reached: dict[str, ResourceVector],
    *leases: Lease,
    bases: dict[str, ResourceVector] = BASES,
    before: dict[str, ResourceVector] | None = None,
) -> Growth:
    """Without `before`, no node gave anything up just now."""
    return plan_growth(bases, leases, before or reached, reached)


def after(reached: dict[str, ResourceVector], growth: Growth) -> dict[str, float]:
    """What the nodes have once they have grown as far as they may."""
    return {n: max(growth.allowed[n]["cpu"], reached[n]["cpu"]) / 10_000 for n in reached}


# -- desired totals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [GRANTING, ACTIVE])
def test_a_loan_moves_capacity_from_its_source_to_its_target(state: LeaseState) -> None:
    assert desired_totals(BASES, [loan("1", "a", "b", 2, state)]) == cpus(a=2, b=6, c=4)


@pytest.mark.parametrize("state", [RELEASING, LOST, RELEASED])
def test_a_loan_that_winds_down_wants_everything_home(state: LeaseState) -> None:
    assert desired_totals(BASES, [loan("1", "a", "b", 2, state)]) == BASES


def test_a_reservation_moves_nothing() -> None:
    reserved = lease("1", "a", "b", delivery=Delivery.RESERVE)
    assert desired_totals(BASES, [reserved]) == BASES


def test_loans_add_up_and_chains_pass_through() -> None:
    leases = [loan("1", "a", "b", 2), loan("2", "c", "b", 1), loan("3", "b", "c", 3)]
    assert desired_totals(BASES, leases) == cpus(a=2, b=4, c=6)


def test_kinds_do_not_mix() -> None:
    bases = {"a": amounts(cpu=4, memory=8), "b": amounts(cpu=4, memory=8)}
    leases = [loan("1", "a", "b", 1), lease("2", "b", "a", kind="memory", amount=3)]
    wanted = {"a": amounts(cpu=3, memory=11), "b": amounts(cpu=5, memory=5)}
    assert desired_totals(bases, leases) == wanted


def test_a_kind_can_be_lent_to_a_node_that_has_none_of_it() -> None:
    bases = {"a": amounts(tape=2), "b": cpu(1)}
    assert desired_totals(bases, [lease("1", "a", "b", kind="tape", amount=2)]) == {
        "a": cpu(0),
        "b": amounts(cpu=1, tape=2),
    }


def test_a_target_has_no_claim_to_what_a_node_that_is_gone_had_lent() -> None:
    assert desired_totals(cpus(b=4), [loan("1", "a", "b", 2)]) == cpus(b=4)


def test_a_lender_keeps_aside_what_it_lent_to_a_node_that_is_gone_for_the_moment() -> None:
    assert desired_totals(cpus(a=4), [loan("1", "a", "b", 2)]) == cpus(a=2)


def test_no_node_can_lend_more_than_it_has_after_coming_back_smaller() -> None:
    """A source that lent 3 came back with 1: its borrower may have that 1, and not 3."""
    bases = cpus(a=1, b=4)
    growth = grow(cpus(a=0, b=4), loan("1", "a", "b", 3), bases=bases)
    assert after(cpus(a=0, b=4), growth) == {"a": 0, "b": 5}


# -- growth ------------------------------------------------------------------------------------------------


def test_a_grant_whose_source_gave_all_lets_the_target_grow() -> None:
    reached = cpus(a=2, b=4, c=4)
    growth = grow(reached, loan("1", "a", "b", 2, GRANTING))
    assert after(reached, growth) == {"a": 2, "b": 6, "c": 4}
    assert (growth.untaken, growth.outstanding, growth.unexplained) == ({}, {}, {})


def test_a_grant_whose_source_gave_nothing_changes_nothing() -> None:
    growth = grow(BASES, loan("1", "a", "b", 2, GRANTING))
    assert after(BASES, growth) == {"a": 4, "b": 4, "c": 4}
    assert growth.untaken == {"1": 20_000}


def test_what_a_source_did_not_give_its_target_does_not_get() -> None:
    reached = cpus(a=3, b=4, c=4)
    growth = grow(reached, loan("1", "a", "b", 2, GRANTING))
    assert after(reached, growth)["b"] <= 5
    assert growth.untaken == {"1": 10_000}


def test_the_youngest_loan_goes_short_first() -> None:
    reached = cpus(a=1, b=4, c=4)
    growth = grow(reached, loan("old", "a", "b", 2, age_s=60), loan("new", "a", "c", 2, GRANTING))
    assert growth.untaken == {"new": 10_000}
    assert after(reached, growth)["b"] == 6


def test_a_release_gives_back_what_was_idle_and_waits_for_the_rest() -> None:
    reached = cpus(a=2, b=5, c=4)  # b was at 6 and uses 5
    growth = grow(reached, loan("1", "a", "b", 2, RELEASING))
    assert after(reached, growth) == {"a": 3, "b": 5, "c": 4}
    assert growth.outstanding == {"1": 10_000}


def test_a_release_of_idle_capacity_is_complete() -> None:
    reached = cpus(a=2, b=4, c=4)
    growth = grow(reached, loan("1", "a", "b", 2, RELEASING))
    assert after(reached, growth) == {"a": 4, "b": 4, "c": 4}
    assert growth.outstanding == {}


def test_after_a_wiped_store_no_node_grows_into_what_another_still_uses() -> None:
    reached = cpus(a=2, b=5, c=4)  # a had lent 2 to b, which still uses 1 of them
    growth = grow(reached)
    assert after(reached, growth) == {"a": 3, "b": 5, "c": 4}
    assert growth.unexplained == {"b": cpu(1)}


def test_what_a_node_that_is_gone_had_lent_goes_to_no_other_node() -> None:
    reached, bases = cpus(b=6, c=4), cpus(b=4, c=4)
    growth = grow(reached, loan("1", "a", "b", 2, LOST), bases=bases)
    assert after(reached, growth) == {"b": 6, "c": 4}
    assert growth.outstanding == {"1": 20_000}


def test_what_a_node_lacks_and_no_lease_explains_may_be_what_is_in_use_elsewhere() -> None:
    """c lent 1 to b, which uses it; the loan is forgotten. a was to lend 1 to b, gave nothing, and died."""
    reached, bases = cpus(b=2, c=0), cpus(b=1, c=1)
    growth = grow(reached, loan("1", "a", "b", 1, LOST), bases=bases)
    assert after(reached, growth) == {"b": 2, "c": 0}


def test_a_lender_whose_borrower_is_gone_is_not_held_up_by_a_loan_that_was_lost() -> None:
    reached, bases = cpus(b=6, c=2), cpus(b=4, c=4)
    growth = grow(reached, loan("1", "a", "b", 2, LOST, age_s=9), loan("2", "c", "d", 2, LOST), bases=bases)
    assert after(reached, growth) == {"b": 6, "c": 4}


def test_a_borrower_that_was_started_again_is_not_held_up_by_a_loan_that_was_lost() -> None:
    reached, bases = cpus(b=6, c=2, d=4), cpus(b=4, c=4, d=4)
    growth = grow(reached, loan("1", "a", "b", 2, LOST, age_s=9), loan("2", "c", "d", 2), bases=bases)
    assert after(reached, growth) == {"b": 6, "c": 2, "d": 6}


def test_a_loan_elsewhere_is_not_held_up_by_one_that_was_lost() -> None:
    reached, bases = cpus(b=6, c=3, d=4), cpus(b=4, c=4, d=4)
    growth = grow(reached, loan("1", "a", "b", 2, LOST), loan("2", "c", "d", 1, GRANTING), bases=bases)
    assert after(reached, growth) == {"b": 6, "c": 3, "d": 5}


def test_a_loan_elsewhere_is_not_held_up_by_a_source_that_came_back_whole() -> None:
    """a is back while b uses what a had lent it: 2 too much, and no more than that when c lends 2 to d."""
    bases, before, reached = cpus(a=4, b=4, c=4, d=4), cpus(a=4, b=6, c=4, d=4), cpus(a=4, b=6, c=2, d=4)
    growth = grow(
        reached, loan("1", "a", "b", 2, LOST, age_s=9), loan("2", "c", "d", 2, GRANTING), bases=bases, before=before
    )
    assert after(reached, growth) == {"a": 4, "b": 6, "c": 2, "d": 6}
    assert growth.untaken == {}


def test_what_was_too_much_and_is_given_up_goes_to_no_node() -> None:
    """As before, but b has given it up: a has it already."""
    bases, before, reached = cpus(a=4, b=4, c=4), cpus(a=4, b=6, c=4), cpus(a=4, b=4, c=4)
    growth = grow(reached, loan("1", "a", "b", 2, LOST), bases=bases, before=before)
    assert after(reached, growth) == {"a": 4, "b": 4, "c": 4}


def test_a_lender_gets_its_loan_back_when_the_target_is_gone() -> None:
    reached, bases = cpus(a=2, c=4), cpus(a=4, c=4)
    assert after(reached, grow(reached, loan("1", "a", "b", 2, LOST), bases=bases)) == {"a": 4, "c": 4}


def test_through_a_chain_each_node_gets_only_what_was_given_up() -> None:
    reached = cpus(a=2, b=4, c=4)  # a gave 2 to b; b has still to give 2 to c
    growth = grow(reached, loan("1", "a", "b", 2), loan("2", "b", "c", 2, GRANTING))
    done = after(reached, growth)
    assert sum(done.values()) <= 12
    assert done["a"] == 2


def test_a_grant_that_failed_does_not_cover_for_a_release_that_is_in_use() -> None:
    """c still uses what b lent it and is to give back, and a has not given c anything yet."""
    bases = cpus(a=1, b=1, c=1)
    reached = cpus(a=1, b=0, c=2)
    growth = grow(reached, loan("1", "b", "c", 1, RELEASING, age_s=9), loan("2", "a", "c", 1, GRANTING), bases=bases)
    assert after(reached, growth) == {"a": 1, "b": 0, "c": 2}
    assert growth.outstanding == {"1": 10_000}


def test_a_lender_has_not_given_what_it_only_expects_to_borrow() -> None:
    """b is to get 1 from a, who gave nothing, and to give 1 to c: b has still all that it had, so c gets nothing."""
    bases = cpus(a=1, b=1, c=1)
    growth = grow(bases, loan("1", "a", "b", 1, GRANTING, age_s=9), loan("2", "b", "c", 1, GRANTING), bases=bases)
    assert after(bases, growth) == {"a": 1, "b": 1, "c": 1}
    assert set(growth.untaken) == {"1", "2"}


def test_after_a_wiped_store_a_new_grant_does_not_count_an_old_gap_as_given() -> None:
    """a lent 2 to c, which uses them; the loan is forgotten. Now a is to lend 2 to b: its gap is not for b."""
    reached = cpus(a=2, b=4, c=6)
    growth = grow(reached, loan("1", "a", "b", 2, GRANTING))
    assert sum(after(reached, growth).values()) <= 12


def test_what_is_in_use_is_blamed_on_a_loan_that_its_lender_waits_for() -> None:
    """b borrowed 1 from a and 1 from c; c died and b gave 1 up. Now both wind down and b uses 1 more than its own."""
    reached, bases = cpus(a=3, b=5), cpus(a=4, b=4)
    growth = grow(reached, loan("1", "a", "b", 1, RELEASING, age_s=9), loan("2", "c", "b", 1, LOST), bases=bases)
    assert after(reached, growth) == {"a": 3, "b": 5}
    assert growth.outstanding == {"1": 10_000}


def test_what_is_in_use_is_not_blamed_on_a_loan_whose_source_is_back() -> None:
    """As before, but c is back with all that it started with."""
    reached = cpus(a=3, b=5, c=4)
    growth = grow(reached, loan("1", "a", "b", 1, RELEASING, age_s=9), loan("2", "c", "b", 1, RELEASING))
    assert sum(after(reached, growth).values()) <= 12
