"""Which leases yield to a request that no node can meet, and which to a lender that needs its own back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from builders import NOON, amounts, ask, cpu, lease, limits, node, reservation, team

from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.claims import Claim
from distributed_grid.decide.queue.preemption import (
    Preemption,
    foresee_preemption,
    plan_preemption,
    plan_relief,
)
from distributed_grid.model.leases import Idle, Lease, LeaseState, Notice, Purpose
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Grant, Headroom, Rules
from distributed_grid.model.policies import AllocationPriority, SharingPolicy
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, ResourceVector, total
from distributed_grid.model.teams import Team, Teams

BALANCED = POLICIES[SharingPolicy.BALANCED]
LOW, NORMAL, HIGH, CRITICAL = AllocationPriority
OLD = {"age_s": 1000.0}
URGENT = ask(amount=2, priority=HIGH)


def low(id: str, amount: float = 2, **changes: object) -> Lease:
    """A transfer of low priority, old enough to be taken."""
    return lease(id, amount=amount, **({"priority": LOW} | OLD | changes))


def lender(name: str = "gpu1", *leases: Lease, **changes: object) -> Node:
    """A node whose own work and whose leases leave nothing free."""
    base = changes.pop("base", amounts(cpu=8, memory=16, gpu=4))
    moved = sum((one.resources for one in leases if one.delivery == "transfer"), ResourceVector())
    return replace(node(name, base=base, **changes), total=base - moved, free=ResourceVector())


def plan(
    asked: Ask,
    *leases: Lease,
    nodes: tuple[Node, ...] | None = None,
    policy: SharingPolicy = SharingPolicy.BALANCED,
    **rules: object,
) -> Preemption | None:
    sources = sorted({one.source for one in leases} | {"gpu1"})
    there = nodes or tuple(lender(name, *(one for one in leases if one.source == name)) for name in sources)
    table = NodeTable([node("gpu-master", cpus=2), *there])
    return plan_preemption(asked, Snapshot(table, Usage.of(leases), leases), Rules(**rules), POLICIES[policy], NOON)  # type: ignore[arg-type]


def victims(found: Preemption | None) -> list[str]:
    return [] if found is None else [victim.id for victim in found.victims]


# -- who may have to yield -----------------------------------------------------------------------------------


IDLE = Idle(NOON - timedelta(minutes=20), yields=True)


@pytest.mark.parametrize("policy", SharingPolicy)
def test_an_idle_lease_yields_to_any_request_under_every_policy(policy: SharingPolicy) -> None:
    held = low("b", priority=CRITICAL, idle=IDLE)
    found = plan(ask(amount=2, priority=LOW), held, policy=policy)
    assert victims(found) == ["b"]
    assert found is not None
    assert found.reason == "idle leases yield to a request that waits: 2 CPUs for gpu-master"
    assert plan(ask(amount=2, priority=LOW), replace(held, idle=replace(IDLE, yields=False)), policy=policy) is None


def test_an_idle_lease_has_its_minimum_hold() -> None:
    assert plan(ask(amount=2, priority=LOW), low("b", idle=IDLE, age_s=59.0)) is None


def test_a_guarantee_does_not_protect_an_idle_lease() -> None:
    teams = Teams([team("vision", guaranteed=amounts(cpu=8))])
    held = low("b", team="vision", priority=NORMAL)
    assert plan(URGENT, held, teams=teams) is None
    assert victims(plan(URGENT, replace(held, idle=IDLE), teams=teams)) == ["b"]


def test_idle_leases_yield_before_all_others_even_if_more_of_them_have_to_go() -> None:
    active = low("active", amount=2)
    idle = [low(name, amount=1, priority=CRITICAL, idle=IDLE) for name in ("i1", "i2")]
    assert sorted(victims(plan(URGENT, active, *idle))) == ["i1", "i2"]
    elsewhere = [replace(one, source="gpu2") for one in idle]
    assert sorted(victims(plan(URGENT, active, *elsewhere))) == ["i1", "i2"]


def test_an_idle_boost_yields_to_a_request_of_its_own_requester_for_the_same() -> None:
    held = low("b", requester="ana")
    assert plan(ask(amount=2, priority=HIGH, requester="ana"), held) is None
    assert victims(plan(ask(amount=2, priority=HIGH, requester="ana"), replace(held, idle=IDLE))) == ["b"]


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (low("b", priority=HIGH), "its priority is not lower"),
        (low("b", priority=CRITICAL), "its priority is higher"),
        (low("b", age_s=59.0), "it is within its minimum hold"),
        (low("b", state=LeaseState.GRANTING), "it is not there yet"),
        (low("b", amount=1), "it is too little"),
        (low("b", kind="memory"), "it is of another kind"),
    ],
)
def test_no_lease_yields_that_must_not_or_cannot_help(held: Lease, why: str) -> None:
    assert plan(URGENT, held) is None, why


@pytest.mark.parametrize("priority", [LOW, NORMAL])
@pytest.mark.parametrize("hook", [None, "http://127.0.0.1:1/give"])
def test_a_lower_priority_yields_with_or_without_a_hook(priority: AllocationPriority, hook: str | None) -> None:
    found = plan(URGENT, low("b", priority=priority, age_s=60.0, reclaim_hook=hook))
    assert found is not None
    assert victims(found) == ["b"]
    assert (found.source, found.grant.source, found.grant.resources) == ("gpu1", "gpu1", cpu(2))
    assert found.reason == "a request of high priority takes precedence: 2 CPUs for gpu-master"
    assert not found.takes_own


def test_a_policy_that_never_preempts_lets_no_lease_yield() -> None:
    assert plan(URGENT, low("b"), policy=SharingPolicy.CONSERVATIVE) is None


@pytest.mark.parametrize("policy", [SharingPolicy.BALANCED, SharingPolicy.AGGRESSIVE, SharingPolicy.PREDICTIVE])
def test_the_other_policies_preempt(policy: SharingPolicy) -> None:
    assert victims(plan(URGENT, low("b"), policy=policy)) == ["b"]


def test_no_lease_yields_to_what_can_be_met_without() -> None:
    assert plan(URGENT, low("b"), nodes=(node("gpu1", cpus=8, used=cpu(2)),)) is None


# -- what is on its way home ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "going",
    [
        low("going", state=LeaseState.RELEASING, priority=CRITICAL),
        low("going", state=LeaseState.LOST),
        low("going", notice=Notice(20_000, "", NOON, NOON + timedelta(seconds=15))),
    ],
)
def test_no_lease_yields_where_waiting_is_enough(going: Lease) -> None:
    assert plan(URGENT, low("b"), going) is None


def test_what_is_on_its_way_counts_and_the_rest_is_taken() -> None:
    going = low("going", amount=1, state=LeaseState.RELEASING)
    found = plan(URGENT, low("b"), going)
    assert found is not None
    assert victims(found) == ["b"]
    assert found.takes == {"b": 10_000}


def test_of_a_holder_that_is_asked_for_a_part_only_that_part_counts() -> None:
    asked_already = low("asked", amount=4, notice=Notice(10_000, "", NOON, NOON + timedelta(seconds=15)))
    assert victims(plan(URGENT, low("b"), asked_already)) == ["b"]
    assert plan(replace(URGENT, units=10_000), low("b"), asked_already) is None


def test_what_was_returned_in_part_is_not_counted_twice() -> None:
    """3 of 4 CPUs are back already, and the lender's own work has them."""
    going = low("going", amount=4, state=LeaseState.RELEASING)
    kept = low("b", amount=1)
    there = replace(lender("gpu1", kept), total=cpu(6) + amounts(memory=16, gpu=4))
    assert victims(plan(URGENT, going, kept, nodes=(there,))) == ["b"]


