"""What grid does without a request, by the whole engine on a fake cluster."""

from collections.abc import Callable
from typing import Any

import pytest
from builders import amounts, ask, cpu, reading, shape
from fake_cluster import Crashed, FakeCluster
from fake_telemetry import FakeTelemetry
from whole_grid import WholeGrid, at_home, raising

from distributed_grid.errors import Refused
from distributed_grid.faults import Point
from distributed_grid.model.demand import Pending
from distributed_grid.model.leases import Cause, Delivery, Lease, LeaseState
from distributed_grid.model.policies import AllocationPriority, SharingPolicy

pytestmark = pytest.mark.filterwarnings("ignore")

ROUND_S = 30.0
BUSY, QUIET, IN_BETWEEN = reading(cpu_used=15.5), reading(cpu_used=1.0), reading(cpu_used=8.0)


class Lab:
    """Three nodes with 4 CPUs each, whose machines do what a test says."""

    def __init__(self, make_grid: Callable[..., WholeGrid], **sharing: Any) -> None:
        self.telemetry = FakeTelemetry()
        self.telemetry.answers = dict.fromkeys(("a", "b", "c"), QUIET)
        by_itself = {"mode": "dynamic_balancing", "rebalance_interval_seconds": ROUND_S}
        self.grid = make_grid(telemetry=self.telemetry, **by_itself | sharing)
        self.rounds(0.4)  # from here on every full number of rounds ends well after one

    @property
    def cluster(self) -> FakeCluster:
        return self.grid.cluster

    def rounds(self, number: float) -> None:
        self.grid.wait(number * ROUND_S)

    @property
    def leases(self) -> list[Lease]:
        return list(self.grid.leases.values())

    def done(self) -> list[str]:
        return [event.details["action"] for event in self.grid.parts.journal.since(0) if event.event == "rebalanced"]


Make = Callable[..., Lab]


@pytest.fixture
def make(make_grid: Callable[..., WholeGrid]) -> Make:
    return lambda **sharing: Lab(make_grid, **sharing)


def test_a_node_under_pressure_is_boosted_without_a_request_until_the_pressure_ends(make: Make) -> None:
    lab = make()
    lab.telemetry.answers["b"] = BUSY
    lab.rounds(2)
    assert lab.leases == []

    lab.rounds(1)
    (boost,) = lab.leases
    assert (boost.target, boost.state, boost.cause) == ("b", LeaseState.ACTIVE, Cause.PRESSURE)
    assert (boost.requester, boost.priority) == ("grid", AllocationPriority.LOW)
    # More of b's work on b's own machine would only make that slower.
    assert (boost.delivery, boost.delivery_reason.startswith("auto: ")) == (Delivery.RESERVE, True)
    assert [group.name for group in lab.cluster.groups()] == [boost.group_name]
    assert "b has been under pressure for 3 rounds: cpu at 97%" in lab.grid.events("rebalanced")[0]

    lab.telemetry.answers["b"] = IN_BETWEEN
    lab.rounds(10)
    assert lab.leases == [boost]  # neither pressed nor relieved: nothing changes

    lab.telemetry.answers["b"] = QUIET
    lab.rounds(2)
    assert lab.leases == [boost]
    lab.rounds(2)
    assert lab.done() == ["borrow", "return"]
    assert lab.grid.parts.journal.counts["rebalanced"] == 2  # what the metric shows
    at_home(lab.grid)


def test_what_is_needed_for_long_is_renewed_and_never_interrupted(make: Make) -> None:
    lab = make()
    lab.telemetry.answers["b"] = BUSY
    lab.rounds(3)
    (first,) = lab.leases
    lab.rounds(70)  # its half hour is over
    assert "renew" in lab.done()
    assert first.id in lab.grid.leases
    assert lab.grid.parts.journal.counts["returned"] == 0


