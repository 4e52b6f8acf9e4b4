"""Guarantees stand above priorities: in worlds of teams, leases and requests, over hours of their time."""

import random
from dataclasses import replace
from datetime import datetime, timedelta

from builders import NOON, ask, node, team
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from property_examples import examples
from queue_world import World

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.policies import POLICIES
from distributed_grid.decide.queue.claims import AGING_STEP_S, Guarantees, ordered
from distributed_grid.decide.queue.preemption import Preemption
from distributed_grid.model.leases import Delivery
from distributed_grid.model.plans import Rules
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.teams import Teams

REPEATABLE = settings(max_examples=examples(40), phases=[Phase.generate])
STEP = timedelta(seconds=10)
GRACES = (0.0, 10.0, 30.0, 120.0)
"""What holders choose, up to the configured limit."""
NAMES = ("red", "blue", "green")
policies = st.sampled_from(list(POLICIES.values()))


@st.composite
def worlds(draw: st.DrawFn, kinds: tuple[str, ...] = ("cpu", "memory", "licence")) -> World:
    """One lender, or several whose CPUs are asked for one by one: what is guaranteed is there, and fits."""
    lenders = draw(st.integers(1, 3))
    kind, per_node = draw(st.sampled_from(kinds)), 8
    base = ResourceVector.of(**{kind: per_node} | ({"cpu": per_node} if kind == "gpu" else {}))
    left, teams = per_node * lenders, []
    for name in NAMES:
        guaranteed = draw(st.integers(0, left))
        left -= guaranteed
        teams.append(team(name, guaranteed={kind: guaranteed}))
    if kind == "gpu" and draw(
        st.booleans()
    ):  # the CPU of a guaranteed GPU comes with it, whichever team withholds all CPUs
        teams.append(team("keeper", guaranteed={"cpu": per_node * lenders}, lends={"cpu": 0}))
    master = node("gpu-master", base=ResourceVector())
    nodes = [master, *(node(f"n{number}", base=base) for number in range(lenders))]
    return World(nodes, Rules(teams=Teams(teams)), numbers=draw(policies), grace_s=draw(st.sampled_from([10.0, 30.0])))


def a_request(world: World, chance: random.Random) -> Ask:
    kind = next(kind for kind in ("gpu", *world.bases[1].base) if kind in world.bases[1].base)
    return ask(
        "gpu-master",
        kind,
        1 if len(world.bases) > 2 else chance.randint(1, 8),
        priority=chance.choice(list(AllocationPriority)),
        duration_s=float(chance.choice((20, 300, 1800, 7200))),
        grace_s=chance.choice((None, *GRACES)),
        delivery=None if kind == "gpu" else "transfer" if kind != "cpu" else chance.choice(("transfer", "reserve")),
        team=chance.choice((*NAMES, "default")),
    )


@REPEATABLE
@given(worlds(("cpu", "memory", "licence", "gpu")), st.integers(0, 10_000))
def test_no_team_is_kept_below_its_guarantee_for_longer_than_grace_and_minimum_hold(world: World, seed: int) -> None:
    """Teams ask for more than there is, at every priority, and holders do what they can to keep what they have: they
    choose long grace periods, and use them up; they release with the longest one before they are asked.

    What a team gets goes to its own best claim, which may have come later: so the time counts for the team's turns, of
    which each grant within the guarantee takes the oldest.
    """
    assert world.numbers is not None
    chance, turns = random.Random(seed), {name: list[datetime]() for name in (*NAMES, "default", "keeper")}
    bound = timedelta(seconds=world.numbers.min_hold_s + max(GRACES)) + STEP
    for step in range(120):
        world.go_on_to(NOON + step * STEP)
        if step < 90:
            for number in range(chance.choice((0, 0, 1, 3)) if step else 12):
                age = timedelta(seconds=chance.choice((0, 0, 4000, 9000)))
                world.queue.append(Waiting(f"{step:03}-{number}", a_request(world, chance), world.now - age))
        if chance.random() < 0.1 and (held := [one.id for one in world.leases.values() if not one.is_winding_down]):
            world.release(chance.choice(held), max(GRACES))
        teams = {one.id: one.ask.team for one in world.queue}
        within = one_round(world)
        waiting = {one.id for one in world.queue}
        for name, since in turns.items():
            of_team = {id for id in within if teams[id] == name}
            del since[: len(of_team - waiting)]
            del since[len(of_team & waiting) :]
            since += [world.now] * (len(of_team & waiting) - len(since))
            assert not since or world.now - since[0] <= bound, f"{name} is kept below its guarantee since {since[0]}"
        one_by_one(world)