# -- which of them -------------------------------------------------------------------------------------------

SAVED = NOON - timedelta(minutes=1)
LONG_SAVED = NOON - timedelta(hours=1)


@pytest.mark.parametrize(
    ("these", "yields", "why"),
    [
        ([low("a", 1), low("b", 1), low("c", 2, priority=NORMAL)], ["c"], "one is fewer than two"),
        ([low("a", priority=NORMAL), low("b")], ["b"], "the lower priority"),
        ([low("a"), low("b", checkpointed_at=SAVED, age_s=9000.0)], ["b"], "it has just saved its work"),
        (
            [low("a", checkpointed_at=LONG_SAVED), low("b", age_s=900.0)],
            ["b"],
            "it has saved nothing lately: the younger",
        ),
        ([low("a", age_s=2000.0), low("b", age_s=1000.0)], ["b"], "the younger"),
        ([low("a", 4), low("b", 3)], ["b"], "the one that has less"),
        ([low("b"), low("a")], ["a"], "the id decides"),
        ([low("a", 1), low("b", 1, priority=NORMAL), low("c", 1)], ["c", "a"], "the two lowest"),
        (
            [low("a", 1), low("b", 1, priority=NORMAL), low("c", 1, priority=NORMAL, age_s=500.0)],
            ["a", "c"],
            "of those of the higher priority the younger",
        ),
    ],
)
def test_the_fewest_yield_and_of_as_few_those_that_lose_least(these: list[Lease], yields: list[str], why: str) -> None:
    assert sorted(victims(plan(URGENT, *these))) == sorted(yields), why


