"""Requests that wait: in their order, over restarts, until they are met, given up or taken back."""

from collections.abc import Callable
from pathlib import Path

import pytest
from builders import ask, cpu
from fake_cluster import FakeCluster
from whole_grid import WholeGrid, at_home, together

from distributed_grid.errors import (
    GridError,
    NoCapacity,
    RequestNotFound,
    SourceNotFound,
    StoreBroken,
    TargetNotFound,
    UnknownResource,
)
from distributed_grid.leases.reclaim import cordon, uncordon
from distributed_grid.leases.rules import set_policy
from distributed_grid.model.leases import Lease, LeaseState
from distributed_grid.model.policies import AllocationPriority, SharingMode, SharingPolicy
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.queue.answers import why_answer

pytestmark = pytest.mark.filterwarnings("ignore")

HIGH, LOW, CRITICAL = AllocationPriority.HIGH, AllocationPriority.LOW, AllocationPriority.CRITICAL


def waiting_ids(lab: WholeGrid) -> list[str]:
    return [waiting.id for waiting in lab.service.queue.in_order()]


def full(lab: WholeGrid) -> list[Lease]:
    """All that a and c have is lent to b."""
    return [lab.run(lab.service.request(ask("b", amount=4, source=name))) for name in "ac"]


def test_a_request_that_can_be_met_does_not_wait(lab: WholeGrid) -> None:
    lease = lab.run(lab.service.enqueue(ask("b", amount=2)))
    assert isinstance(lease, Lease)
    assert lease.state is LeaseState.ACTIVE
    assert not lab.events("queued")


def test_a_waiting_request_becomes_the_boost_with_its_id(lab: WholeGrid) -> None:
    first, _ = full(lab)
    waiting = lab.run(lab.service.enqueue(ask("b", amount=3)))
    assert isinstance(waiting, Waiting)
    assert isinstance(lab.service.find(waiting.id), Waiting)
    lab.run(lab.service.release(first.id))
    lab.wait(2.0)
    met = lab.service.find(waiting.id)
    assert isinstance(met, Lease)
    assert (met.source, met.state) == ("a", LeaseState.ACTIVE)


def test_the_higher_priority_is_met_first_and_requests_without_a_wait_do_not_pass_it(lab: WholeGrid) -> None:
    first, _ = full(lab)
    low = lab.run(lab.service.enqueue(ask("b", amount=4, priority=LOW)))
    high = lab.run(lab.service.enqueue(ask("b", amount=4, priority=HIGH)))
    assert waiting_ids(lab) == [high.id, low.id]
    lab.run(lab.service.release(first.id))
    with pytest.raises(NoCapacity):
        lab.run(lab.service.request(ask("b", amount=4)))
    lab.wait(2.0)
    assert isinstance(lab.service.find(high.id), Lease)
    assert waiting_ids(lab) == [low.id]


def test_requests_with_and_without_an_open_connection_are_in_one_queue(lab: WholeGrid) -> None:
    first, _ = full(lab)
    kept = lab.run(lab.service.enqueue(ask("b", amount=4, priority=HIGH)))

    async def give_back() -> None:
        await lab.service.release(first.id)

    answers = lab.run(together(lab.service.request(ask("b", amount=4), wait_s=5.0), give_back()))
    assert isinstance(answers[0], NoCapacity)
    assert isinstance(lab.service.find(kept.id), Lease)


def test_it_waits_over_a_crash_and_is_granted_once(lab: WholeGrid) -> None:
    first, _ = full(lab)
    waiting = lab.run(lab.service.enqueue(ask("b", amount=2), wait_s=3600.0))
    lab.crash()
    assert waiting_ids(lab) == [waiting.id]
    lab.run(lab.service.release(first.id))
    lab.wait(2.0)
    lab.crash()
    assert not waiting_ids(lab)
    assert [lease.id for lease in lab.leases.values() if lease.units == 20_000] == [waiting.id]


def test_a_withdrawn_request_is_gone_also_after_a_restart(lab: WholeGrid) -> None:
    full(lab)
    short = lab.run(lab.service.enqueue(ask("b", amount=2), wait_s=30.0))
    taken_back = lab.run(lab.service.enqueue(ask("b", amount=2)))
    lab.run(lab.service.queue.leave(taken_back.id[:8], who="ann"))
    assert waiting_ids(lab) == [short.id]
    lab.wait(31.0)
    assert not waiting_ids(lab)
    lab.crash()
    assert not waiting_ids(lab)
    with pytest.raises(RequestNotFound):
        lab.run(lab.service.queue.leave(short.id))