def one_round(world: World) -> set[str]:
    """Plan, check who yields to whom, and do it. Returns who is within a guarantee."""
    usage = Usage.of(world.leases.values())
    queue = ordered(world.queue, usage, {}, world.rules.teams, world.now)
    guarantees = Guarantees(usage, world.rules.teams)
    within = {one.id for one in queue if guarantees.count(one.ask)}
    verdicts = world.plan(queue)
    for verdict in verdicts:  # those who are met now have it before any lease yields
        if verdict.grant is not None:
            usage.promise(verdict.grant)
    for verdict in verdicts:
        if verdict.preemption is not None and verdict.preemption.at <= world.now:
            asked = verdict.waiting.ask
            assert verdict.preemption.takes_own is (verdict.waiting.id in within)
            assert_order_of_claims(asked, verdict.preemption, world, usage)
            usage = usage.without(verdict.preemption.parts)
    world.admit(verdicts)
    return within


def assert_order_of_claims(asked: Ask, plan: Preemption, world: World, before: Usage) -> None:
    after = before.without(plan.parts)
    for part in plan.parts:
        assert world.numbers is not None
        assert part.release_asked_at is None
        assert (world.now - part.allocated_at).total_seconds() >= world.numbers.min_hold_s
        guaranteed = world.rules.teams.of(part.team).guaranteed[part.kind]
        lower = part.priority.rank < asked.priority.rank and world.numbers.preempts
        if part.team == asked.team:
            assert lower, "no team takes from itself what is worth as much, or more"
            assert plan.takes_own or after.held(part.team, part.kind) >= guaranteed
        elif not plan.takes_own:
            assert lower
            assert after.held(part.team, part.kind) >= guaranteed, "it was within its team's guarantee"
        elif part.delivery is Delivery.TRANSFER:
            assert after.held(part.team, part.kind) >= guaranteed
        else:
            assert before.held(part.team, part.kind) > guaranteed


def one_by_one(world: World) -> None:
    """No team has more than there is."""
    for seen in world.nodes().values():
        assert seen.base.covers(Usage.of(world.leases.values()).lent_by(seen.name))


@REPEATABLE
@given(worlds(), st.integers(0, 10_000))
def test_an_expected_start_is_kept_also_where_leases_yield(world: World, seed: int) -> None:
    chance = random.Random(seed)
    in_use(world, chance)
    world.queue = [Waiting("w", a_request(world, chance), world.now)]
    starts(world)


@REPEATABLE
@given(worlds(), st.integers(0, 10_000))
def test_so_are_those_of_all_waiting_requests_where_nothing_is_guaranteed(world: World, seed: int) -> None:
    """Guarantees and the time lift requests: then others start later than they were told."""
    chance = random.Random(seed)
    world = replace(world, rules=Rules())
    in_use(world, chance)
    world.queue = [Waiting(f"w-{number}", a_request(world, chance), world.now) for number in range(5)]
    starts(world)


def in_use(world: World, chance: random.Random) -> None:
    for number in range(12):
        world.queue = [Waiting(f"now-{number:02}", a_request(world, chance), world.now)]
        one_round(world)
        world.go_on_to(world.now + STEP)


def starts(world: World) -> None:
    """Each is met when the first plan said, or before."""
    promised: dict[str, datetime] = {}
    lifted = world.now + timedelta(seconds=AGING_STEP_S)
    while world.queue and world.now < lifted:
        verdicts = world.plan(ordered(world.queue, Usage.of(world.leases.values()), {}, world.rules.teams, world.now))
        for verdict in verdicts:
            if verdict.expected_start is not None:
                promised.setdefault(verdict.waiting.id, verdict.expected_start)
        world.admit(verdicts)
        world.go_on_to(world.now + STEP)
    for id, start in promised.items():
        if start < lifted - STEP:
            assert id in world.admitted, f"{id} still waits, and was to start at {start}"
            assert world.admitted[id] <= start + STEP, id


def test_two_teams_have_what_is_guaranteed_to_each_though_one_asks_at_critical() -> None:
    """The second team takes everything at the highest priority; the first one gets its own at a normal one."""
    teams = Teams([team("first", guaranteed={"cpu": 6}), team("second", guaranteed={"cpu": 6})])
    nodes = [node("gpu-master", base=ResourceVector()), node("n0", cpus=12)]
    world = World(nodes, Rules(teams=teams), numbers=POLICIES["balanced"])
    critical = ask(amount=6, team="second", priority=AllocationPriority.CRITICAL, duration_s=36_000.0)
    world.queue = [Waiting("a", critical, NOON), Waiting("b", critical, NOON)]
    one_round(world)
    assert len(world.leases) == 2
    world.queue = [Waiting("own", replace(critical, team="first", priority=AllocationPriority.NORMAL), NOON)]
    (verdict,) = world.plan(world.queue)
    assert verdict.expected_start == NOON + timedelta(seconds=90), "the minimum hold, then the grace period"
    one_round(world)
    world.go_on_to(NOON + timedelta(seconds=60))
    one_round(world)
    world.queue.append(Waiting("c", critical, world.now))
    for seconds in (70, 80, 90):
        world.go_on_to(NOON + timedelta(seconds=seconds))
        one_round(world)
    assert world.admitted["own"] == NOON + timedelta(seconds=90)
    assert "c" not in world.admitted, "it is above the second team's guarantee"