def test_the_important_are_spared_rather_than_the_least_important_taken() -> None:
    normal = [low("one", 2, priority=NORMAL), low("two", 2, priority=NORMAL)]
    asked = ask(amount=4, priority=CRITICAL)
    assert sorted(victims(plan(asked, low("low", 1), *normal, low("high", 3, priority=HIGH)))) == ["one", "two"]


def test_of_a_transfer_no_more_is_taken_than_is_needed_and_a_reservation_comes_whole() -> None:
    found = plan(URGENT, low("b", 6))
    assert found is not None
    assert found.takes == {"b": 20_000}
    whole = plan(URGENT, reservation("b", kind=CPU, amount=6, priority=LOW, **OLD))
    assert whole is not None
    assert whole.takes == {"b": 60_000}


def test_the_lender_where_the_fewest_yield_is_chosen_then_where_they_lose_least_then_the_preferred_one() -> None:
    two = [low("a1", 1, source="a"), low("a2", 1, source="a")]
    b, c = (low(name, 2, source=name) for name in ("b", "c"))

    def source(*leases: Lease, preferred: str = "") -> str | None:
        names = {one.source for one in leases}
        nodes = {name: lender(name, *(one for one in leases if one.source == name)) for name in names}
        if preferred:
            nodes[preferred] = replace(nodes[preferred], limits=limits(priority=5))
        found = plan(URGENT, *leases, nodes=tuple(nodes.values()))
        return None if found is None else found.source

    assert source(*two, b, c) == "b"
    assert source(*two, b, replace(c, allocated_at=NOON - timedelta(seconds=100))) == "c"
    assert source(*two, b, c, preferred="c") == "c"
    assert source(*two, b, c, preferred="a") == "b"


def test_a_gpu_comes_with_its_cpus_or_another_lease_yields_them_too() -> None:
    wants = ask(kind="gpu", amount=1, priority=HIGH)
    with_cpu = reservation("gpu", amount=1, cpus=1, priority=LOW, **OLD)
    bare = reservation("bare", amount=1, cpus=0, priority=LOW, **OLD)
    assert victims(plan(wants, with_cpu, bare, low("cpu"))) == ["gpu"]
    assert sorted(victims(plan(wants, bare, low("cpu")))) == ["bare", "cpu"]