def test_what_became_of_a_request_that_waited_without_a_caller_can_be_asked(lab: WholeGrid) -> None:
    full(lab)
    short = lab.run(lab.service.enqueue(ask("b", amount=2), wait_s=30.0))
    withdrawn = lab.run(lab.service.enqueue(ask("b", amount=2)))
    lab.run(lab.service.queue.leave(withdrawn.id, who="ann"))
    lab.wait(31.0)
    for request, reported in ((short, "2 CPUs for b: its wait is over; "), (withdrawn, "2 CPUs for b: withdrawn")):
        why = lab.run(why_answer(lab.parts, lab.service, request.id[:8]))
        assert (why["id"], why["kind"], why["state"]) == (request.id, "request", "withdrawn")
        assert why["summary"].startswith(reported)
        assert why["ended_at"] is not None
        assert any("queued: 2 CPUs for b waits" in fact for fact in why["facts"])


def test_why_a_boost_was_lent_begins_with_its_wait_in_the_queue(lab: WholeGrid) -> None:
    first, _ = full(lab)
    waiting = lab.run(lab.service.enqueue(ask("b", amount=3)))
    lab.run(lab.service.release(first.id))
    lab.wait(2.0)
    facts = lab.run(why_answer(lab.parts, lab.service, waiting.id))["facts"]
    reported = [fact.split("  ")[1].partition(":")[0] for fact in facts if "  " in fact]
    assert reported == ["queued", "granted"]


def test_the_same_key_is_the_same_request(lab: WholeGrid) -> None:
    full(lab)
    wanted = ask("b", amount=2, idempotency_key="k")
    assert lab.run(lab.service.enqueue(wanted)).id == lab.run(lab.service.enqueue(wanted)).id
    assert len(waiting_ids(lab)) == 1


def test_what_makes_no_sense_does_not_wait(lab: WholeGrid) -> None:
    with pytest.raises(TargetNotFound):
        lab.run(lab.service.enqueue(ask("nowhere")))
    assert not waiting_ids(lab)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (ask("b", "mem", 4), UnknownResource),
        (ask("b", along=(("mem", 4),)), UnknownResource),
        (ask("nowhere"), TargetNotFound),
        (ask("b", source="nowhere"), SourceNotFound),
    ],
)
@pytest.mark.parametrize("old_view_s", [0.0, 60.0])
def test_nor_does_it_wait_behind_others_or_on_an_old_view(
    lab: WholeGrid, wanted: Ask, error: type[GridError], old_view_s: float
) -> None:
    full(lab)
    waiting = lab.run(lab.service.enqueue(ask("b", amount=2)))
    lab.clock.now += old_view_s
    asked_at = lab.clock.now
    with pytest.raises(error):
        lab.run(lab.service.request(wanted, wait_s=3600.0))
    assert lab.clock.now - asked_at < 1.0
    assert waiting_ids(lab) == [waiting.id]


def test_a_kind_that_a_node_has_just_brought_along_is_not_unknown(lab: WholeGrid) -> None:
    lab.wait(1.0)
    lab.cluster.add_node("d", cpus=4, fast_disk=2)
    lease = lab.run(lab.service.request(ask("b", "fast_disk", 1)))
    assert (lease.source, lease.state) == ("d", LeaseState.ACTIVE)


def test_a_full_disk_takes_no_request_that_is_to_wait_and_ends_none(lab: WholeGrid) -> None:
    first, _ = full(lab)
    waiting = lab.run(lab.service.enqueue(ask("b", amount=2)))
    lab.disk_is_full = True
    lab.run(lab.service.release(first.id))
    with pytest.raises(GridError) as caught:
        lab.run(lab.service.request(ask("b", amount=1, priority=CRITICAL), wait_s=2.0))
    assert isinstance(caught.value, StoreBroken | NoCapacity)
    lab.wait(3.0)
    assert waiting_ids(lab) == [waiting.id]
    lab.disk_is_full = False
    lab.wait(5.0)
    assert isinstance(lab.service.find(waiting.id), Lease)


def test_a_target_that_is_away_is_waited_for(lab: WholeGrid) -> None:
    full(lab)
    waiting = lab.run(lab.service.enqueue(ask("c", amount=2, source="a")))
    lab.cluster.kill_node("c")
    lab.wait(5.0)
    assert waiting_ids(lab) == [waiting.id]
    lab.cluster.return_node("c")
    for lease in lab.leases.values():
        lab.run(lab.service.release(lease.id))
    lab.wait(5.0)
    assert isinstance(lab.service.find(waiting.id), Lease)


class TestPreemption:
    def test_a_request_that_did_not_want_to_wait_gets_what_others_yield_for_it(
        self, make_grid: Callable[..., WholeGrid]
    ) -> None:
        lab = make_grid(min_hold_seconds=0, grace_seconds=5)
        low, high = (
            lab.run(lab.service.request(ask("b", amount=4, source=name, priority=priority)))
            for name, priority in (("a", LOW), ("c", HIGH))
        )
        work = lab.cluster.start("b", 12)
        assert work is not None
        critical = lab.run(lab.service.request(ask("b", amount=4, priority=CRITICAL)))
        assert (critical.source, critical.state) == ("a", LeaseState.ACTIVE)
        assert low.id not in lab.leases
        assert lab.leases[high.id].state is LeaseState.ACTIVE
        assert lab.cluster.true_totals()["b"] == cpu(12)

    def test_no_lease_yields_within_the_minimum_hold_or_under_conservative(
        self, make_grid: Callable[..., WholeGrid]
    ) -> None:
        for sharing in ({"min_hold_seconds": 60}, {"min_hold_seconds": 0, "policy": "conservative"}):
            lab = make_grid(**sharing)
            lab.run(lab.service.request(ask("b", amount=2, source="a", priority=LOW)))
            lab.run(lab.service.request(ask("b", amount=2, source="c", priority=LOW)))
            with pytest.raises(NoCapacity):
                lab.run(lab.service.request(ask("b", amount=4, priority=CRITICAL)))
            assert len(lab.leases) == 2