def test_a_pending_shape_that_is_pinned_to_a_node_triggers_a_boost_for_it(make: Make) -> None:
    lab = make()
    lab.telemetry.waiting = (Pending(shape("b", cpu=6), 1),)
    lab.rounds(3)

    (boost,) = lab.leases
    assert (boost.target, boost.units, boost.delivery) == ("b", cpu(2)["cpu"], Delivery.TRANSFER)
    assert boost.cause is Cause.DEMAND
    assert lab.cluster.start("b", 6) is not None

    lab.telemetry.waiting = ()
    lab.rounds(8)
    assert lab.leases == [boost]  # nothing waits, but it is in use
    lab.cluster.finish_everything()
    lab.rounds(4)
    at_home(lab.grid)


@pytest.mark.parametrize(
    "sharing",
    [{"policy": "conservative"}, {"mode": "share_and_offload"}, {"mode": "offload_only"}, {"enabled": False}],
    ids=str,
)
def test_grid_does_nothing_by_itself_where_it_was_not_told_to(make: Make, sharing: dict[str, Any]) -> None:
    lab = make(**sharing)
    lab.telemetry.answers["b"] = BUSY
    lab.telemetry.waiting = (Pending(shape("c", cpu=6), 1),)
    lab.rounds(20)
    assert lab.leases == [] and lab.done() == []


def test_a_policy_that_is_changed_holds_from_the_next_round_on(make: Make) -> None:
    lab = make(policy="conservative")
    lab.telemetry.answers["b"] = BUSY
    lab.rounds(10)
    assert lab.leases == []
    lab.grid.parts.sharing.set_policy = SharingPolicy.AGGRESSIVE
    lab.rounds(1)
    assert len(lab.leases) == 1


def test_a_hot_lenders_loan_moves_and_the_borrower_never_has_less(make: Make) -> None:
    lab = make()
    asked = ask("b", amount=2, source="a", priority=AllocationPriority.HIGH, requester="ann", idempotency_key="k")
    old = lab.grid.run(lab.grid.service.request(asked))
    least = []
    lab.rounds(3)
    lab.telemetry.answers["a"] = BUSY
    for _ in range(400):
        lab.grid.wait(0.25)
        least.append(lab.cluster.true_totals()["b"]["cpu"])

    (new,) = lab.leases
    assert lab.done() == ["move"]
    assert (new.source, new.target, new.units) == ("c", "b", old.units)
    assert (new.priority, new.requester, new.idempotency_key) == (old.priority, "ann", "k")
    assert abs((new.expires_at - old.expires_at).total_seconds()) < 1
    assert min(least) == cpu(6)["cpu"]
    assert lab.cluster.true_totals()["a"]["cpu"] == cpu(4)["cpu"]
    assert "a's own use of cpu has been high for 3 rounds: 97%" in lab.grid.events("rebalanced")[0]
    assert lab.grid.run(lab.grid.service.request(asked)).id == new.id
    assert not lab.cluster.violations


def test_a_move_that_a_crash_cut_off_is_finished_and_not_made_twice(make: Make) -> None:
    lab = make()
    old = lab.grid.run(lab.grid.service.request(ask("b", amount=1, source="a")))
    lab.rounds(3)
    lab.telemetry.answers["a"] = BUSY
    lab.cluster.upcoming(0, raising(Crashed()), call=Point.GRANT_DELIVERED)  # the new loan is there, the old one too
    with pytest.raises(Crashed):
        lab.rounds(5)
    lab.grid.bury()
    lab.grid.start()
    assert len(lab.leases) == 2
    lab.rounds(5)

    (new,) = lab.leases
    assert (new.source, new.id != old.id) == ("c", True)
    assert lab.cluster.true_totals() == {"a": amounts(cpu=4, gpu=1), "b": cpu(5), "c": amounts(cpu=3, gpu=1)}


def test_a_hot_lender_that_no_node_relieves_gets_its_own_back_in_every_mode(make: Make) -> None:
    lab = make(mode="share_and_offload", policy="conservative")
    lab.grid.run(lab.grid.service.request(ask("b", amount=2, source="a")))
    lab.telemetry.answers["a"] = BUSY
    lab.rounds(12)

    assert lab.leases == []
    assert lab.done() == ["relieve"]
    assert lab.cluster.true_totals()["a"]["cpu"] == cpu(4)["cpu"]