# -- what held the request back ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "rules"),
    [
        (replace(node(cpus=8), total=amounts(cpu=6, memory=16), free=amounts(memory=16)), {}),  # no capacity
        (node(cpus=8, used=cpu(2), limits=limits(cpu=3)), {}),  # its limit
        (node(cpus=8, used=cpu(2)), {"headroom": Headroom("balanced", of_base=0.7)}),  # what it keeps
    ],
)
def test_a_return_helps_against_all_that_is_a_matter_of_amounts(there: Node, rules: dict[str, object]) -> None:
    held = low("b", 2)
    settled = replace(there, total=there.base - held.resources)
    assert victims(plan(URGENT, held, nodes=(settled,), **rules)) == ["b"]


@pytest.mark.parametrize(
    ("changes", "rules"),
    [
        ({"alive": False}, {}),
        ({"silent": "its probe died"}, {}),
        ({"limits": limits(can_share=False)}, {}),
        ({}, {"cordoned": frozenset({"gpu1"})}),
        ({}, {"cordoned": frozenset({"gpu-master"})}),
    ],
)
def test_no_lease_yields_where_the_node_could_not_lend_anyway(
    changes: dict[str, object], rules: dict[str, object]
) -> None:
    held = low("b")
    assert plan(URGENT, held, nodes=(replace(lender("gpu1", held), **changes),), **rules) is None


def test_only_the_named_source_is_looked_at() -> None:
    assert plan(replace(URGENT, sources=("gpu2",)), low("b"), nodes=(lender(), lender("gpu2"))) is None


def test_a_node_that_borrows_does_not_lend_on_whichever_lease_yields() -> None:
    held, borrowed = low("b"), lease("in", source="gpu2", target="gpu1", amount=1, priority=HIGH)
    assert plan(URGENT, held, borrowed, nodes=(lender("gpu1", held), lender("gpu2", borrowed))) is None


def test_a_team_over_its_limit_gets_nothing_by_preemption() -> None:
    teams = Teams([Team("ml", borrowing_limit={CPU: 10_000})])
    assert plan(replace(URGENT, team="ml"), low("b"), teams=teams) is None


# -- a team's own --------------------------------------------------------------------------------------------

ML = team("ml", guaranteed=cpu(4))
OWN = ask(amount=2, team="ml")


def test_a_team_within_its_guarantee_gets_it_from_its_equals() -> None:
    found = plan(OWN, low("b", priority=NORMAL, team="web"), teams=Teams([ML]))
    assert found is not None
    assert victims(found) == ["b"]
    assert found.takes_own
    assert found.reason == "team ml requests its guaranteed capacity: 2 CPUs for gpu-master"


@pytest.mark.parametrize("policy", SharingPolicy)
def test_a_guarantee_holds_under_every_policy(policy: SharingPolicy) -> None:
    assert victims(plan(OWN, low("b", priority=NORMAL, team="web"), teams=Teams([ML]), policy=policy)) == ["b"]


def test_a_team_above_its_guarantee_gets_nothing_from_its_equals() -> None:
    held = low("b", 6, priority=NORMAL, team="web")
    assert plan(replace(OWN, units=50_000), held, teams=Teams([ML])) is None
    assert plan(OWN, held, low("mine", 3, priority=NORMAL, team="ml"), teams=Teams([ML])) is None


@pytest.mark.parametrize("policy", SharingPolicy)
@pytest.mark.parametrize("priority", [HIGH, CRITICAL])
def test_every_priority_yields_to_a_guarantee(priority: AllocationPriority, policy: SharingPolicy) -> None:
    assert victims(plan(OWN, low("b", priority=priority, team="web"), teams=Teams([ML]), policy=policy)) == ["b"]


def test_what_a_team_has_within_its_guarantee_yields_to_no_other_team() -> None:
    teams = Teams([ML, team("web", guaranteed=cpu(2))])
    held = low("b", team="web")
    assert plan(OWN, held, teams=teams) is None
    assert plan(replace(OWN, team="ops", priority=CRITICAL), held, teams=teams) is None
    above = low("c", 1, team="web", age_s=2000.0)
    found = plan(replace(OWN, team="ops", priority=CRITICAL, units=10_000), held, above, teams=teams)
    assert victims(found) == ["b"], "which of its leases is above the guarantee is not fixed"
    assert found is not None
    assert found.takes == {"b": 10_000}


