"""No lease yields without need, and one that yields makes room: over many small clusters."""

from dataclasses import replace
from itertools import combinations

import builders
from builders import NOON, amounts, cpu
from hypothesis import example, given, settings
from hypothesis import strategies as st
from property_examples import examples
from sharing_worlds import LENDERS, TARGET, World, asks, owners, rule_sets, worlds

from distributed_grid.decide.capacity.devices import short_of
from distributed_grid.decide.capacity.lending import plan_grant
from distributed_grid.decide.capacity.returns import coming_back, part_of
from distributed_grid.decide.capacity.snapshot import Snapshot
from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES, PolicyNumbers
from distributed_grid.decide.queue.claims import Claim
from distributed_grid.decide.queue.preemption import Preemption, plan_preemption, plan_relief
from distributed_grid.model.leases import Delivery, Lease, LeaseState
from distributed_grid.model.nodes import NodeTable
from distributed_grid.model.plans import Grant, Refused, Rules
from distributed_grid.model.policies import AllocationPriority, SharingPolicy
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import CPU, GPU, ResourceVector, total
from distributed_grid.model.teams import Team, Teams

MANY = settings(max_examples=examples(250))
requests = st.tuples(asks(), rule_sets()) | owners()
policies = st.sampled_from(list(POLICIES.values()))
Request = tuple[Ask, Rules]
BALANCED = POLICIES[SharingPolicy.BALANCED]

ONE_LOAN = World(
    bases={TARGET: amounts(cpu=2), "a": amounts(cpu=2)},
    used={TARGET: amounts(), "a": amounts(cpu=1)},
    leases=(builders.lease("b1", "a", TARGET, amount=1, team="blue", priority=AllocationPriority.LOW, age_s=3600),),
)
ITS_OWN: Request = (Ask(TARGET, CPU, cpu(1)[CPU], team="red"), Rules(teams=Teams([Team("red", amounts(cpu=20))])))
"""Red asks for its own, which blue has: whatever the other examples are, here a lease certainly yields."""


def plan(world: World, asked: Ask, rules: Rules, numbers: PolicyNumbers) -> Preemption | None:
    return plan_preemption(asked, Snapshot(world.nodes(), world.usage(), world.leases), rules, numbers, NOON)


def less(world: World, *gone: Lease) -> tuple[Lease, ...]:
    """What is left when these, or these parts, and all that comes anyway are home."""
    takes = {lease.id: lease.units for lease in (*coming_back(world.leases), *gone)}
    left = []
    for lease in world.leases:
        units = lease.units - takes.get(lease.id, 0)
        if lease.id not in takes:
            left.append(lease)
        elif units > 0:
            left.append(replace(lease, units=units, resources=ResourceVector({lease.kind: units})))
    return tuple(left)


def granted(world: World, asked: Ask, rules: Rules, *gone: Lease) -> Grant | Refused:
    left = less(world, *gone)
    return plan_grant(asked, world.nodes(left), world.usage(left), rules)


def able(world: World, numbers: PolicyNumbers, source: str) -> list[Lease]:
    return [
        lease
        for lease in world.leases
        if lease.source == source
        and lease.state is LeaseState.ACTIVE
        and lease.notice is None
        and (NOON - lease.allocated_at).total_seconds() >= numbers.min_hold_s
    ]


def test_the_fixed_example_is_one_where_a_lease_yields() -> None:
    found = plan(ONE_LOAN, *ITS_OWN, BALANCED)

    assert isinstance(granted(ONE_LOAN, *ITS_OWN), Refused)
    assert isinstance(granted(ONE_LOAN, *ITS_OWN, *ONE_LOAN.leases), Grant)
    assert found is not None
    assert [victim.id for victim in found.victims] == ["b1"]


@MANY
@given(worlds(), requests, policies)
@example(ONE_LOAN, ITS_OWN, BALANCED)
def test_only_leases_that_may_be_reclaimed_yield(world: World, request: Request, numbers: PolicyNumbers) -> None:
    asked, rules = request
    found = plan(world, asked, rules, numbers)
    if found is None:
        return
    assert found.victims
    assert found.takes_own is Claim.of(asked, world.usage(), rules.teams).is_guaranteed
    assert numbers.preempts or found.takes_own
    for victim in found.victims:
        moved_in = victim.target == found.source and victim.delivery is Delivery.TRANSFER and victim.kind == asked.kind
        assert victim.source == found.source or moved_in
        assert victim in able(world, numbers, victim.source)
        assert 0 < found.takes[victim.id] <= victim.units
        if victim.team == asked.team or not found.takes_own:
            assert victim.priority.rank < asked.priority.rank