def test_work_in_a_reservation_is_not_the_lenders_own_pressure(make: Make) -> None:
    lab = make()
    boost = lab.grid.run(lab.grid.service.request(ask("b", amount=2, source="a", delivery="reserve")))
    lab.telemetry.answers["a"] = reading(cpus=4.0, cpu_used=3.4)  # 85 %; its own 1.4 are 70 % of 2
    lab.rounds(10)
    assert boost.id in lab.grid.leases


def test_what_cannot_be_done_is_reported_and_the_rest_is_done(make: Make) -> None:
    lab = make()
    lab.telemetry.answers |= {"a": BUSY, "b": reading(cpu_used=15.8)}
    lab.cluster.upcoming(0, raising(RuntimeError("the network is down")), call="reserve")
    lab.cluster.add_node("d")
    lab.telemetry.answers["d"] = QUIET
    lab.rounds(3)
    assert "lent 4 CPUs from d to a" in lab.grid.events("rebalanced")[0]
    assert len(lab.done()) == 1
    assert "borrow: RuntimeError('the network is down')" in lab.grid.events("not_rebalanced")[0]


def test_what_was_measured_once_counts_once(make: Make) -> None:
    """A loop that looks more often than anything is measured learns nothing by it."""
    lab = make(monitoring_interval_seconds=300)
    lab.telemetry.answers["b"] = BUSY
    lab.rounds(24)
    assert lab.leases == []
    lab.rounds(12)
    assert len(lab.leases) == 1


def test_after_all_was_given_back_nothing_is_lent_by_itself(make: Make) -> None:
    lab = make()
    lab.telemetry.answers["b"] = BUSY
    lab.rounds(3)
    assert lab.grid.run(lab.grid.engine.give_all_back()) == 1
    lab.rounds(10)
    at_home(lab.grid)


def test_where_not_all_could_be_given_back_it_goes_on(make: Make) -> None:
    lab = make()
    lab.grid.run(lab.grid.service.request(ask("c", amount=2, source="a")))
    work = lab.cluster.start("c", 6)
    with pytest.raises(Refused):
        lab.grid.run(lab.grid.engine.give_all_back(wait_s=1.0))
    lab.cluster.finish(work or 0)
    lab.telemetry.answers["b"] = BUSY
    lab.rounds(4)
    assert [lease.target for lease in lab.leases] == ["b"]


# -- suggestions ------------------------------------------------------------------------------------------------


def test_a_suggestion_is_reported_once_and_kept_while_it_holds(make: Make) -> None:
    lab = make(policy="conservative")
    lab.telemetry.answers["b"] = BUSY
    lab.rounds(5)

    rebalancing = lab.grid.engine.rebalancing
    assert rebalancing is not None
    (now,) = rebalancing.suggestions.current
    assert (now.node, now.kind, now.by_itself) == ("b", "cpu", False)
    (reported,) = lab.grid.events("suggested")
    assert reported.startswith("b is short of CPUs; ")
    assert f": {now.command}" in reported and "grid boost request b cpu" in reported

    lab.telemetry.answers["b"] = QUIET
    lab.rounds(2)
    assert rebalancing.suggestions.current == ()
    lab.telemetry.answers["b"] = BUSY
    lab.rounds(2)
    assert len(lab.grid.events("suggested")) == 1  # it was away for a moment only
    lab.telemetry.answers["b"] = QUIET
    lab.rounds(25)
    lab.telemetry.answers["b"] = BUSY
    lab.rounds(2)
    assert len(lab.grid.events("suggested")) == 2


def test_what_a_suggestion_says_can_be_asked_for(make: Make) -> None:
    lab = make(policy="conservative")
    lab.telemetry.answers["b"] = BUSY
    lab.rounds(2)
    rebalancing = lab.grid.engine.rebalancing
    assert rebalancing is not None
    (now,) = rebalancing.suggestions.current
    assert now.ask is not None
    boost = lab.grid.run(lab.grid.service.request(now.ask))
    assert (boost.source, boost.resources) == (now.ask.source, amounts(cpu=now.ask.units / 10_000))