def test_a_team_keeps_what_is_guaranteed_to_it_from_its_own_request_for_the_same_again() -> None:
    """The first boost is its guarantee. A second one would be above it, and so claims less, at every priority."""
    teams = Teams([team("ml", guaranteed=cpu(2))])
    assert plan(replace(OWN, priority=CRITICAL), low("mine", team="ml"), teams=teams) is None
    more = Teams([team("ml", guaranteed=cpu(4))])
    assert plan(OWN, low("mine", team="ml", priority=NORMAL), teams=more) is None
    other = low("mine", team="ml", target="gpu2")
    assert victims(plan(OWN, other, teams=more)) == ["mine"], "both within it: priority decides"


def test_a_guaranteed_request_takes_what_others_have_above_their_guarantees_before_its_own_teams_boosts() -> None:
    teams = Teams([team("ml", guaranteed=cpu(6))])
    own, others = low("own", 4, team="ml", target="gpu2"), low("others", 4, team="web", priority=CRITICAL)
    wanted = ask(amount=2, team="ml", priority=NORMAL)
    assert victims(plan(wanted, own, others, teams=teams)) == ["others"]
    assert victims(plan(wanted, own, teams=teams)) == ["own"], "where nothing else can be had"


SAME = replace(URGENT, team="ml", requester="ana")


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        (SAME, [low("mine", team="ml")]),
        (SAME, [low("mine", 1, team="ml"), low("more", 1, team="ml", requester="bob")]),
        (SAME, [low("mine", 6, team="ml")]),
        (replace(SAME, delivery="reserve"), [reservation("mine", kind=CPU, amount=4, priority=LOW, team="ml", **OLD)]),
        (replace(SAME, team="default"), [low("mine", requester="ana")]),
        (
            ask(kind="gpu", amount=1, priority=HIGH, team="ml"),
            [reservation("mine", priority=LOW, team="ml", **OLD)],
        ),
    ],
)
@pytest.mark.parametrize("teams", [Teams(), Teams([team("ml", guaranteed=amounts(cpu=8, gpu=2))])])
def test_a_boost_does_not_yield_where_its_own_team_would_only_get_the_same_again(
    asked: Ask, held: list[Lease], teams: Teams
) -> None:
    assert plan(asked, *held, teams=teams) is None
    assert plan(replace(asked, max_sources=9), *held, teams=teams) is None, "nor from several lenders"
    others = [replace(each, team="web", requester="eve") for each in held]
    assert sorted(victims(plan(asked, *others, teams=teams))) == sorted(each.id for each in held)


@pytest.mark.parametrize(
    ("asked", "held", "why"),
    [
        (SAME, low("b", team="ml", target="gpu2"), "it is for another node"),
        (replace(SAME, delivery="reserve"), low("b", team="ml"), "it is of another delivery"),
        (replace(SAME, team="default"), low("b", requester="bob"), "the users in `default` are no team-mates"),
        (SAME, low("b", team="ml", purpose=Purpose.RUN), "its program is more than a number of CPUs"),
        (replace(SAME, purpose=Purpose.TASK), low("b", team="ml"), "the task is important, the boost is not"),
    ],
)
def test_a_teams_own_boost_yields_to_what_is_not_the_same(asked: Ask, held: Lease, why: str) -> None:
    assert victims(plan(asked, held)) == ["b"], why


def test_a_teams_own_boost_yields_where_the_team_has_more_afterwards() -> None:
    mine = low("mine", team="ml")
    found = plan(replace(SAME, units=30_000), mine, nodes=(replace(lender("gpu1", mine), free=cpu(1)),))
    assert found is not None
    assert (victims(found), found.takes) == (["mine"], {"mine": 20_000})


