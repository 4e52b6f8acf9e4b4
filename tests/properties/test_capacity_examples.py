"""Situations that random search found, one at a time: capacity that was made, forgotten or shown twice."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain, repeat

import pytest
from builders import cpu, lease
from fake_cluster import FakeCluster, LostReply

from distributed_grid.execution.capacity import Capacity, Convergence
from distributed_grid.execution.port import RayletSilent
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.resources import ResourceVector

GRANTING, ACTIVE, RELEASING = LeaseState.GRANTING, LeaseState.ACTIVE, LeaseState.RELEASING


class Bench:
    """Three nodes with a few CPUs, and a `Capacity` that looks after them."""

    def __init__(self, cluster: FakeCluster | None = None, **cpus: float) -> None:
        self.cluster = cluster or FakeCluster()
        for name, amount in (cpus or {"a": 4, "b": 4, "c": 4}).items():
            self.cluster.add_node(name, cpus=amount)
        self.new_process()

    def new_process(self) -> None:
        self.cluster.forget_process()
        self.cluster.clock.sleep(1.5)
        self.capacity = Capacity(self.cluster, clock=self.cluster.clock, sleep=self.cluster.clock.sleep)

    def converge(self, *leases: Lease) -> Convergence:
        done = self.capacity.converge(self.cluster.ids(), self.cluster.bases(), leases)
        self.capacity.tidy()
        return done

    def rest(self, *leases: Lease) -> None:
        """A few rounds later."""
        for _ in range(3):
            self.cluster.clock.sleep(1.5)
            self.converge(*leases)

    @property
    def totals(self) -> dict[str, ResourceVector]:
        return self.cluster.true_totals()


def loan(source: str, target: str, amount: float, state: LeaseState, id: str = "1", age_s: float = 0.0) -> Lease:
    return lease(id, source, target, amount=amount, state=state, age_s=age_s)


def delays(*first: float) -> Callable[[], float]:
    """These, and then none."""
    return chain(first, repeat(0.0)).__next__


def fail() -> None:
    raise LostReply


# -- the plain course of things ----------------------------------------------------------------------------


def test_a_loan_moves_and_returns() -> None:
    bench = Bench()
    assert bench.converge(loan("a", "b", 2, GRANTING)).delivered(loan("a", "b", 2, GRANTING))
    assert bench.totals == {"a": cpu(2), "b": cpu(6), "c": cpu(4)}
    assert bench.cluster.markers("a") == {"grid:lent:cpu": 2.0}
    assert bench.cluster.markers("b") == {"grid:borrowed:cpu": 2.0}
    assert bench.converge(loan("a", "b", 2, RELEASING)).returned(loan("a", "b", 2, RELEASING))
    assert bench.cluster.is_at_base(), bench.cluster.differences()


def test_a_source_that_is_busy_gives_what_is_idle_and_the_grant_is_not_delivered() -> None:
    bench = Bench()
    bench.cluster.start("a", 3)
    done = bench.converge(loan("a", "b", 2, GRANTING))
    assert not done.delivered(loan("a", "b", 2, GRANTING))
    assert bench.totals["a"] == cpu(3)


def test_what_is_in_use_returns_when_the_work_ends() -> None:
    bench = Bench()
    bench.converge(loan("a", "b", 2, GRANTING))
    work = bench.cluster.start("b", 6)
    assert not bench.converge(loan("a", "b", 2, RELEASING)).returned(loan("a", "b", 2, RELEASING))
    bench.cluster.finish(work)
    assert bench.converge(loan("a", "b", 2, RELEASING)).returned(loan("a", "b", 2, RELEASING))
    assert bench.cluster.is_at_base()


def test_what_grid_did_not_change_stays() -> None:
    bench = Bench()
    bench.cluster.resize(bench.cluster.ids()["c"], {"CPU": 7.0})  # a person did that
    bench.rest()
    assert bench.totals["c"] == cpu(7)


def test_the_shrink_is_seen_everywhere_before_the_growth_though_the_source_lends_all_it_has() -> None:
    bench = Bench(FakeCluster(lag=delays(0.2)))
    bench.converge(loan("a", "b", 4, GRANTING))
    assert bench.totals == {"a": cpu(0), "b": cpu(8), "c": cpu(4)}
    assert not bench.cluster.violations


def test_after_a_wiped_store_everything_idle_is_returned() -> None:
    bench = Bench()
    bench.converge(loan("a", "b", 2, GRANTING))
    bench.new_process()
    bench.rest()
    assert bench.cluster.is_at_base(), bench.cluster.differences()


def test_a_shrink_of_a_node_that_ray_oversubscribed_is_not_passed_on() -> None:
    bench = Bench()
    bench.converge(loan("a", "b", 2, GRANTING))
    parent = bench.cluster.start("b", 6)
    bench.cluster.block(parent)
    child = bench.cluster.start("b", 5)
    bench.cluster.unblock(parent)  # b uses 11 of 6
    assert not bench.converge(loan("a", "b", 2, RELEASING)).returned(loan("a", "b", 2, RELEASING))
    assert bench.totals["a"] == cpu(2)
    for pid in (parent, child):
        bench.cluster.finish(pid)
    bench.rest(loan("a", "b", 2, RELEASING))
    assert bench.cluster.is_at_base(), bench.cluster.differences()


# -- what was found ----------------------------------------------------------------------------------------


def test_a_growth_whose_reply_was_lost_is_taken_back_before_the_source_grows() -> None:
    bench = Bench()
    bench.converge(loan("a", "b", 1, GRANTING, age_s=9))
    bench.cluster.upcoming(1, fail, after=True)  # the source shrinks, the target grows, and does not answer
    leases = [loan("a", "b", 1, ACTIVE, age_s=9), loan("c", "b", 2, GRANTING, "2")]
    with pytest.raises(LostReply):
        bench.converge(*leases)
    work = bench.cluster.start("b", 7)
    bench.rest(loan("a", "b", 1, ACTIVE, age_s=9), loan("c", "b", 2, RELEASING, "2"))
    assert not bench.cluster.violations, bench.cluster.violations[0]
    bench.cluster.finish(work)


def test_a_growth_whose_reply_was_lost_and_that_no_view_shows_yet_is_not_forgotten() -> None:
    bench = Bench(FakeCluster(lag=delays(0.0, 0.0, 0.0, 0.2)))
    bench.converge(loan("a", "b", 1, GRANTING, age_s=9))
    bench.cluster.upcoming(1, fail, after=True)
    with pytest.raises(LostReply):
        bench.converge(loan("a", "b", 1, ACTIVE, age_s=9), loan("c", "b", 2, GRANTING, "2"))
    bench.converge(loan("a", "b", 1, ACTIVE, age_s=9), loan("c", "b", 2, RELEASING, "2"))
    assert not bench.cluster.violations, bench.cluster.violations[0]


def test_a_shrink_whose_reply_was_lost_is_seen_everywhere_before_the_growth() -> None:
    bench = Bench(FakeCluster(lag=delays(0.2, 0.0, 0.2)))
    bench.cluster.upcoming(0, fail, after=True)
    with pytest.raises(LostReply):
        bench.converge(loan("a", "b", 2, GRANTING))
    bench.converge(loan("a", "b", 2, GRANTING))
    assert not bench.cluster.violations, bench.cluster.violations[0]
    assert bench.totals["b"] == cpu(6)


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("call", [0, 1])
def test_a_node_that_does_not_answer_holds_up_no_other_and_is_asked_again_later(call: int, done: bool) -> None:
    def be_silent() -> None:
        bench.cluster.clock.sleep(3.0)
        raise RayletSilent

    bench = Bench()
    bench.cluster.upcoming(call, be_silent, after=done)  # the lender's shrink, or the borrower's growth
    first, second = loan("a", "b", 2, GRANTING), loan("c", "d", 1, GRANTING, "2")
    bench.cluster.add_node("d", cpus=4)
    assert not bench.converge(first).delivered(first)

    asked_at = bench.cluster.clock()
    assert bench.converge(first, second).delivered(second)
    assert bench.cluster.clock() - asked_at < 1.0

    bench.cluster.clock.sleep(5.0)
    bench.rest(first, second)
    assert bench.converge(first, second).delivered(first)
    assert bench.totals == {"a": cpu(2), "b": cpu(6), "c": cpu(3), "d": cpu(5)}
    assert not bench.cluster.violations, bench.cluster.violations[0]


def test_a_loan_that_is_in_use_when_the_store_is_wiped_is_still_returned() -> None:
    """Its marker says that it is grid's; so it must stay until the node is at its base."""
    bench = Bench()
    bench.converge(loan("a", "b", 2, GRANTING))
    work = bench.cluster.start("b", 5)
    bench.converge(loan("a", "b", 2, RELEASING))  # 1 of 2 comes back
    bench.new_process()
    bench.rest()
    assert not bench.cluster.violations, bench.cluster.violations[0]
    bench.cluster.finish(work)
    bench.rest()
    assert bench.cluster.is_at_base(), bench.cluster.differences()


