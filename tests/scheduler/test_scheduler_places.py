"""Tasks and their places, with the real ledger: what was promised is held, and no other task gets it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from builders import amounts, ask, cpu, reading
from fake_cluster import FakeCluster
from fake_telemetry import FakeTelemetry
from whole_grid import WholeGrid, at_home, together

from distributed_grid.controller.sharing_routes import withdraw
from distributed_grid.decide.queue.claims import OVERDUE_S
from distributed_grid.decide.scheduler import NodeColumns, Sought, register_strategy
from distributed_grid.errors import InvalidRequest, RequestNotFound, StoreBroken, TargetNotFound
from distributed_grid.model.leases import LeaseState, Purpose
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.principals import Principal, Scope
from distributed_grid.model.scheduling import PlacedBy, SchedulingDecision, SchedulingRequest
from distributed_grid.queue.answers import why_answer
from distributed_grid.scheduler.scheduler import Scheduling

pytestmark = pytest.mark.filterwarnings("ignore")

Make = Callable[..., WholeGrid]


def tasks(lab: WholeGrid) -> Scheduling:
    return lab.engine.scheduling


def schedule(lab: WholeGrid, task_id: str = "t", **request: Any) -> SchedulingDecision:
    """Of node a, which is the head."""
    return lab.run(tasks(lab).schedule(SchedulingRequest(task_id=task_id, **request), who="ann"))


def complete(lab: WholeGrid, task_id: str = "t") -> bool:
    return lab.run(tasks(lab).complete(task_id, who="ann"))


def all_home(lab: WholeGrid) -> None:
    lab.wait(0.2)  # outcomes are written a moment later
    at_home(lab)


def reserved_boost(lab: WholeGrid, amount: float = 4, source: str = "b", **more: Any) -> str:
    reserved = ask("a", amount=amount, source=source, delivery="reserve", **{"requester": "ann"} | more)
    return lab.run(lab.service.request(reserved)).id


# -- a place ---------------------------------------------------------------------------------------------------


def test_a_task_has_its_place_as_a_group_on_its_own_node(lab: WholeGrid) -> None:
    decision = schedule(lab, cpu=3)
    assert decision
    assert (decision.node, decision.delivery) == ("a", PlacedBy.RESERVE)
    lease = lab.leases[decision.lease_id or ""]
    assert (lease.source, lease.target, lease.purpose, lease.label) == ("a", "a", Purpose.TASK, "t")
    assert lease.placement_group == decision.placement_group
    assert lab.cluster.reserved("a") == cpu(3)
    lab.run(tasks(lab).started("t", who="ana"))
    lab.wait(5)
    assert complete(lab)
    assert lab.engine.runs.total_s >= 5
    all_home(lab)


def test_a_task_that_is_too_big_for_its_node_goes_to_another(lab: WholeGrid) -> None:
    lab.cluster.start("a", 3)
    decision = schedule(lab, cpu=2)
    assert decision.node in ("b", "c")
    assert lab.cluster.reserved(decision.node or "") == cpu(2)


def test_all_kinds_are_in_one_bundle(make_grid: Make) -> None:
    lab = make_grid(FakeCluster())
    decision = schedule(lab, cpu=2, gpu=1)
    assert lab.cluster.reserved("a") == amounts(cpu=2, gpu=1)
    assert decision.delivery is PlacedBy.RESERVE


def test_a_rejected_task_is_a_decision_with_a_reason_for_every_node(lab: WholeGrid) -> None:
    decision = schedule(lab, cpu=5)
    assert not decision
    assert not decision.queued
    assert decision.reasons == (
        "a: 4 of 4 CPUs free, 5 requested",
        "b: 4 of 4 CPUs free, 5 requested",
        "c: 4 of 4 CPUs free, 5 requested",
    )
    assert tasks(lab).find("t") == decision
    assert not complete(lab)
    all_home(lab)


def test_where_sharing_is_off_tasks_are_rejected(make_grid: Make) -> None:
    assert schedule(make_grid(enabled=False)).reasons == ("Resource sharing not enabled",)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"target": "nowhere"}, TargetNotFound),
        ({"node": "nowhere"}, TargetNotFound),
        ({"affinity": {"nodes": ["nowhere"]}}, TargetNotFound),
        ({"strategy": "best"}, InvalidRequest),
        ({"gpu": 0.5}, InvalidRequest),
        ({"task_id": ""}, InvalidRequest),
    ],
    ids=str,
)
def test_what_makes_no_sense_raises(lab: WholeGrid, request_: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        schedule(lab, **request_)
    assert not tasks(lab).state.tasks


def test_the_same_id_is_the_same_task(lab: WholeGrid) -> None:
    first = schedule(lab, cpu=3)
    assert schedule(lab, cpu=3) == first
    both = lab.run(together(*(tasks(lab).schedule(SchedulingRequest(task_id="u"), who="ann") for _ in range(2))))
    assert both[0] == both[1]
    assert len(lab.leases) == 2


def test_tasks_that_come_together_never_share_a_core_and_none_is_left_unused(lab: WholeGrid) -> None:
    wanted = [SchedulingRequest(task_id=f"t{number}", cpu=1) for number in range(15)]
    found = lab.run(together(*(tasks(lab).schedule(each, who="ann") for each in wanted)))
    assert sum(bool(each) for each in found) == 12
    assert all(lab.cluster.reserved(name)["cpu"] == cpu(4)["cpu"] for name in "abc")
    assert not lab.cluster.violations


def test_a_node_that_is_busy_after_all_is_passed_over(lab: WholeGrid) -> None:
    lab.run(lab.parts.look())
    lab.cluster.start("a", 4)  # no look has shown it yet
    assert schedule(lab, cpu=2).node in ("b", "c")


def test_a_node_that_is_busy_after_all_is_told_where_no_other_will_do(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    decision = schedule(lab, cpu=2, node="a")
    assert decision.reasons[0] == "a: 0 of 4 CPUs free, 2 requested"


# -- boosts ----------------------------------------------------------------------------------------------------


def test_the_target_has_no_room_without_boosts_and_has_with(lab: WholeGrid) -> None:
    assert not schedule(lab, "before", cpu=6, node="a")
    lab.run(lab.service.request(ask("a", amount=2, source="b")))
    decision = schedule(lab, "after", cpu=6, node="a")
    assert (decision.node, decision.delivery) == ("a", PlacedBy.RESERVE)
    assert lab.cluster.reserved("a") == cpu(6)


def test_several_transfers_add_up(lab: WholeGrid) -> None:
    for source in "bc":
        lab.run(lab.service.request(ask("a", amount=3, source=source)))
    assert schedule(lab, cpu=10, node="a")


def test_a_task_in_a_reserved_boost_is_the_targets_and_what_it_has_there_is_not_given_twice(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    boost = reserved_boost(lab)
    first = schedule(lab, "one", cpu=3, node="a")
    assert (first.node, first.delivery, first.boost_id) == ("a", PlacedBy.BOOST, boost)
    assert first.members[0].runs_on == "b"
    assert first.placement_group == lab.leases[boost].placement_group
    assert not schedule(lab, "two", cpu=2, node="a")
    assert complete(lab, "one")
    assert lab.leases[boost].state is LeaseState.ACTIVE, "a boost stays when its task is done"
    assert schedule(lab, "three", cpu=4, node="a")


def test_a_gang_that_wants_one_lease_has_all_its_members_in_one_group_though_a_boost_has_room(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    boost = reserved_boost(lab, 2)
    apart = {"cpu": 1, "count": 2, "anti_affinity": {"tasks": ["gang"]}}
    mixed = schedule(lab, "gang", **apart)
    assert boost in {member.boost_id for member in mixed.members}
    assert complete(lab, "gang")

    decision = schedule(lab, "gang", **apart, own_lease=True)

    assert [member.boost_id for member in decision.members] == [None, None]
    assert len({member.placement_group for member in decision.members}) == 1
    assert len({member.runs_on for member in decision.members}) == 2


def test_parts_of_gpus_in_a_boost_are_on_one_device_each(make_grid: Make) -> None:
    lab = make_grid(fractional_gpus=True)
    lab.cluster.add_node("d", cpus=4, gpus=2)
    lab.run(lab.parts.look())
    reserved_boost(lab, 2, "d", kind="gpu")
    decisions = [schedule(lab, f"t{number}", cpu=0.5, gpu=0.6, node="a") for number in range(4)]
    own, *inside, last = decisions
    assert own.delivery is PlacedBy.RESERVE
    assert [one.delivery for one in inside] == [PlacedBy.BOOST] * 2
    assert not last, "0.8 GPUs are left in the boost, and each of its devices has 0.4"


def test_what_was_promised_in_a_boost_is_so_after_a_crash(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    reserved_boost(lab)
    assert schedule(lab, "one", cpu=3, node="a")
    lab.crash()
    assert not schedule(lab, "two", cpu=2, node="a")
    assert schedule(lab, "one", cpu=3, node="a").delivery is PlacedBy.BOOST
    assert complete(lab, "one")
    assert schedule(lab, "two", cpu=2, node="a")


def test_another_teams_boost_carries_nothing(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    reserved_boost(lab, team="blue", requester="bob")
    assert not schedule(lab, cpu=3, node="a")


def test_a_strangers_boost_carries_nothing_where_both_have_no_team(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    reserved_boost(lab, requester="bob")
    assert not schedule(lab, cpu=3, node="a")


def test_a_team_mates_boost_carries_a_task(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    boost = reserved_boost(lab, requester="bob", team="blue")
    request = SchedulingRequest(task_id="t", cpu=3, node="a")
    assert lab.run(tasks(lab).schedule(request, who="ann", team="blue")).boost_id == boost


def test_a_boost_that_ends_before_the_task_carries_nothing(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    reserved_boost(lab, duration_s=60.0)
    assert not schedule(lab, cpu=3, node="a", duration_seconds=600)
    assert schedule(lab, cpu=3, node="a", duration_seconds=30)


def test_a_task_whose_boost_ends_has_lost_its_place(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    boost = reserved_boost(lab)
    assert schedule(lab, cpu=3, node="a")
    lab.run(lab.service.release(boost))
    lab.wait(2.0)
    assert not tasks(lab).find("t")
    assert lab.events("task_lost") == ["task t has lost its place on b"]
    assert not complete(lab)


# -- gangs -----------------------------------------------------------------------------------------------------


def test_a_gang_has_all_its_places_or_none(lab: WholeGrid) -> None:
    decision = schedule(lab, cpu=2, count=6, strategy="spread")
    assert [m.node for m in decision.members].count("b") == 2
    assert len({(m.placement_group, m.bundle) for m in decision.members}) == 6, "each has a bundle of its own"
    assert len({m.lease_id for m in decision.members}) == len(lab.leases) == 1, "of one lease"
    assert complete(lab)
    all_home(lab)

    rejected = schedule(lab, "more", cpu=2, count=7)
    assert rejected.reasons[0] == "only 6 of 7 fit, and a gang is placed all or nothing"
    all_home(lab)


def test_a_gang_of_which_one_place_is_gone_after_all_leaves_nothing_behind(lab: WholeGrid) -> None:
    lab.run(lab.parts.look())
    lab.cluster.start("c", 4)  # no look has shown it yet
    assert not schedule(lab, cpu=4, count=3)
    lab.cluster.finish_everything()
    lab.wait(2.0)
    all_home(lab)
    assert not tasks(lab).state.tasks


def test_a_gang_may_be_partly_in_boosts(lab: WholeGrid) -> None:
    boost = reserved_boost(lab)
    decision = schedule(lab, cpu=4, count=2, node="a")
    assert {m.delivery for m in decision.members} == {PlacedBy.BOOST, PlacedBy.RESERVE}
    assert complete(lab)
    assert list(lab.leases) == [boost]


# -- waiting ---------------------------------------------------------------------------------------------------


def test_a_waiting_task_has_a_place_as_soon_as_there_is_one_higher_priorities_first(lab: WholeGrid) -> None:
    busy = [lab.cluster.start(name, 4) for name in "abc"]
    low = schedule(lab, "low", cpu=4, wait=True, priority="low")
    high = schedule(lab, "high", cpu=4, wait=True, priority="high")
    assert low.queued and not low and (low.position, high.position) == (1, 1)
    assert tasks(lab).find("low").position == 2
    lab.cluster.finish(busy[1] or 0)
    lab.wait(3.0)
    assert tasks(lab).find("high").node == "b"
    assert tasks(lab).find("low").queued
    assert complete(lab, "high")
    lab.wait(3.0)
    assert tasks(lab).find("low").node == "b"


def test_a_waiting_task_starts_by_itself_when_a_boost_becomes_active(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    assert schedule(lab, cpu=3, node="a", wait=True).queued
    boost = reserved_boost(lab)
    lab.wait(0.5)
    assert tasks(lab).find("t").boost_id == boost


def test_a_waiting_task_is_dropped_at_its_deadline(lab: WholeGrid) -> None:
    assert schedule(lab, cpu=5, wait=True, deadline_seconds=10).queued
    lab.wait(12.0)
    decision = tasks(lab).find("t")
    assert not decision.queued
    assert decision.reasons[0] == "its deadline has passed"
    assert tasks(lab).state.results == {"queued": 1, "rejected": 1}


def test_a_waiting_task_survives_a_crash_and_can_be_withdrawn(lab: WholeGrid) -> None:
    assert schedule(lab, cpu=5, wait=True).queued
    lab.crash()
    assert tasks(lab).find("t").queued
    assert complete(lab)
    assert tasks(lab).find("t").reasons == ("it was withdrawn before it had a place",)
    with pytest.raises(RequestNotFound):
        tasks(lab).find("never")


def test_small_tasks_pass_a_large_one_that_waits_only_if_they_are_done_before_its_turn(lab: WholeGrid) -> None:
    for name in "ac":
        lab.cluster.start(name, 4)
    assert schedule(lab, "s0", cpu=2)
    assert schedule(lab, "large", cpu=4, wait=True).queued
    held = "b: its free capacity is held for requests ahead of this one, or was taken meanwhile"
    assert held in schedule(lab, "s1", cpu=2).reasons
    assert schedule(lab, "s2", cpu=2, duration_seconds=60).node == "b"
    assert complete(lab, "s2")
    assert complete(lab, "s0")
    lab.wait(5.0)
    assert tasks(lab).find("large").node == "b"


def test_small_tasks_do_not_keep_a_gang_waiting_for_ever(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    assert schedule(lab, "s0", cpu=2, node="b")
    gang = {"count": 2, "anti_affinity": {"tasks": ["gang"]}}
    assert schedule(lab, "gang", cpu=4, wait=True, **gang).queued
    held = "b: its free capacity is held for requests ahead of this one, or was taken meanwhile"
    assert held in schedule(lab, "s1", cpu=2, node="b").reasons
    assert schedule(lab, "s2", cpu=2, node="b", wait=True).queued, "nor does one that waits take what is held"
    assert schedule(lab, "s3", cpu=2, node="b", duration_seconds=60), "it is done before the gang's turn"
    assert complete(lab, "s3")
    assert complete(lab, "s0")
    lab.wait(5.0)
    assert {member.node for member in tasks(lab).find("gang").members} == {"b", "c"}


def test_a_gang_gets_nodes_whose_own_work_must_end_before_small_tasks_do(lab: WholeGrid) -> None:
    works = [lab.cluster.start(name, 2) for name in "bc"]
    lab.cluster.start("a", 4)
    gang = {"count": 2, "anti_affinity": {"tasks": ["gang"]}}
    assert schedule(lab, "gang", cpu=4, wait=True, **gang).queued
    assert schedule(lab, "s1", cpu=2, node="b"), "the gang has no expected start, so at first others may pass it"
    assert complete(lab, "s1")
    lab.stop()
    lab.clock.sleep(OVERDUE_S)
    lab.start()
    lab.wait(2.0)
    assert not schedule(lab, "s2", cpu=2, node="b"), "its nodes are earmarked by now"
    for work in works:
        lab.cluster.finish(work or 0)
    lab.wait(5.0)
    assert {member.node for member in tasks(lab).find("gang").members} == {"b", "c"}


def test_leases_yield_to_a_gang_that_has_a_better_claim(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    low = {"priority": AllocationPriority.LOW, "grace_s": 5, "requester": "bob"}
    boosts = [reserved_boost(lab, source=name, **low) for name in "bc"]
    lab.wait(61.0)  # their minimum hold is over
    assert schedule(lab, "gang", cpu=4, count=2, wait=True, priority="high").queued
    lab.wait(1.0)
    assert {lab.leases[boost].is_winding_down for boost in boosts if boost in lab.leases} <= {True}
    lab.wait(8.0)
    assert {member.node for member in tasks(lab).find("gang").members} == {"b", "c"}
    assert not set(boosts) & set(lab.leases)


def test_no_lease_yields_to_a_gang_that_would_still_lack_a_place(lab: WholeGrid) -> None:
    for name in "ac":
        lab.cluster.start(name, 4)
    boost = reserved_boost(lab, priority=AllocationPriority.LOW, grace_s=5, requester="bob")
    lab.wait(61.0)
    assert schedule(lab, "gang", cpu=4, count=2, wait=True, priority="high").queued
    lab.wait(10.0)
    assert lab.leases[boost].state is LeaseState.ACTIVE


def test_a_gang_loses_only_the_members_whose_node_is_gone(lab: WholeGrid) -> None:
    decision = schedule(lab, cpu=3, count=3, anti_affinity={"tasks": ["t"]})
    assert {member.node for member in decision.members} == {"a", "b", "c"}
    lab.cluster.kill_node("c")
    lab.wait(5.0)
    assert {member.node for member in tasks(lab).find("t").members} == {"a", "b"}
    assert complete(lab)
    lab.wait(1.0)
    assert not lab.leases


# -- the order of claims ---------------------------------------------------------------------------------------

TEAMS = [{"name": "blue", "guaranteed": {"cpu": 4}}, {"name": "red", "guaranteed": {"cpu": 0}}]


def hold_everything(lab: WholeGrid, **more: Any) -> list[str]:
    """All CPUs of all nodes, as reservations for node c."""
    reserved = [ask("c", amount=4, source=name, delivery="reserve", own_too=True, **more) for name in "abc"]
    return [lab.run(lab.service.request(one)).id for one in reserved]


def schedule_for(lab: WholeGrid, team: str, task_id: str = "t", **request: Any) -> SchedulingDecision:
    return lab.run(tasks(lab).schedule(SchedulingRequest(task_id=task_id, **request), who=f"of {team}", team=team))


@pytest.mark.parametrize("where", [{}, {"node": "a"}, {"node": "b"}], ids=str)
def test_a_task_within_its_teams_guarantee_has_its_place_from_a_team_that_holds_everything_at_critical(
    make_grid: Make, where: dict[str, Any]
) -> None:
    lab = make_grid(teams=TEAMS, min_hold_seconds=5)
    hold_everything(lab, team="red", requester="red", priority=AllocationPriority.CRITICAL)
    assert schedule_for(lab, "blue", cpu=4, priority="low", wait=True, **where).queued
    lab.wait(15.0)
    decision = tasks(lab).find("t")
    assert decision
    assert decision.node in where.values() or not where
    assert len(lab.leases) == 3, "one of the others has yielded, and no more"


@pytest.mark.parametrize("count", [1, 2])
def test_what_a_team_may_have_bounds_its_tasks_and_is_the_reason_that_they_are_told(
    make_grid: Make, count: int
) -> None:
    lab = make_grid(teams=[{"name": "blue", "guaranteed": {"cpu": 2}, "borrowing_limit": {"cpu": 0}}])
    decision = schedule_for(lab, "blue", cpu=4 / count, count=count)

    assert not decision
    assert decision.reasons == ("team blue has 0 of at most 2 CPUs, 4 requested",)
    assert "granted" not in [event.event for event in lab.parts.journal.since(0)], "no part of it was taken meanwhile"
    assert schedule_for(lab, "blue", "smaller", cpu=1, count=2)


def test_a_task_outranks_boosts_of_lower_priority_and_is_outranked(make_grid: Make) -> None:
    lab = make_grid(min_hold_seconds=0)
    hold_everything(lab, requester="bob")
    assert schedule(lab, "same", cpu=4, wait=True).queued
    assert schedule(lab, "more", cpu=4, wait=True, priority="high").queued
    lab.wait(10.0)
    assert tasks(lab).find("more") and tasks(lab).find("same").queued


def test_tasks_and_requests_wait_in_one_queue_and_every_list_shows_them(lab: WholeGrid) -> None:
    busy = [lab.cluster.start(name, 4) for name in "abc"]
    first = lab.run(lab.service.enqueue(ask("a", amount=4, source="b", delivery="reserve", requester="bob")))
    assert schedule(lab, cpu=4, wait=True, node="b").position == 2
    entries = lab.service.queue.in_order()
    assert [entry.ask.label for entry in entries] == ["", "t"]
    why = lab.run(why_answer(lab.parts, lab.service, entries[1].id))
    assert {node["node"]: node["verdict"] for node in why["nodes"]}["c"] == "RuledOut"
    assert "it waits for the task t" in why["facts"]
    lab.cluster.finish(busy[1] or 0)
    lab.wait(3.0)
    assert first.id in lab.leases, "who came first has it"
    assert tasks(lab).find("t").queued
    lab.run(lab.service.release(first.id))
    lab.wait(3.0)
    assert tasks(lab).find("t").node == "b"
    assert not lab.service.queue


def test_the_team_that_used_less_goes_first_with_its_task(make_grid: Make) -> None:
    lab = make_grid(teams=TEAMS)
    used = hold_everything(lab, team="red", requester="red")
    lab.wait(600.0)
    assert schedule_for(lab, "red", "later", cpu=4, wait=True).queued
    lab.wait(1.0)
    assert schedule_for(lab, "default", "sooner", cpu=4, wait=True).position == 1
    lab.run(lab.service.release(used[1]))
    lab.wait(3.0)
    assert tasks(lab).find("sooner") and tasks(lab).find("later").queued


def test_a_task_that_waits_is_lifted_with_the_time(lab: WholeGrid) -> None:
    busy = [lab.cluster.start(name, 4) for name in "abc"]
    assert schedule(lab, "old", cpu=4, wait=True, priority="low").queued
    lab.wait(4000.0)
    assert schedule(lab, "new", cpu=4, wait=True).position == 2
    lab.cluster.finish(busy[2] or 0)
    lab.wait(3.0)
    assert tasks(lab).find("old") and tasks(lab).find("new").queued


def test_conditions_hold_for_tasks_that_had_to_wait(lab: WholeGrid) -> None:
    busy = [lab.cluster.start(name, 4) for name in "abc"]
    for number in range(3):
        request = {"tags": ["replica"], "anti_affinity": {"tasks": ["replica"]}}
        assert schedule(lab, f"apart{number}", cpu=1, wait=True, **request).queued
    for number in range(2):
        request = {"tags": ["pair"], "affinity": {"tasks": ["pair"]}, "anti_affinity": {"nodes": ["a"]}}
        assert schedule(lab, f"pair{number}", cpu=1, wait=True, **request).queued
    for work in busy:
        lab.cluster.finish(work or 0)
    lab.wait(5.0)
    assert {tasks(lab).find(f"apart{number}").node for number in range(3)} == {"a", "b", "c"}
    together_on = {tasks(lab).find(f"pair{number}").node for number in range(2)}
    assert len(together_on) == 1 and together_on < {"b", "c"}


def test_a_task_that_had_to_wait_goes_where_its_strategy_prefers(lab: WholeGrid) -> None:
    busy = [lab.cluster.start(name, 4) for name in "abc"]
    assert schedule(lab, "home", cpu=4, wait=True).queued
    preferred = {"nodes": ["c"], "required": False}
    assert schedule(lab, "preferred", cpu=4, wait=True, affinity=preferred).queued
    for work in busy:
        lab.cluster.finish(work or 0)
    lab.wait(5.0)
    assert (tasks(lab).find("home").node, tasks(lab).find("preferred").node) == ("a", "c")


def test_a_task_that_waits_can_be_taken_back_as_a_request(lab: WholeGrid) -> None:
    assert schedule(lab, cpu=5, wait=True).queued
    (entry,) = lab.service.queue.in_order()
    ann = Principal("ann", "", frozenset({Scope.LEND}), "token")
    shown = lab.run(withdraw(lab.engine, entry.id, caller=ann))
    assert shown["state"] == "cancelled"
    lab.wait(3.0)
    assert tasks(lab).find("t").reasons == ("it was withdrawn before it had a place",)
    assert not lab.service.queue


def test_a_strategy_that_fails_keeps_no_other_task_from_what_comes_back(lab: WholeGrid) -> None:
    @register_strategy("broken-later")
    def broken(columns: NodeColumns, _sought: Sought) -> Any:
        if not fails:
            return columns.tasks
        raise RuntimeError

    fails: list[bool] = []
    assert schedule(lab, "odd", cpu=5, wait=True, strategy="broken-later").queued
    fails.append(True)
    assert schedule(lab, "even", cpu=4, wait=True)
    fails.clear()
    assert complete(lab, "odd")


# -- whose leases ----------------------------------------------------------------------------------------------


def test_a_lease_that_only_looks_like_a_tasks_stays_when_that_task_ends(lab: WholeGrid) -> None:
    looks = {"purpose": Purpose.TASK, "label": "t", "delivery": "reserve", "requester": "bob"}
    others = lab.run(lab.service.request(ask("a", amount=2, source="b", **looks)))
    assert schedule(lab, cpu=2)
    assert complete(lab)
    assert lab.leases[others.id].state is LeaseState.ACTIVE
    assert not schedule(lab, cpu=4, count=3), "nor when a place of the same name fails"
    lab.disk_is_full = True
    with pytest.raises(StoreBroken):
        schedule(lab, cpu=2)
    lab.disk_is_full = False
    assert lab.leases[others.id].state is LeaseState.ACTIVE


def test_what_the_queue_granted_before_a_crash_is_the_tasks_place_after_it(lab: WholeGrid) -> None:
    busy = [lab.cluster.start(name, 4) for name in "abc"]
    assert schedule(lab, cpu=4, wait=True).queued
    waiting = lab.home.sharing.read_bytes()
    lab.cluster.finish(busy[1] or 0)
    lab.wait(3.0)
    lease = tasks(lab).find("t").lease_id
    lab.home.sharing.write_bytes(waiting)  # as if the crash came before that was put down
    lab.crash()
    lab.wait(3.0)
    assert tasks(lab).find("t").lease_id == lease
    assert list(lab.leases) == [lease] and not lab.service.queue
    assert complete(lab)
    lab.cluster.finish_everything()
    all_home(lab)


def test_nothing_is_left_of_a_gang_that_a_crash_cut_off(lab: WholeGrid) -> None:
    for name in "abc":
        lab.cluster.start(name, 4)
    assert schedule(lab, cpu=3, count=2, wait=True).queued
    waiting = lab.home.sharing.read_bytes()
    lab.cluster.finish_everything()
    lab.wait(3.0)
    assert tasks(lab).find("t")
    lab.home.sharing.write_bytes(waiting)
    lab.crash()
    lab.wait(5.0)
    assert len(tasks(lab).find("t").members) == 2
    assert len(lab.leases) == 1
    assert complete(lab)
    all_home(lab)


# -- ends ------------------------------------------------------------------------------------------------------


def test_a_task_that_is_never_completed_gives_its_place_back_in_the_end(lab: WholeGrid) -> None:
    assert schedule(lab, cpu=2, duration_seconds=10)
    lab.wait(70.0)
    assert lab.leases
    lab.wait(20.0)
    all_home(lab)
    assert not tasks(lab).state.tasks


def test_a_task_whose_node_dies_has_lost_its_place(lab: WholeGrid) -> None:
    assert schedule(lab, cpu=2, node="b")
    lab.cluster.kill_node("b")
    lab.wait(10.0)
    assert not tasks(lab).find("t")
    assert lab.events("task_lost")


def test_complete_works_after_a_crash_also_if_only_the_lease_was_written(lab: WholeGrid) -> None:
    assert schedule(lab, cpu=2)
    lab.home.sharing.unlink()
    lab.crash()
    assert complete(lab)
    all_home(lab)


def test_what_cannot_be_written_is_told_and_leaves_nothing(lab: WholeGrid) -> None:
    lab.disk_is_full = True
    with pytest.raises(StoreBroken):
        schedule(lab, cpu=2)
    lab.disk_is_full = False
    lab.wait(2.0)
    all_home(lab)
    assert not tasks(lab).state.tasks


def test_what_was_promised_in_a_boost_and_cannot_be_written_was_not_promised(
    lab: WholeGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.cluster.start("a", 4)
    reserved_boost(lab)

    async def full() -> None:
        raise StoreBroken("no space")

    with monkeypatch.context() as disk:
        disk.setattr(lab.parts, "commit_sharing", full)
        with pytest.raises(StoreBroken):
            schedule(lab, "one", cpu=3, node="a")
        with pytest.raises(StoreBroken):
            schedule(lab, "gang", cpu=2, count=3)
    assert not tasks(lab).state.tasks
    assert len(lab.leases) == 1, "only the boost is left"
    assert schedule(lab, "two", cpu=4, node="a")


def test_a_task_in_a_boost_that_is_never_completed_does_not_hold_its_place_for_ever(lab: WholeGrid) -> None:
    lab.cluster.start("a", 4)
    boost = reserved_boost(lab)
    assert schedule(lab, cpu=3, node="a", duration_seconds=10)
    lab.wait(75.0)
    assert not schedule(lab, "two", cpu=3, node="a")
    lab.wait(10.0)
    assert schedule(lab, "three", cpu=3, node="a").boost_id == boost


def test_grid_that_stops_gives_all_places_back(lab: WholeGrid) -> None:
    assert schedule(lab, cpu=2)
    lab.run(lab.engine.give_all_back())
    assert lab.cluster.is_at_base()
    assert not schedule(lab, "late", cpu=2)


# -- how sure --------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(make_grid: Make) -> WholeGrid:
    telemetry = FakeTelemetry()
    lab = make_grid(telemetry=telemetry, mode="share_and_offload", monitoring_interval_seconds=10)
    for name in "abc":
        telemetry.answers[name] = reading(own_cpu=0.2, own_memory=0, cpus=4.0, cpu_used=0.2)
    lab.wait(30.0)
    return lab


def test_what_was_said_is_held_against_what_happened(measured: WholeGrid) -> None:
    lab = measured
    first = schedule(lab, "good", cpu=1, node="a", duration_seconds=60)
    assert 0.5 < first.confidence < 1
    lab.run(tasks(lab).started("good", who="ana"))
    lab.wait(40.0)
    assert complete(lab, "good")
    outcomes = tasks(lab).state.calibrator.outcomes
    assert [(round(o.predicted.said, 6), o.happened) for o in outcomes] == [(round(first.confidence, 6), True)]

    schedule(lab, "bad", cpu=1, node="a", duration_seconds=60)
    lab.telemetry.answers["a"] = reading(cpus=4.0, cpu_used=3.9)
    lab.wait(80.0)  # longer than it was to be watched: no report of its end is needed
    assert [o.happened for o in tasks(lab).state.calibrator.outcomes] == [True, False]
    assert complete(lab, "bad")
    assert len(tasks(lab).state.calibrator.outcomes) == 2
    lab.crash()
    assert len(tasks(lab).state.calibrator.outcomes) == 2


def test_a_busy_node_is_less_sure(measured: WholeGrid) -> None:
    lab = measured
    calm = schedule(lab, "one", cpu=1, node="a")
    lab.telemetry.answers["b"] = reading(cpus=4.0, cpu_used=3.0)
    lab.wait(20.0)
    assert schedule(lab, "two", cpu=1, node="b").confidence < calm.confidence


def test_one_that_started_late_did_not_do_as_was_said(measured: WholeGrid) -> None:
    lab = measured
    assert schedule(lab, cpu=1, deadline_seconds=5)
    lab.wait(8.0)
    lab.run(tasks(lab).started("t", who="ana"))
    assert complete(lab)
    assert [o.happened for o in tasks(lab).state.calibrator.outcomes] == [False]
    assert list(tasks(lab).state.delays.known) == [pytest.approx(8.0, abs=0.1)]


def test_without_measurements_nothing_is_learnt(lab: WholeGrid) -> None:
    assert schedule(lab, cpu=1)
    assert complete(lab)
    assert not tasks(lab).state.calibrator.outcomes


def test_a_strategy_of_the_request_is_followed_on_what_is_measured(measured: WholeGrid) -> None:
    lab = measured
    lab.telemetry.answers["b"] = reading(cpus=4.0, cpu_used=3.0)
    lab.wait(20.0)
    apart = replace(SchedulingRequest(task_id="x", strategy="load-balanced"), anti_affinity={"nodes": ["a"]})
    assert lab.run(tasks(lab).schedule(apart, who="ann")).node == "c"