def test_others_yield_where_a_teams_own_boost_would_only_be_replaced() -> None:
    mine, others = low("mine", team="ml", age_s=100.0), low("others", team="web")
    assert victims(plan(SAME, mine, others)) == ["others"]
    assert victims(plan(replace(SAME, team="ops"), mine, others)) == ["mine"], "the younger"


def test_a_guaranteed_gpu_comes_with_its_cpus_though_none_are_guaranteed() -> None:
    held = reservation("gpu", amount=1, cpus=1, priority=CRITICAL, team="web", **OLD)
    gpus = Teams([team("ml", guaranteed=amounts(gpu=1))])
    assert victims(plan(ask(kind="gpu", amount=1, team="ml"), held, teams=gpus)) == ["gpu"]


def test_what_a_lender_borrows_itself_yields_too_where_it_is_in_the_way() -> None:
    """A node that borrows CPUs transfers none: all that was moved to it has to go, and then it can lend."""
    inward = low("in", 1, source="gpu2", target="gpu1", priority=CRITICAL, team="web")
    nodes = (node("gpu1", cpus=8, borrowed=cpu(1)), lender("gpu2", inward, base=cpu(1)))
    found = plan(OWN, inward, nodes=nodes, teams=Teams([ML]))
    assert found is not None
    assert (found.source, victims(found), found.takes) == ("gpu1", ["in"], {"in": 10_000})
    assert plan(OWN, replace(inward, team="ml"), nodes=nodes, teams=Teams([ML])) is None


def test_a_boost_that_was_given_back_and_is_still_held_after_its_grace_period_is_asked_for() -> None:
    given = low("b", state=LeaseState.RELEASING, team="web", release_asked_at=NOON - timedelta(seconds=20))
    assert plan(OWN, given, teams=Teams([ML])) is None, "it may return by itself"
    held = replace(given, release_asked_at=NOON - timedelta(seconds=31))
    found = plan(OWN, held, teams=Teams([ML]))
    assert found is not None
    assert (victims(found), found.back_by) == (["b"], NOON)
    assert plan(OWN, replace(held, state=LeaseState.RECLAIMING), teams=Teams([ML])) is None, "it was asked for"


# -- later ---------------------------------------------------------------------------------------------------


def foresee(asked: Ask, *leases: Lease, before: datetime | None = None, **rules: object) -> Preemption | None:
    table = NodeTable([node("gpu-master", cpus=2), lender("gpu1", *leases)])
    usage, in_force = Usage.of(leases), Rules(**rules)  # type: ignore[arg-type]
    claim = Claim.of(asked, usage, in_force.teams)
    return foresee_preemption(
        asked, Snapshot(table, usage, leases), in_force, BALANCED, NOON, claim=claim, before=before
    )


def test_the_minimum_hold_is_foreseen() -> None:
    """Each is held for 60 s at least. Two of three are enough."""
    young = [low(f"b{age}", 1, age_s=float(age)) for age in (10, 20, 30)]
    found = foresee(URGENT, *young)
    assert found is not None
    assert (found.at, sorted(victims(found))) == (NOON + timedelta(seconds=40), ["b20", "b30"])
    assert found.back_by == NOON + timedelta(seconds=70), "and then their grace period"
    assert foresee(URGENT, *young, before=NOON + timedelta(seconds=40)) is None


def test_so_is_the_end_of_a_boost_that_does_not_yield() -> None:
    end = NOON + timedelta(minutes=5)
    stays = low("stays", 1, priority=CRITICAL, expires_at=end)
    found = foresee(URGENT, stays, low("yields", 1))
    assert found is not None
    assert (found.at, victims(found), found.back_by) == (end, ["yields"], end + timedelta(seconds=30))


def test_a_policy_that_never_preempts_takes_only_what_is_above_a_guarantee() -> None:
    teams, policy = Teams([ML, team("web", guaranteed=cpu(2))]), SharingPolicy.CONSERVATIVE
    assert plan(OWN, low("b", team="web"), teams=teams, policy=policy) is None
    assert victims(plan(OWN, low("b", team="web"), low("c", team="ops"), teams=teams, policy=policy)) == ["c"]