def test_a_grant_that_failed_leaves_no_marker() -> None:
    bench = Bench(FakeCluster(lag=delays(0.2)))
    work = bench.cluster.start("a", 4)  # the view does not show it yet
    bench.converge(loan("a", "b", 2, GRANTING))
    bench.converge(loan("a", "b", 2, RELEASING))
    bench.rest()
    assert bench.cluster.markers("a") == {}
    bench.cluster.finish(work)


def test_two_loans_that_cancel_out_leave_no_marker_when_they_end_together() -> None:
    bench = Bench()
    bench.converge(loan("b", "c", 2, GRANTING, "1", age_s=9))
    bench.converge(loan("b", "c", 2, ACTIVE, "1", age_s=9), loan("a", "b", 2, GRANTING, "2"))
    bench.rest(loan("b", "c", 2, RELEASING, "1", age_s=9), loan("a", "b", 2, RELEASING, "2"))
    assert bench.cluster.is_at_base(), bench.cluster.differences()


def test_a_release_that_is_in_use_is_not_covered_by_a_grant_that_failed() -> None:
    bench = Bench(a=1, b=1, c=1)
    bench.converge(loan("b", "c", 1, GRANTING, "1", age_s=9))
    bench.cluster.start("c", 2)
    bench.cluster.start("a", 1)
    done = bench.converge(loan("b", "c", 1, RELEASING, "1", age_s=9), loan("a", "c", 1, GRANTING, "2"))
    assert not done.returned(loan("b", "c", 1, RELEASING, "1"))
    assert not bench.cluster.violations, bench.cluster.violations[0]


