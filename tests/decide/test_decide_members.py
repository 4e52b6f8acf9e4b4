"""Requests of several equal members: each is whole on one node, and all are granted or none."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from builders import NOON, amounts, ask, cpu, lease, limits, node, reservation, team, waits

from distributed_grid.decide.capacity.lending import counter_offer, plan_parts
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.leases.lifecycle import lease_from
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.admission import Verdict, plan_queue
from distributed_grid.decide.queue.claims import OVERDUE_S
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.lease_changes import regrouped
from distributed_grid.model.leases import Lease, Purpose
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Headroom, Refused, Rules
from distributed_grid.model.policies import AllocationPriority, SharingPolicy
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.requests import Ask, Layout, Waiting
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.teams import Teams

MASTER = node("gpu-master", cpus=0, memory=0)
GANG = {"delivery": "reserve", "own_too": True}


def gang(count: int, layout: Layout = Layout.PACK, *, places: Sequence[str] = (), **one: object) -> Ask:
    return ask(**{"amount": 4} | GANG | one).times(count, layout, tuple(places))  # type: ignore[arg-type]


def plan(asked: Ask, *nodes: Node, rules: Rules | None = None) -> list[str] | None:
    found = plan_parts(asked, NodeTable([MASTER, *nodes]), Usage(), rules or Rules())
    return None if isinstance(found, Refused) else [grant.source for grant in found]


def queued(
    *queue: Waiting, nodes: Sequence[Node], leases: Sequence[Lease] = (), policy: SharingPolicy | None = None
) -> dict[str, Verdict]:
    verdicts = plan_queue(
        queue, NodeTable([MASTER, *nodes]), leases, Usage.of(leases), lambda _: Rules(), NOON,
        numbers=None if policy is None else POLICIES[policy],
    )  # fmt: skip
    return {verdict.waiting.id: verdict for verdict in verdicts}


def wants(id: str, asked: Ask, waited_s: float = 0.0) -> Waiting:
    return replace(waits(id, waited_s=waited_s), ask=asked)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


# -- where they go ---------------------------------------------------------------------------------------------

SMALL, BIG = node("small", cpus=4), node("big", cpus=12)


@pytest.mark.parametrize(
    ("layout", "count", "expected"),
    [
        (Layout.PACK, 3, {"big": 3}),
        (Layout.PACK, 4, {"big": 3, "small": 1}),
        (Layout.PACK, 5, None),
        (Layout.SPREAD, 2, {"big": 1, "small": 1}),
        (Layout.SPREAD, 3, {"big": 2, "small": 1}),
        (Layout.STRICT_PACK, 3, {"big": 3}),
        (Layout.STRICT_PACK, 4, None),
        (Layout.STRICT_SPREAD, 2, {"big": 1, "small": 1}),
        (Layout.STRICT_SPREAD, 3, None),
    ],
)
def test_each_layout_places_members_as_it_says(layout: Layout, count: int, expected: dict[str, int] | None) -> None:
    found = plan(gang(count, layout), SMALL, BIG)
    assert (None if found is None else Counter(found)) == expected


def test_preferred_places_come_first_if_they_have_room() -> None:
    assert plan(gang(2, places=["small", "big"]), SMALL, BIG) == ["small", "big"]
    assert plan(gang(2, places=["small", "small"]), SMALL, BIG) == ["big", "big"], "small has room for one"
    assert plan(gang(2, Layout.STRICT_PACK, places=["small", "big"]), SMALL, BIG) == ["big", "big"]


def test_eligible_nodes_are_taken_in_their_order() -> None:
    assert plan(replace(gang(2), nodes=("small", "big")), SMALL, BIG) == ["small", "big"]
    assert plan(replace(gang(2), nodes=("small",)), SMALL, BIG) is None


def test_its_own_node_carries_members_too() -> None:
    target = replace(MASTER, name="gpu-master", base=cpu(4), total=cpu(4), free=cpu(4))
    found = plan_parts(gang(2), NodeTable([target, SMALL]), Usage())
    assert not isinstance(found, Refused)
    assert [grant.source for grant in found] == ["small", "gpu-master"], "others first"


def test_each_member_has_its_own_gpu_and_what_comes_along() -> None:
    nodes = [node("two", cpus=8, gpus=2), node("one", cpus=8, gpus=1)]
    found = plan_parts(gang(3, kind="gpu", amount=1), NodeTable([MASTER, *nodes]), Usage())
    assert not isinstance(found, Refused)
    assert [(grant.source, grant.resources) for grant in found] == [
        ("two", amounts(gpu=1, cpu=1)),
        ("two", amounts(gpu=1, cpu=1)),
        ("one", amounts(gpu=1, cpu=1)),
    ]


@pytest.mark.parametrize(("count", "fits"), [(2, True), (3, False)])
def test_parts_of_gpus_are_counted_by_device(count: int, fits: bool) -> None:
    """Two devices are two times 0.6, not three times."""
    assert (plan(gang(count, kind="gpu", amount=0.6), node("two", cpus=8, gpus=2)) is not None) is fits


def test_limits_and_headroom_count_for_all_members_together() -> None:
    assert plan(gang(3, amount=2), node("a", cpus=8, limits=limits(cpu=4))) is None
    assert plan(gang(2, amount=2), node("a", cpus=8, limits=limits(cpu=4))) == ["a", "a"]
    assert plan(gang(2, amount=4), node("a", cpus=8), rules=Rules(headroom=Headroom("balanced", 0.2))) is None


def test_every_node_says_how_many_members_it_has_room_for() -> None:
    refused = plan_parts(gang(3, Layout.STRICT_SPREAD), NodeTable([MASTER, SMALL, BIG]), Usage())
    assert isinstance(refused, Refused)
    found = {refusal.node: (refusal.code, refusal.detail) for refusal in refused.refusals}
    assert found["big"] == (
        RefusalCode.TOO_FEW_FIT,
        "it has room for 1 of 3 members, which are granted all or none",
    )
    assert found["gpu-master"] == (RefusalCode.NO_CAPACITY, "0 of 0 CPUs free, 4 requested")


# -- as a lease ------------------------------------------------------------------------------------------------


def granted(asked: Ask, *nodes: Node) -> Lease:
    found = plan_parts(asked, NodeTable([MASTER, *nodes]), Usage())
    assert not isinstance(found, Refused)
    return lease_from(found, "g", NOON, grace_s=9.0, on_grace_end=OnGraceEnd.HOLD)


def test_the_lease_has_a_bundle_for_each_member_and_names_each_lender_once() -> None:
    made = granted(gang(4), SMALL, BIG)
    assert [share.bundle for share in made.shares] == [1, 2, 3, 4]
    assert made.sources == ("big", "small")
    assert made.describe() == "16 CPUs from big (12) and small (4) to gpu-master"
    assert len({part.id for part in made.parts}) == 4 and {part.whole_id for part in made.parts} == {"g"}


def test_a_lender_that_is_gone_takes_its_members_along_and_a_new_group_counts_anew() -> None:
    made = granted(gang(4), SMALL, BIG)
    left = made.without("big")
    assert [(share.source, share.bundle) for share in left.shares] == [("small", 4)]
    assert [share.bundle for share in regrouped(left, left, "new").shares] == [1]


# -- in the queue ----------------------------------------------------------------------------------------------


def test_it_has_an_expected_start_when_leases_end_and_later_requests_do_not_delay_it() -> None:
    loans = [reservation(f"r{name}", kind="cpu", amount=4, source=name, expires_at=at(30)) for name in "ab"]
    nodes = [node(name, cpus=4, used=cpu(4)) for name in "ab"]
    nodes += [node("c", cpus=4)]
    found = queued(
        wants("gang", gang(3)),
        wants("long", ask(amount=4, **GANG)),
        wants("short", ask(amount=4, duration_s=1800.0, **GANG)),
        nodes=nodes,
        leases=loans,
    )
    assert found["gang"].expected_start == at(30)
    assert set(found["gang"].expected_sources) == {"a", "b", "c"}
    assert found["gang"].reason == "waits for 12 CPUs: 8 come back to a, b and c at 2025-06-01T12:30Z"
    assert found["long"].grant is None, "it would delay the gang"
    assert found["short"].grant is not None


def test_a_gang_ahead_leaves_what_it_does_not_need_to_others() -> None:
    found = queued(wants("gang", gang(2)), wants("one", ask(amount=4, **GANG)), nodes=[SMALL, BIG])
    assert [grant.source for grant in found["gang"].grants] == ["big", "big"]
    assert found["one"].grant is not None


def _low(name: str, **more: object) -> Lease:
    return reservation(
        f"r{name}", kind="cpu", amount=4, source=name, age_s=600, priority=AllocationPriority.LOW, **more
    )


def test_leases_yield_to_all_members_or_to_none() -> None:
    loans = [_low(name) for name in "ab"]
    nodes = [node(name, cpus=4, used=cpu(4)) for name in "ab"]
    high = {"priority": AllocationPriority.HIGH}

    both = queued(wants("g", gang(2, **high)), nodes=nodes, leases=loans, policy=SharingPolicy.BALANCED)["g"]
    assert both.preemption is not None
    assert {victim.id for victim in both.preemption.victims} == {"ra", "rb"}
    assert sorted(both.expected_sources) == ["a", "b"]

    three = queued(wants("g", gang(3, **high)), nodes=nodes, leases=loans, policy=SharingPolicy.BALANCED)["g"]
    assert three.preemption is None and three.is_hopeless


def test_as_few_leases_yield_as_members_lack_a_place() -> None:
    nodes = [node("a", cpus=8, used=cpu(4)), node("b", cpus=4, used=cpu(4))]
    found = queued(
        wants("g", gang(2, priority=AllocationPriority.HIGH)),
        nodes=nodes,
        leases=[_low("a"), _low("b")],
        policy=SharingPolicy.BALANCED,
    )["g"]
    assert found.preemption is not None and len(found.preemption.victims) == 1


def test_members_that_must_be_together_get_one_node_back() -> None:
    loans = [_low("a"), _low("b"), replace(_low("b"), id="rb2")]
    nodes = [node("a", cpus=4, used=cpu(4)), node("b", cpus=8, used=cpu(8))]
    asked = gang(2, Layout.STRICT_PACK, priority=AllocationPriority.HIGH)
    found = queued(wants("g", asked), nodes=nodes, leases=loans, policy=SharingPolicy.BALANCED)["g"]
    assert found.preemption is not None
    assert {victim.id for victim in found.preemption.victims} == {"rb", "rb2"}


def test_of_a_transfer_two_members_get_their_parts_back() -> None:
    loan = lease("t", "a", amount=8, age_s=600, priority=AllocationPriority.LOW)
    found = queued(
        wants("g", gang(2, amount=2, priority=AllocationPriority.HIGH)),
        nodes=[node("a", cpus=8, borrowed=ResourceVector() - cpu(8))],
        leases=[loan],
        policy=SharingPolicy.BALANCED,
    )["g"]
    assert found.preemption is not None and found.preemption.takes == {"t": cpu(4)["cpu"]}


@pytest.mark.parametrize(
    ("nodes", "asked", "earmarked"),
    [
        ([node("a", cpus=8, used=cpu(2)), node("b", cpus=8, used=cpu(1))], gang(2, amount=8), "b and a are"),
        ([node("a", cpus=8, used=cpu(6)), node("b", cpus=8, used=cpu(5))], gang(2, amount=4), "b is"),
        ([node("a", cpus=8, used=cpu(6)), node("b", cpus=8, used=cpu(1))], gang(2, Layout.STRICT_PACK), "b is"),
        ([node("a", cpus=8, gpus=2, used=amounts(gpu=1))], gang(2, kind="gpu", amount=0.6), "a is"),
    ],
    ids=["two", "one-is-enough", "together", "devices"],
)
def test_for_an_overdue_gang_as_many_nodes_are_earmarked_as_it_takes(
    nodes: list[Node], asked: Ask, earmarked: str
) -> None:
    found = queued(wants("g", asked, waited_s=OVERDUE_S), nodes=nodes)["g"]
    assert found.expected_start is None and found.reason.endswith(f"{earmarked} earmarked for it")


@pytest.mark.parametrize(
    ("nodes", "asked"),
    [
        ([node("a", cpus=16, limits=limits(cpu=4))], gang(2, amount=4)),  # it never lends more than 4
        ([node("a", cpus=16)], gang(3, amount=8)),
        ([node("a", cpus=16)], gang(2, Layout.STRICT_SPREAD)),
        ([node("a", cpus=4), node("b", cpus=4)], gang(2, Layout.STRICT_PACK)),
        ([node("a", cpus=8, gpus=2)], gang(3, kind="gpu", amount=0.6)),  # one on each device
    ],
    ids=["limit", "too-few", "apart", "together", "devices"],
)
def test_a_gang_that_idle_nodes_could_not_carry_is_told_so(nodes: list[Node], asked: Ask) -> None:
    found = queued(wants("g", asked, waited_s=OVERDUE_S), nodes=nodes)["g"]
    assert found.is_hopeless
    assert found.reason == f"all nodes together can never lend {asked.amounts}"


def test_a_teams_limit_counts_all_members() -> None:
    rules = Rules(teams=Teams([team("red", guaranteed=cpu(4), borrows=cpu(2))]))
    assert plan(gang(2, team="red"), BIG, rules=rules) is None
    assert plan(gang(2, team="red", amount=3), BIG, rules=rules) == ["big", "big"]


# -- runs ------------------------------------------------------------------------------------------------------


def run_of(count: int, layout: Layout, **one: object) -> Ask:
    return gang(count, layout, purpose=Purpose.RUN, **one)


def parts(asked: Ask, *nodes: Node) -> list[tuple[str, ResourceVector]]:
    found = plan_parts(asked, NodeTable([MASTER, *nodes]), Usage(), Rules())
    assert not isinstance(found, Refused)
    return [(grant.source, grant.resources) for grant in found]


def test_the_members_of_a_run_on_one_node_share_a_bundle() -> None:
    nodes = [node("b", cpus=3), node("c", cpus=8)]

    assert parts(run_of(5, Layout.SPREAD, amount=1), *nodes) == [("c", cpu(3)), ("b", cpu(2))]
    assert parts(run_of(2, Layout.STRICT_SPREAD, amount=2), *nodes) == [("b", cpu(2)), ("c", cpu(2))]
    assert parts(gang(3, Layout.PACK, amount=1), *nodes) == [("b", cpu(1))] * 3


def test_leases_that_yield_to_a_run_on_several_nodes_make_room_for_whole_members() -> None:
    nodes = [node("b", cpus=4), node("c", cpus=4)]
    low = [reservation("l1", kind="cpu", amount=4, source="b", priority=AllocationPriority.LOW)]
    asked = run_of(4, Layout.SPREAD, amount=2, priority=AllocationPriority.HIGH)

    verdict = queued(wants("r", asked), nodes=nodes, leases=low, policy=SharingPolicy.BALANCED)["r"]

    assert verdict.preemption is not None
    assert [(g.source, g.resources) for g in verdict.preemption.grants] == [("c", cpu(4)), ("b", cpu(4))]


def test_what_comes_along_is_divided_with_the_devices() -> None:
    asked = ask(
        kind="gpu",
        amount=4,
        purpose=Purpose.RUN,
        max_sources=8,
        along=(("cpu", 8 * 10_000),),
        **GANG,  # type: ignore[arg-type]
    )
    nodes = [node("b", cpus=8, gpus=3), node("c", cpus=8, gpus=2)]

    assert parts(asked, *nodes) == [("b", amounts(gpu=3, cpu=6)), ("c", amounts(gpu=1, cpu=2))]


def test_a_run_that_no_three_nodes_can_carry_is_offered_the_nodes_that_can() -> None:
    nodes = NodeTable([MASTER, node("b", cpus=4), node("c", cpus=2), node("d", cpus=1)])
    refused = plan_parts(run_of(3, Layout.STRICT_SPREAD, amount=2), nodes, Usage(), Rules())

    assert isinstance(refused, Refused)
    assert counter_offer(refused) == "2 of 3 nodes have room for 2 CPUs: grid run --nodes 2 --cpus 2"