def test_of_what_a_team_has_only_the_part_above_its_guarantee_is_taken() -> None:
    teams = Teams([ML, team("web", guaranteed=cpu(2))])
    one = plan(OWN, low("b", 4, priority=NORMAL, team="web"), teams=teams)
    assert one is not None
    assert one.takes == {"b": 20_000}
    assert plan(OWN, low("b", 3, priority=NORMAL, team="web"), teams=teams) is None, "only one CPU is above it"


def test_a_reservation_that_is_partly_above_its_teams_guarantee_goes_whole_for_a_guarantee_alone() -> None:
    teams = Teams([ML, team("web", guaranteed=cpu(2))])
    whole = reservation("b", kind=CPU, amount=4, team="web", **OLD)
    assert victims(plan(OWN, whole, teams=teams)) == ["b"]
    assert plan(replace(OWN, team="ops", priority=CRITICAL), whole, teams=teams) is None
    apart = [reservation(id, kind=CPU, amount=2, team="ops", **OLD) for id in ("c", "d")]
    asked = replace(OWN, units=40_000)
    assert sorted(victims(plan(asked, whole, *apart, teams=teams))) == ["c", "d"], "rather two than break into it"


def test_two_leases_of_one_team_are_not_both_taken_where_one_is_all_that_is_above_its_guarantee() -> None:
    teams = Teams([ML, team("web", guaranteed=cpu(2))])
    mine = [low(id, 2, priority=NORMAL, team="web") for id in ("b", "c")]
    assert plan(replace(OWN, units=40_000), *mine, teams=teams) is None
    assert len(victims(plan(OWN, *mine, teams=teams))) == 1


def test_a_guarantee_of_cpus_keeps_no_team_from_getting_its_gpu_back() -> None:
    ml, web = team("ml", guaranteed=amounts(gpu=1, cpu=1)), team("web", guaranteed=cpu(4))
    held = reservation("gpu", amount=1, cpus=1, priority=NORMAL, team="web", **OLD)
    there = replace(lender("gpu1", held), free=cpu(1))
    found = plan(ask(kind="gpu", amount=1, team="ml"), held, nodes=(there,), teams=Teams([ml, web]))
    assert victims(found) == ["gpu"]


def test_a_gpu_that_is_guaranteed_is_not_taken_for_the_cpus_that_came_with_it() -> None:
    web = team("web", guaranteed=amounts(gpu=1))
    held = reservation("gpu", amount=1, cpus=2, priority=NORMAL, team="web", **OLD)
    assert plan(OWN, held, teams=Teams([ML, web])) is None
    assert victims(plan(OWN, held, teams=Teams([ML]))) == ["gpu"]


def test_what_then_is_granted_is_what_the_plan_says() -> None:
    held = low("b", 6)
    found = plan(URGENT, held)
    assert found is not None
    back = replace(lender("gpu1"), total=amounts(cpu=4, memory=16, gpu=4), free=cpu(2))
    left = replace(held, units=40_000, resources=cpu(4))
    later = plan_grant(URGENT, NodeTable([node("gpu-master", cpus=2), back]), Usage.of([left]))
    assert isinstance(later, Grant)
    assert later == found.grant


# -- lender protection ---------------------------------------------------------------------------------------


def relief(
    needed: ResourceVector,
    *leases: Lease,
    policy: SharingPolicy = SharingPolicy.BALANCED,
    teams: Teams | None = None,
    given_up: Sequence[Lease] = (),
) -> Mapping[str, int]:
    """What a lender with nothing free takes back."""
    base = amounts(cpu=64, memory=64, gpu=8)
    lent = total([one.resources for one in leases if one.source == "gpu1" and one.delivery.moves_totals])
    full = replace(node("gpu1", base=base), total=base - lent, free=ResourceVector())
    capacity = Snapshot(NodeTable([node("gpu-master"), full]), Usage.of(leases), leases)
    return plan_relief("gpu1", [(needed,)], capacity, POLICIES[policy], NOON, teams=teams, given_up=given_up)