def test_after_a_wiped_store_a_new_grant_does_not_deliver_what_another_still_holds() -> None:
    bench = Bench()
    bench.converge(loan("a", "c", 2, GRANTING))
    bench.cluster.start("c", 6)
    bench.new_process()
    bench.rest()
    bench.converge(loan("a", "b", 2, GRANTING))
    assert not bench.cluster.violations, bench.cluster.violations[0]


def test_a_report_that_is_late_does_not_show_a_growth_after_its_release() -> None:
    """The target's growth is reported but on its way when it is released at once, and arrives last."""
    bench = Bench(FakeCluster(flight=delays(0.0, 0.15)))
    bench.converge(loan("a", "b", 2, GRANTING))
    bench.converge(loan("a", "b", 2, RELEASING))
    bench.cluster.clock.sleep(1.0)
    assert not bench.cluster.violations, bench.cluster.violations[0]
    assert bench.cluster.is_at_base()


def test_a_clamped_shrink_keeps_its_marker_though_the_connection_breaks_next() -> None:
    """The loan is forgotten, so without a marker c's part of it has no owner, and a grows back into it."""
    bench = Bench(FakeCluster(lag=delays(0.0, 0.0, 0.2)), a=1, b=1, c=3)
    bench.converge(loan("a", "c", 1, GRANTING))
    bench.new_process()
    bench.cluster.start("c", 4)  # the view does not show it yet
    bench.cluster.upcoming(3, fail)
    for _ in range(2):
        with suppress(LostReply):
            bench.converge()
    assert bench.totals["a"] == cpu(0)
    assert not bench.cluster.violations, bench.cluster.violations[0]


def test_a_loan_as_large_as_the_one_that_was_just_released_is_not_mistaken_for_it() -> None:
    """The source was back for a moment, and the report of that is late; a moment before it looked the same as now."""
    bench = Bench(FakeCluster(flight=delays(0.0, 0.0, 0.0, 0.15)))
    bench.converge(loan("a", "b", 2, GRANTING))
    bench.cluster.clock.sleep(1.5)
    bench.converge(loan("a", "b", 2, RELEASING))
    bench.converge(loan("a", "b", 2, GRANTING, "2"))
    bench.cluster.clock.sleep(1.0)
    assert not bench.cluster.violations, bench.cluster.violations[0]
    assert bench.cluster.markers("a") == {"grid:lent:cpu": 2.0}


def test_a_marker_stays_until_it_is_known_how_far_its_node_shrank() -> None:
    bench = Bench()
    bench.converge(loan("a", "b", 2, GRANTING))
    bench.cluster.start("b", 5)
    bench.cluster.clock.sleep(1.5)
    bench.cluster.upcoming(0, fail, after=True)  # 1 of 2 is given back, and the reply is lost
    with pytest.raises(LostReply):
        bench.converge(loan("a", "b", 2, RELEASING))
    assert bench.cluster.markers("b") == {"grid:borrowed:cpu": 2.0}
    bench.converge(loan("a", "b", 2, RELEASING))
    assert bench.cluster.markers("b") == {"grid:borrowed:cpu": 1.0}
    assert bench.cluster.markers("a") == {"grid:lent:cpu": 1.0}


def test_a_loan_elsewhere_is_not_held_up_by_a_source_that_came_back_whole() -> None:
    """What one round takes, the same round may give: that makes nothing worse, whatever was too much before."""
    bench = Bench(a=4, b=4, c=4, d=4)
    old, new = loan("a", "b", 2, GRANTING, "1", age_s=9), loan("c", "d", 2, GRANTING, "2")
    bench.converge(old)
    bench.cluster.start("b", 6)
    bench.cluster.kill_node("a")
    bench.cluster.return_node("a")
    bench.cluster.clock.sleep(0.1)
    done = bench.converge(replace(old, state=LeaseState.LOST), new)
    assert done.delivered(new)
    assert bench.totals["d"] == cpu(6)
