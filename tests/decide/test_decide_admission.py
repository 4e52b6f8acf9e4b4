"""Who is admitted now, and when the others' turn will be."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest
from builders import NOON, amounts, ask, cpu, lease, limits, node, team, waits

from distributed_grid.decide.capacity import slots
from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.queue.admission import Verdict, plan_queue
from distributed_grid.decide.queue.claims import OVERDUE_S
from distributed_grid.model.leases import Delivery, Lease, LeaseState, Notice
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Headroom, Rules
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Waiting
from distributed_grid.model.teams import Team, Teams

MASTER = node("gpu-master", cpus=0, memory=0)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


def plan(
    *queue: Waiting,
    nodes: Sequence[Node] = (),
    leases: Sequence[Lease] = (),
    teams: Sequence[Team] = (),
    depth: int = 100,
    explain: Sequence[str] | None = None,
    **rules: object,
) -> dict[str, Verdict]:
    in_force = Rules(teams=Teams(teams), **rules)  # type: ignore[arg-type]
    verdicts = plan_queue(
        queue, NodeTable([MASTER, *nodes]), leases, Usage.of(leases), lambda _: in_force, NOON, depth=depth,
        explain=explain,
    )  # fmt: skip
    assert [verdict.position for verdict in verdicts] == list(range(1, len(queue) + 1))
    return {verdict.waiting.id: verdict for verdict in verdicts}


def lent(id: str, amount: float, minutes: float, source: str = "gpu1", **changes: object) -> Lease:
    """Ends so many minutes after noon."""
    return lease(id, source, amount=amount, expires_at=at(minutes), **changes)


def full(*leases: Lease, name: str = "gpu1", cpus: float = 4, own: float = 0, **changes: object) -> Node:
    """A node that has lent these, and uses so many CPUs itself."""
    moved = sum(one.units for one in leases if one.source == name) / 10_000
    return node(name, cpus=cpus, used=cpu(moved + own), **changes)


def minutes(one: float) -> dict[str, float]:
    return {"duration_s": one * 60}


# -- admission -----------------------------------------------------------------------------------------------


def test_alone_in_the_queue_it_gets_what_it_would_get_if_it_had_just_asked() -> None:
    nodes = [node("a", cpus=8, used=cpu(5)), node("b", cpus=4), node("c", cpus=16, limits=limits(cpu=1))]

    verdict = plan(waits(), nodes=nodes)["w1"]

    assert verdict.grant == plan_grant(ask(), NodeTable([MASTER, *nodes]), Usage())
    assert (verdict.expected_start, verdict.expected_source, verdict.refused) == (NOON, "b", None)


def test_what_the_first_gets_the_second_cannot_have() -> None:
    found = plan(waits("a", 3), waits("b", 3), waits("c", 1), nodes=[node("gpu1", cpus=4)])

    assert found["a"].grant and found["c"].grant, "c is gone when it is b's turn"
    assert found["b"].expected_start == at(60)


def test_a_small_and_short_request_passes_a_big_one_that_it_cannot_delay() -> None:
    loan = lent("x", 2, 30)
    found = plan(
        waits("big", 4), waits("short", 2, **minutes(30)), waits("long", 2, **minutes(31)),
        nodes=[full(loan)], leases=[loan],
    )  # fmt: skip

    assert found["short"].grant is not None
    assert (found["big"].expected_start, found["big"].expected_source) == (at(30), "gpu1")
    assert found["long"].grant is None
    assert found["long"].expected_start == at(90), "after the big one"


def test_a_long_request_passes_on_another_node() -> None:
    loan = lent("x", 2, 30)

    found = plan(waits("big", 4), waits("long", 2), nodes=[full(loan), node("gpu2", cpus=3)], leases=[loan])

    assert found["long"].grant and found["long"].grant.source == "gpu2"


def test_its_turn_is_where_it_comes_first() -> None:
    usage = lent("x", 4, 50), lent("y", 4, 20, source="gpu2")
    nodes = full(*usage), full(*usage, name="gpu2")

    found = plan(waits("a", 4), waits("b", 4), nodes=nodes, leases=usage)

    assert [(v.expected_start, v.expected_source) for v in found.values()] == [(at(20), "gpu2"), (at(50), "gpu1")]


def test_a_reservation_and_a_transfer_from_one_node_take_from_the_same() -> None:
    found = plan(
        waits("moves", 3, delivery="transfer"), waits("stays", 3, delivery="reserve"), nodes=[node("gpu1", cpus=4)]
    )

    assert found["moves"].grant and found["moves"].grant.delivery is Delivery.TRANSFER
    assert found["stays"].expected_start == at(60)


def test_the_companions_of_a_gpu_wait_for_their_node_too() -> None:
    loan = lent("x", 4, 30)

    found = plan(waits("g", 1, kind="gpu"), nodes=[full(loan, gpus=1)], leases=[loan])

    assert found["g"].expected_start == at(30)


# -- what bounds it besides what is free ---------------------------------------------------------------------


def test_a_lending_limit_is_kept_now_and_later() -> None:
    loan = lent("x", 3, 30)

    found = plan(waits("a", 2), waits("b", 2), nodes=[full(loan, cpus=16, limits=limits(cpu=3))], leases=[loan])

    assert [verdict.expected_start for verdict in found.values()] == [at(30), at(90)]


def test_what_the_policy_keeps_is_kept_now_and_later() -> None:
    loan = lent("x", 6, 30)

    found = plan(
        waits("a", 7), waits("b", 9), nodes=[full(loan, cpus=10)], leases=[loan], headroom=Headroom("balanced", 0.2)
    )

    assert found["a"].expected_start == at(30)
    assert found["b"].expected_start is None
    assert "no node can ever lend 9 CPUs (gpu1 can lend the most: 8 CPUs)" in found["b"].reason


def test_a_node_that_is_to_lend_to_one_ahead_does_not_borrow_when_that_begins() -> None:
    loan = lent("x", 4, 30, source="gpu1")
    nodes = [full(loan), node("gpu2", cpus=4)]
    ahead = waits("ahead", 4, source="gpu1")
    into_gpu1 = waits("behind", 2, target="gpu1", source="gpu2", **minutes(45))

    found = plan(ahead, into_gpu1, nodes=nodes, leases=[loan])

    assert found["ahead"].expected_start == at(30)
    assert found["behind"].expected_start == at(30), "once the other has begun, gpu1 may borrow"
    assert plan(ahead, waits("brief", target="gpu1", source="gpu2", **minutes(30)), nodes=nodes, leases=[loan])[
        "brief"
    ].grant


def test_a_node_lends_by_transfer_once_it_does_not_borrow_any_more() -> None:
    loan = lease("x", "gpu2", "gpu1", amount=2, expires_at=at(20))
    nodes = [node("gpu1", cpus=4, borrowed=cpu(2)), node("gpu2", cpus=2, used=cpu(2))]

    found = plan(waits("moves", 4), waits("stays", 1, delivery="reserve", **minutes(10)), nodes=nodes, leases=[loan])

    assert (found["moves"].expected_start, found["moves"].expected_source) == (at(20), "gpu1")
    assert found["stays"].grant is not None, "a reservation there goes at once"


# -- teams ---------------------------------------------------------------------------------------------------

BLUE = team("blue", guaranteed={"cpu": 2}, borrows={"cpu": 2})


def test_whom_its_teams_limit_holds_back_keeps_nothing_from_others() -> None:
    loan = lent("x", 3, 30, team="blue")

    found = plan(
        waits("blue", 2, team="blue"), waits("red", 4, team="red"), nodes=[full(loan, cpus=7)], leases=[loan],
        teams=[BLUE],
    )  # fmt: skip

    assert found["red"].grant is not None
    assert (found["blue"].expected_start, found["blue"].expected_source) == (at(30), "gpu1")
    assert found["blue"].reason == (
        "its team's limit: team blue has 3 of at most 4 CPUs, 2 requested; "
        "as its leases end, the limit allows it at 2025-06-01T12:30Z"
    )
    assert found["blue"].refused and found["blue"].refused.team_limit


def test_whom_its_teams_limit_holds_back_is_expected_when_a_node_has_room_too() -> None:
    """The reason names a time if, and only if, the verdict has it."""
    own, others = lent("x", 3, 30, team="blue"), lent("y", 4, 45, team="red")

    found = plan(waits("a", 4, team="blue"), nodes=[full(own, others, cpus=7)], leases=[own, others], teams=[BLUE])["a"]
    assert found.expected_start == at(45)
    assert found.reason.endswith("the limit allows it at 2025-06-01T12:30Z, and gpu1 has room at 2025-06-01T12:45Z")

    busy = full(own, cpus=7, own=4)
    found = plan(waits("a", 4, team="blue"), nodes=[busy], leases=[own], teams=[BLUE])["a"]
    assert found.expected_start is None
    assert found.reason == "its team's limit: team blue has 3 of at most 4 CPUs, 4 requested"


def test_what_no_wait_can_bring_is_told_from_what_may_come() -> None:
    gpu1, busy = node("gpu1", cpus=4), node("gpu1", cpus=4, used=cpu(4))

    assert plan(waits("a", 9), nodes=[gpu1])["a"].is_hopeless
    assert plan(waits("a", 5, team="blue"), nodes=[node("gpu1", cpus=8)], teams=[BLUE])["a"].is_hopeless
    assert plan(waits("a", 1), nodes=[node("gpu1", limits=limits(can_share=False))])["a"].is_hopeless
    assert not plan(waits("a", 4), nodes=[busy])["a"].is_hopeless
    assert not plan(waits("a", 9), nodes=[gpu1, node("gpu2", cpus=0, alive=False)])["a"].is_hopeless


def test_no_calendars_of_nodes_are_built_for_a_request_that_only_its_team_s_limit_keeps_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "NodeCalendar", None)
    loan = lent("x", 3, 30, team="blue")
    nodes = [full(loan, cpus=8), *(node(f"idle-{number}") for number in range(3))]
    found = plan(waits("blue", 2, team="blue"), nodes=nodes, leases=[loan], teams=[team("blue", borrows=cpu(4))])
    assert (found["blue"].grant, found["blue"].expected_start) == (None, at(30))


def test_of_its_own_team_only_a_request_that_is_done_in_time_passes_one_that_the_limit_holds_back() -> None:
    loan = lent("x", 2, 30, team="blue")

    found = plan(
        waits("big", 4, team="blue"), waits("short", 2, team="blue", **minutes(30)), waits("long", 1, team="blue"),
        nodes=[full(loan, cpus=20)], leases=[loan], teams=[BLUE],
    )  # fmt: skip

    assert found["short"].grant is not None
    assert found["long"].grant is None


def test_more_than_its_team_may_ever_have_says_so() -> None:
    found = plan(waits("a", 5, team="blue"), nodes=[node("gpu1", cpus=8)], teams=[BLUE])

    assert found["a"].reason == "its team blue may have at most 4 CPUs"


def test_what_other_teams_keep_for_themselves_is_waited_for_like_what_a_node_has() -> None:
    """Else small requests of others could pass for ever."""
    owner = team("owner", guaranteed={"cpu": 4}, lends={"cpu": 0})
    loan = lent("x", 4, 30, team="red")
    nodes = [full(loan, cpus=5), node("gpu2", cpus=5)]

    found = plan(
        waits("a", 5, team="green"), waits("b", 2, team="red"), waits("own", 4, team="owner"), nodes=nodes,
        leases=[loan], teams=[owner],
    )  # fmt: skip

    assert found["a"].expected_start == at(30)
    assert found["b"].grant is None, "with it, what is left would not do for a"
    assert found["own"].grant is not None


def test_what_a_team_keeps_is_kept_also_while_it_waits_for_its_turn() -> None:
    owner = team("owner", guaranteed={"cpu": 2}, lends={"cpu": 0})
    loan = lent("x", 4, 30, team="red")
    nodes = [full(loan, cpus=4), node("gpu2", cpus=3)]

    found = plan(
        waits("own", 2, team="owner", source="gpu1"), waits("a", 2, team="red"), nodes=nodes, leases=[loan],
        teams=[owner],
    )  # fmt: skip

    assert found["own"].expected_start == at(30)
    assert found["a"].grant is None, "of the 3 on gpu2 it may have 1: the owner may ask for 2 of them at any time"


# -- ends ----------------------------------------------------------------------------------------------------


def test_what_is_being_given_back_is_expected_when_its_grace_is_over() -> None:
    loan = lent("x", 4, 55, state=LeaseState.RELEASING, release_asked_at=NOON - timedelta(seconds=10), grace_s=30)

    assert plan(waits("a"), nodes=[full(loan)], leases=[loan])["a"].expected_start == NOON + timedelta(seconds=20)


def test_what_should_be_back_already_is_expected_soon() -> None:
    loan = lent("x", 4, -5, state=LeaseState.RELEASING, release_asked_at=at(-5))

    expected = plan(waits("a"), nodes=[full(loan)], leases=[loan])["a"].expected_start

    assert expected is not None and NOON < expected < at(1)


def test_what_its_holder_must_give_up_is_expected_at_the_deadline() -> None:
    loan = lent("x", 4, 55, notice=Notice(40_000, "wanted", NOON, at(2)))

    assert plan(waits("a"), nodes=[full(loan)], leases=[loan])["a"].expected_start == at(2)


# -- reasons -------------------------------------------------------------------------------------------------


def test_it_says_what_comes_back_where_and_when_and_how_many_are_ahead() -> None:
    usage = lent("x", 2, 30), lent("y", 2, 45)

    found = plan(waits("a", 2), waits("b", 4), nodes=[full(*usage)], leases=usage)

    assert found["a"].reason == "waits for 2 CPUs: 2 come back to gpu1 at 2025-06-01T12:30Z"
    assert found["b"].reason == "waits for 4 CPUs: gpu1 has room at 2025-06-01T13:30Z; 1 request is ahead of it"


def test_one_gpu_comes_back_and_two_come_back() -> None:
    for amount, what in ((1, "1 GPU: 1 comes back"), (2, "2 GPUs: 2 come back")):
        loan = lent("x", amount, 30, kind="gpu", delivery=Delivery.RESERVE)
        taken = node("gpu1", cpus=4, gpus=amount, used=loan.resources)

        found = plan(waits("a", amount, kind="gpu"), nodes=[taken], leases=[loan])

        assert found["a"].reason == f"waits for {what} to gpu1 at 2025-06-01T12:30Z"


def test_a_node_that_could_lend_but_is_kept_for_those_ahead_says_so() -> None:
    loan = lent("x", 2, 30)

    found = plan(waits("big", 4), waits("long", 2), nodes=[full(loan)], leases=[loan])

    assert found["long"].refused
    by_node = {refusal.node: refusal for refusal in found["long"].refused.refusals}
    assert by_node["gpu1"].code is RefusalCode.OTHERS_AHEAD
    assert by_node["gpu1"].detail == "its free capacity is held for 1 request ahead of it"


def test_reasons_for_every_node_are_made_only_for_whom_they_are_wanted() -> None:
    found = plan(waits("a", 9), waits("b", 9), nodes=[node("gpu1")], explain=["b"])

    assert found["a"].refused is None
    assert found["b"].refused


def test_a_request_that_waits_for_a_nodes_own_work_has_no_estimate() -> None:
    found = plan(waits("a", 4), waits("b", 2), nodes=[node("gpu1", cpus=4, used=cpu(1))])

    assert found["a"].expected_start is None
    assert found["a"].reason == ("waits for 4 CPUs: gpu1 can lend them once its own load drops; no estimate")
    assert found["b"].grant is not None, "nothing is earmarked for what may never be"


def test_one_gpu_and_any_memory_is_it_and_two_gpus_are_them() -> None:
    busy = node("gpu1", cpus=4, gpus=2, memory=8, used=amounts(gpu=2, memory=8))

    for amount, kind, what in ((1, "gpu", "1 GPU: gpu1 can lend it"), (2, "gpu", "2 GPUs: gpu1 can lend them")):
        found = plan(waits("a", amount, kind=kind), nodes=[busy])
        assert found["a"].reason == f"waits for {what} once its own load drops; no estimate"
    found = plan(waits("a", 4, kind="memory"), nodes=[busy])
    assert found["a"].reason == "waits for 4 GB of memory: gpu1 can lend it once its own load drops; no estimate"


def test_for_one_that_is_overdue_a_node_is_earmarked_until_its_own_work_needs_less() -> None:
    loan = lent("x", 1, 30)
    queue = waits("a", 4, waited_s=OVERDUE_S), waits("long", 1), waits("short", 1, **minutes(30))

    found = plan(*queue, nodes=[full(loan, own=1)], leases=[loan])

    assert found["a"].reason.endswith("gpu1 is earmarked for it")
    assert found["long"].grant is None
    assert found["short"].grant is not None


def test_only_one_node_is_earmarked_for_the_overdue() -> None:
    nodes = [node("gpu1", cpus=4, used=cpu(1)), node("gpu2", cpus=4, used=cpu(1))]
    queue = (waits(id, 4, waited_s=OVERDUE_S) for id in ("a", "b"))

    assert plan(*queue, waits("c", 2), nodes=nodes)["c"].grant is not None


def test_a_target_that_is_gone_holds_no_other_request_up() -> None:
    found = plan(waits("a", target="gone"), waits("b"), nodes=[node("gpu1", cpus=2)])

    assert found["a"].reason == "its target gone is not in the cluster now"
    assert found["b"].grant is not None


def test_a_transfer_that_is_not_possible_any_more_says_so_and_holds_no_other_request_up() -> None:
    found = plan(
        waits("a", delivery="transfer"), waits("b"), nodes=[node("gpu1")], no_transfers_because="the mode changed"
    )

    assert "cannot be transferred" in found["a"].reason
    assert found["b"].grant is not None


def test_where_no_node_may_lend_it_says_so() -> None:
    found = plan(waits("a"), nodes=[node("gpu1", limits=limits(can_share=False))])

    assert found["a"].reason == "no node lends to gpu-master now"


# -- depth ---------------------------------------------------------------------------------------------------


def test_a_request_too_far_back_for_a_slot_may_still_be_admitted_but_delays_none_that_has_one() -> None:
    loan = lent("x", 2, 30)
    queue = waits("big", 4), waits("other", 4), waits("long", 2), waits("short", 2, **minutes(30))

    found = plan(*queue, nodes=[full(loan)], leases=[loan], depth=1)

    assert found["big"].expected_start == at(30)
    assert found["other"].reason == "1 request is ahead of it: too many to estimate its start"
    assert found["long"].grant is None
    assert found["short"].grant is not None


def test_memory_and_cpus_do_not_wait_for_each_other() -> None:
    loan = lent("x", 4, 30)

    found = plan(waits("c", 4), waits("m", 8, kind="memory"), nodes=[full(loan)], leases=[loan])

    assert found["m"].grant and found["m"].grant.resources == amounts(memory=8)