@pytest.mark.parametrize(
    ("needed", "these", "yields"),
    [
        (cpu(2), [low("a"), low("b", priority=NORMAL)], ["a"]),
        (cpu(2), [low("a", 1), low("b", 1), low("c", 2, priority=HIGH)], ["a", "b"]),  # two low ones before a high one
        (cpu(3), [low("a", 1), low("b", 3, priority=NORMAL), low("c", 2, priority=NORMAL)], ["b"]),
        (cpu(2), [low("a", priority=CRITICAL)], []),
        (cpu(2), [low("a", age_s=30.0)], []),
        (cpu(2), [low("a", source="gpu2")], []),
        (cpu(2), [low("a", kind="memory")], []),
        (cpu(2), [low("a"), low("b", state=LeaseState.RELEASING)], []),  # it comes anyway
        (cpu(3), [low("a"), low("b", state=LeaseState.RELEASING)], ["a"]),
        (cpu(9), [low("a", 2), low("b", 3, priority=HIGH)], ["a", "b"]),  # as much as there is
        (amounts(cpu=1, memory=4), [low("a", 2), low("b", 1, kind="memory")], ["a", "b"]),
        (ResourceVector(), [low("a")], []),
    ],
)
def test_a_lender_gets_back_what_it_needs_from_as_few_and_as_low_as_can_be(
    needed: ResourceVector, these: list[Lease], yields: list[str]
) -> None:
    assert sorted(relief(needed, *these)) == yields


@pytest.mark.parametrize("policy", SharingPolicy)
def test_lenders_are_protected_under_every_policy(policy: SharingPolicy) -> None:
    assert list(relief(cpu(2), low("a"), policy=policy)) == ["a"]


def test_a_lender_takes_back_no_more_of_a_transfer_than_it_needs() -> None:
    held = [low("a", 6), reservation("g", amount=2, priority=LOW, **OLD), low("b", 1, state=LeaseState.RELEASING)]
    assert relief(amounts(cpu=3, gpu=1), *held) == {"a": 10_000, "g": 20_000}


def test_what_moves_to_another_lender_counts_as_back() -> None:
    moves = low("moves")
    assert relief(cpu(2), moves, low("stays"), given_up=[moves]) == {}
    assert list(relief(cpu(3), moves, low("stays"), given_up=[moves])) == ["stays"]


def test_a_lender_gets_back_what_is_above_guarantees_first() -> None:
    teams = Teams([team("web", guaranteed=cpu(2))])
    within, above = low("within", team="web"), low("above", team="ops", priority=HIGH)
    assert list(relief(cpu(2), within, above)) == ["within"]
    assert list(relief(cpu(2), within, above, teams=teams)) == ["above"]
    assert len(relief(cpu(4), within, above, teams=teams)) == 2, "but its own comes back"


def test_a_lender_takes_of_a_team_no_more_than_it_has_above_its_guarantee_before_it_takes_from_others() -> None:
    teams = Teams([team("web", guaranteed=cpu(4))])
    web = [low("web-1", 4, team="web"), low("web-2", 4, team="web")]
    ops = low("ops", 4, team="ops", priority=NORMAL)
    found = relief(cpu(8), *web, ops, teams=teams)
    assert "ops" in found
    assert len(found) == 2, "one of web's two boosts is within its guarantee"


def test_a_lender_spares_critical_boosts_unless_one_within_a_guarantee_had_to_go_instead() -> None:
    teams = Teams([team("web", guaranteed=cpu(2))])
    within, critical = low("within", team="web"), low("critical", team="ops", priority=CRITICAL)
    assert relief(cpu(2), critical, teams=teams) == {}
    assert list(relief(cpu(2), within, critical, teams=teams)) == ["critical"]
    kept = low("kept", team="web", priority=CRITICAL)
    assert relief(cpu(4), kept, critical, teams=teams) == {}