class TestCooldown:
    def test_a_node_gives_all_back_and_shares_nothing_over_a_crash_until_told(self, lab: WholeGrid) -> None:
        lent = lab.run(lab.service.request(ask("b", amount=2, source="a")))
        borrowed = lab.run(lab.service.request(ask("a", "cpu", 1, source="c", delivery="reserve")))
        asked = lab.run(cordon(lab.parts, "a", who="ann"))
        assert {lease.id for lease in asked} == {lent.id, borrowed.id}
        lab.wait(5.0)
        at_home(lab)
        lab.crash()
        for wanted in (ask("b", amount=1, source="a"), ask("a", amount=1, source="c")):
            with pytest.raises(NoCapacity) as caught:
                lab.run(lab.service.request(wanted))
            assert any("cordoned" in line for line in caught.value.because)
        lab.run(uncordon(lab.parts, "a"))
        assert lab.run(lab.service.request(ask("b", amount=1, source="a"))).state is LeaseState.ACTIVE

    def test_a_crash_before_leases_were_asked_back_keeps_none_on_a_cordoned_node(self, lab: WholeGrid) -> None:
        lab.run(lab.service.request(ask("b", amount=2, source="a")))
        lab.parts.sharing.cordoned.add("a")
        lab.run(lab.parts.commit_sharing())

        lab.crash()
        lab.wait(5.0)

        at_home(lab)

    def test_a_deadline_that_was_promised_to_a_request_is_not_put_off(self, lab: WholeGrid) -> None:
        held = lab.run(lab.service.request(ask("b", amount=2, source="a", grace_s=10.0)))
        lab.cluster.start("b", 6)
        lab.run(cordon(lab.parts, "a", who="ann"))
        promised = lab.leases[held.id].deadline
        assert promised is not None

        lab.run(cordon(lab.parts, "a", grace_s=500.0, who="ann"))

        assert lab.leases[held.id].deadline == promised

    def test_an_unknown_node_is_told(self, lab: WholeGrid) -> None:
        with pytest.raises(TargetNotFound):
            lab.run(cordon(lab.parts, "nowhere"))


def test_a_policy_that_was_set_stays_over_a_crash_until_the_configured_one_is_wanted(lab: WholeGrid) -> None:
    lab.run(set_policy(lab.parts, policy="Aggressive", mode="offload_only"))
    lab.crash()
    assert (lab.parts.sharing.policy, lab.parts.sharing.mode) == (SharingPolicy.AGGRESSIVE, SharingMode.OFFLOAD_ONLY)
    with pytest.raises(GridError, match="cannot be transferred"):
        lab.run(lab.service.request(ask("b", amount=1, delivery="transfer")))
    assert lab.run(lab.service.request(ask("b", amount=1))).delivery == "reserve"
    with pytest.raises(GridError, match="Unknown policy"):
        lab.run(set_policy(lab.parts, policy="bold", mode="configured"))
    assert lab.parts.sharing.mode is SharingMode.OFFLOAD_ONLY  # neither was changed
    lab.run(set_policy(lab.parts, policy="configured", mode="configured"))
    assert lab.parts.sharing.policy is SharingPolicy.BALANCED


def test_what_teams_used_is_known_after_a_restart(make_grid: Callable[..., WholeGrid], tmp_path: Path) -> None:
    lab = make_grid(home=tmp_path, teams=[{"name": "red"}])
    lab.run(lab.service.request(ask("b", amount=4, team="red")))
    lab.wait(400.0)
    lab.stop()
    lab.start()
    assert lab.parts.sharing.accounts["red"].used > 100.0


def test_no_lease_yields_for_what_is_returned_already_and_not_yet_seen(make_grid: Callable[..., WholeGrid]) -> None:
    """The view of what was returned comes late; a second victim would be one too many."""
    for seed in range(20):
        lab = make_grid(FakeCluster.lagging(seed), seed=seed, min_hold_seconds=0)
        low, high = (
            lab.run(lab.service.request(ask("b", amount=4, source=name, priority=priority)))
            for name, priority in (("a", LOW), ("c", HIGH))
        )
        critical = lab.run(lab.service.request(ask("b", amount=4, priority=CRITICAL)))
        lab.wait(3.0)
        assert critical.source == "a"
        assert lab.leases.keys() == {high.id, critical.id}, (seed, low.id)