@MANY
@given(worlds(), requests, policies)
@example(ONE_LOAN, ITS_OWN, BALANCED)
def test_once_the_victims_are_returned_the_request_is_met_there(
    world: World, request: Request, numbers: PolicyNumbers
) -> None:
    asked, rules = request
    found = plan(world, asked, rules, numbers)
    if found is None:
        return
    assert isinstance(granted(world, asked, rules), Refused), "waiting would have been enough"
    parts = [part_of(victim, found.takes[victim.id]) for victim in found.victims]
    assert granted(world, asked, rules, *parts) == found.grant
    whole = granted(world, asked, rules, *found.victims)
    assert isinstance(whole, Grant)
    assert whole.source == found.source


@MANY
@given(worlds(), asks(), rule_sets(with_teams=False))
def test_the_victims_are_the_fewest_that_do_and_none_can_be_left_out(world: World, asked: Ask, rules: Rules) -> None:
    asked = replace(asked, team="without leases")
    found = plan(world, asked, rules, BALANCED)
    most = len(found.victims) if found else len(world.leases) + 1
    if isinstance(granted(world, asked, rules), Grant):
        assert found is None
        return
    for source in LENDERS:
        lower = [lease for lease in able(world, BALANCED, source) if lease.priority.rank < asked.priority.rank]
        for count in range(min(most, len(lower) + 1)):
            for fewer in combinations(lower, count):
                plan_without = granted(world, asked, rules, *fewer)
                assert isinstance(plan_without, Refused) or plan_without.source != source, (found, fewer)


@MANY
@given(worlds(), requests, policies)
def test_no_team_gives_up_as_much_as_it_gets_for_the_same_node(
    world: World, request: Request, numbers: PolicyNumbers
) -> None:
    asked, rules = request
    found = plan(world, asked, rules, numbers)
    if found is None:
        return
    same = [
        part.units
        for part in found.parts
        if (part.team, part.target, part.kind, part.delivery)
        == (asked.team, asked.target, asked.kind, found.grant.delivery)
    ]
    assert len(same) < len(found.parts) or sum(same) < asked.units


@MANY
@given(worlds(), requests, policies)
@example(ONE_LOAN, ITS_OWN, BALANCED)
def test_what_a_team_has_within_its_guarantee_is_taken_for_no_other_team(
    world: World, request: Request, numbers: PolicyNumbers
) -> None:
    """And not for its own request above it. Only a reservation that is partly above goes whole, for a guarantee."""
    asked, rules = request
    found = plan(world, asked, rules, numbers)
    if found is None:
        return
    before, after = world.usage(less(world)), world.usage(less(world, *found.parts))
    for part in found.parts:
        guaranteed = rules.teams.of(part.team).guaranteed[part.kind]
        if found.takes_own and part.team == asked.team:
            continue
        if found.takes_own and part.delivery is Delivery.RESERVE:
            assert before.held(part.team, part.kind) > guaranteed
        else:
            assert after.held(part.team, part.kind) >= guaranteed


@MANY
@given(worlds(), owners())
@example(ONE_LOAN, ITS_OWN)
def test_what_a_team_is_sure_of_comes_back_from_teams_that_have_more_under_every_policy(
    world: World, request: Request
) -> None:
    """If one lease of a team that has more than its guarantee would do, one is found that yields."""
    (asked, rules), numbers = request, POLICIES[SharingPolicy.CONSERVATIVE]
    now = granted(world, asked, rules)
    if isinstance(now, Grant) or now.team_limit or asked.kind == "gpu":
        return
    if isinstance(plan_grant(asked, world.nodes(), world.usage(), rules), Grant):
        return
    if not Claim.of(asked, world.usage(), rules.teams).is_guaranteed:
        return
    usage = world.usage(less(world))
    for source in LENDERS:
        pool = [
            lease
            for lease in able(world, numbers, source)
            if usage.held(lease.team, asked.kind) - lease.units >= rules.teams.of(lease.team).guaranteed[asked.kind]
            and lease.team != asked.team
            and set(lease.resources) == {asked.kind}
        ]
        for lease in pool:
            then = granted(world, asked, rules, lease)
            if isinstance(then, Grant) and then.source == source:
                found = plan(world, asked, rules, numbers)
                assert found is not None
                assert found.takes_own
                assert len(found.victims) == 1


@MANY
@given(worlds(), requests, policies, st.randoms(use_true_random=False))
def test_equal_inputs_give_equal_plans_in_whatever_order_the_leases_come(
    world: World, request: Request, numbers: PolicyNumbers, shuffle: object
) -> None:
    asked, rules = request
    mixed = list(world.leases)
    shuffle.shuffle(mixed)  # type: ignore[attr-defined]
    first = plan(world, asked, rules, numbers)
    assert first == plan(world, asked, rules, numbers)
    assert first == plan(replace(world, leases=tuple(mixed)), asked, rules, numbers)


@MANY
@given(worlds())
def test_what_returns_leaves_the_nodes_as_if_it_had_never_been_lent(world: World) -> None:
    home = Snapshot(world.nodes(), world.usage(), world.leases)
    home.give_back(coming_back(world.leases))
    assert home == world.nodes(less(world))


needs = st.builds(lambda cpus, gpus: ResourceVector.of(cpu=cpus, gpu=gpus), st.integers(0, 6), st.integers(0, 2))


@MANY
@given(worlds(), needs, policies)
def test_relief_gives_a_lender_back_what_it_needs_or_all_that_may_go(
    world: World, needed: ResourceVector, numbers: PolicyNumbers
) -> None:
    capacity = Snapshot(world.nodes(), world.usage(), world.leases)
    units = plan_relief("a", [(capacity["a"].free + needed,)], capacity, numbers, NOON)
    victims = [lease for lease in world.leases if lease.id in units]
    may_go = [v for v in able(world, numbers, "a") if v.priority is not AllocationPriority.CRITICAL]
    assert all(victim in may_go for victim in victims)
    on_the_way = _sum([lease for lease in coming_back(world.leases) if lease.source == "a"])
    parts = [part_of(victim, units[victim.id]) for victim in victims]
    for came in (victims, parts):
        gets, could_get = on_the_way + _sum(list(came)), on_the_way + _sum(may_go)
        assert all(gets[kind] >= min(wanted, could_get[kind]) for kind, wanted in needed.items())
    for victim in victims:
        without = on_the_way + _sum([other for other in victims if other is not victim])
        assert any(without[kind] < min(wanted, could_get[kind]) for kind, wanted in needed.items()), "not minimal"
    spared = [lease for lease in may_go if lease not in victims]
    for victim in victims:  # a higher priority goes only where all the lower ones are too little
        lower = on_the_way + _sum([lease for lease in may_go if lease.priority.rank < victim.priority.rank])
        assert not spared or any(lower[kind] < min(wanted, could_get[kind]) for kind, wanted in needed.items())


def _sum(leases: list[Lease]) -> ResourceVector:
    return total([lease.resources for lease in leases])


PARTS = (0.2, 0.3, 0.4, 0.5, 0.6, 1.0)


@st.composite
def lent_devices(draw: st.DrawFn) -> tuple[Snapshot, list[Lease]]:
    """A node whose GPUs are lent in parts, beside its own work there."""
    lender, leases = builders.node("a", gpus=3), []
    for number in range(draw(st.integers(1, 5))):
        part = amounts(gpu=draw(st.sampled_from(PARTS)))
        if short_of(lender, part):
            continue
        lender = lender.reserving(part)
        if draw(st.booleans()):
            held = {"delivery": Delivery.RESERVE, "priority": AllocationPriority.LOW, "age_s": 3600.0}
            leases.append(builders.lease(f"p{number}", "a", TARGET, kind=GPU, units=part[GPU], **held))
    nodes = NodeTable([lender, builders.node(TARGET)])
    return Snapshot(nodes, Usage.of(leases), leases), leases


@MANY
@given(lent_devices(), st.lists(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3), min_size=1, max_size=2))
def test_relief_counts_gpus_by_device_and_takes_no_lease_too_many(
    lent: tuple[Snapshot, list[Lease]], wants: list[list[float]]
) -> None:
    capacity, leases = lent
    wanted = [tuple(amounts(gpu=each) for each in together) for together in wants]
    victims = [lease for lease in leases if lease.id in plan_relief("a", wanted, capacity, BALANCED, NOON)]

    def short(back: list[Lease]) -> int:
        with capacity.trying():
            capacity.give_back(back)
            return max(short_of(capacity["a"], *together)[GPU] for together in wanted)

    assert short(victims) == short(leases), "as if all had come back"
    for victim in victims:
        assert short([lease for lease in victims if lease is not victim]) > short(victims), "not minimal"
