"""No request starves in the queue, none is delayed by those behind, and a place that was promised is kept."""

import random
from datetime import datetime, timedelta

from builders import NOON, ask, limits, node, team
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from property_examples import examples
from queue_world import World

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.queue.admission import plan_queue
from distributed_grid.decide.queue.claims import OVERDUE_S, Account, charged, is_overdue, ordered
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.plans import Headroom, Rules
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.model.teams import Teams

REPEATABLE = settings(max_examples=examples(60), report_multiple_bugs=False, deadline=None)
STEP = timedelta(minutes=10)
LONGEST = timedelta(minutes=60)
MASTER = node("gpu-master", cpus=0, memory=0)

reserves = st.sampled_from([Headroom(), Headroom("balanced", 0.2), Headroom("conservative", 0.0, 0.5)])
teams_of_one_world = st.sampled_from(
    [
        (),
        (team("blue", weight=3.0), team("red")),
        (team("owner", guaranteed={"cpu": 3}, lends={"cpu": 1}),),
    ]
)


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    """Every node lends at least 2 CPUs, or 1 GPU with its CPU, when it is idle, whatever the policy."""
    names = ("a", "b", "c")[: draw(st.integers(1, 3))]
    return [MASTER] + [
        node(
            name,
            cpus=draw(st.integers(5, 8)),
            memory=16,
            gpus=draw(st.sampled_from([0, 4])),
            limits=limits(cpu=draw(st.sampled_from([None, 2, 4]))),
        )
        for name in names
    ]


@st.composite
def requests(draw: st.DrawFn, since: datetime = NOON, most: int = 12, prefix: str = "w") -> list[Waiting]:
    """Each fits on an idle node."""
    return [
        Waiting(f"{prefix}{number}", draw(asks()), since - timedelta(minutes=draw(st.integers(0, 200))))
        for number in range(draw(st.integers(1, most)))
    ]


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    kind, amount = draw(st.sampled_from([("cpu", 1), ("cpu", 2), ("cpu", 2), ("memory", 4), ("memory", 8)]))
    return ask(
        draw(st.sampled_from(["gpu-master", "gpu-master", "a"])),
        kind,
        amount,
        priority=draw(st.sampled_from(list(AllocationPriority))),
        duration_s=draw(st.integers(1, 6)) * STEP.total_seconds(),
        delivery=draw(st.sampled_from(["transfer", "reserve"])),
        team=draw(st.sampled_from(["blue", "red", "green"])),
    )


@settings(REPEATABLE, max_examples=examples(25), phases=[Phase.generate])
@given(clusters(), st.integers(0, 10_000), st.sampled_from([1, 3, 100]), reserves)
def test_no_request_starves(bases: list[Node], seed: int, depth: int, headroom: Headroom) -> None:
    """Once overdue, a request waits for one longest lease at most, and another one for each older one that still waits.

    For everyone who is admitted another one comes, so that there is never enough for all; most are more urgent, of a
    team that weighs more, small, or short.
    """
    slow = team("slow", weight=0.01, guaranteed={"cpu": 1}, borrows={"cpu": 3})
    world = World(
        [*bases, node("d", cpus=5)], Rules(headroom=headroom, teams=Teams([slow, team("quick", weight=100.0)]))
    )
    totals, chance = total([one.base for one in world.bases]), random.Random(seed)
    accounts: dict[str, Account] = {}
    older: dict[str, int] = {}
    for step in range(90):
        world.go_on_to(NOON + step * STEP)
        for number in range(max(0, 10 - len(world.queue)) if step < 60 else 0):
            world.queue.append(Waiting(f"{step:02}-{number}", _urgent_or_not(chance), world.now))
        for one in world.queue:
            if is_overdue(one, world.now) and one.id not in older:
                older[one.id] = sum(other.since <= one.since for other in world.queue) - 1
        accounts = charged(accounts, world.leases.values(), totals, world.now)
        world.admit(
            world.plan(
                ordered(world.queue, Usage.of(world.leases.values()), accounts, world.rules.teams, world.now), depth
            )
        )
        for one in world.queue:
            bound = timedelta(seconds=OVERDUE_S) + (older.get(one.id, 0) + 1) * LONGEST
            assert world.now - one.since <= bound, f"{one.id} waits since {one.since}"
    assert not world.queue, "all were admitted once no more came"


def _urgent_or_not(chance: random.Random) -> Ask:
    is_urgent = chance.random() < 0.9
    return ask(
        "gpu-master",
        *chance.choice([("cpu", 1), ("memory", 4)] if is_urgent else [("cpu", 2), ("memory", 8)]),
        priority=AllocationPriority.CRITICAL if is_urgent else AllocationPriority.LOW,
        duration_s=(chance.randint(1, 6) if is_urgent else 6) * STEP.total_seconds(),
        delivery=chance.choice(["transfer", "reserve"]),
        team="quick" if is_urgent else "slow",
    )


@REPEATABLE
@given(clusters(), requests(), requests(prefix="late"), requests(most=6, prefix="now"), reserves, teams_of_one_world)
def test_a_promised_start_is_kept_whatever_comes_behind(
    bases: list[Node],
    queue: list[Waiting],
    behind: list[Waiting],
    running: list[Waiting],
    headroom: Headroom,
    teams: tuple,
) -> None:
    world = World(bases, Rules(headroom=headroom, teams=Teams(teams)))
    world.queue = list(running)
    world.admit(world.plan(running))
    world.queue = list(queue)
    promised: dict[str, datetime] = {}
    late = iter(behind)
    for _ in range(100):
        verdicts = world.plan(world.queue)
        for verdict in verdicts:
            if verdict.expected_start is not None:
                assert verdict.expected_start <= promised.setdefault(verdict.waiting.id, verdict.expected_start)
        world.admit(verdicts)
        world.queue.extend([one] if (one := next(late, None)) else [])
        if (end := world.next_end()) is None:
            break
        world.go_on_to(end)
    assert promised.keys() == world.admitted.keys() - {one.id for one in running}
    assert all(world.admitted[id] <= promised[id] for id in promised)


@REPEATABLE
@given(clusters(), requests(), requests(prefix="behind"), requests(most=6, prefix="now"), st.integers(0, 5))
def test_no_verdict_depends_on_requests_behind(
    bases: list[Node], queue: list[Waiting], behind: list[Waiting], running: list[Waiting], depth: int
) -> None:
    blue = team("blue", guaranteed={"cpu": 2}, borrows={"cpu": 1}, lends={"cpu": 1})
    world = World(bases, Rules(teams=Teams([blue])), queue=list(running))
    world.admit(world.plan(running))

    assert world.plan([*queue, *behind], depth)[: len(queue)] == world.plan(queue, depth)


@REPEATABLE
@given(clusters(), requests(most=20), requests(most=6, prefix="now"), reserves, st.randoms(use_true_random=False))
def test_a_plan_keeps_every_limit_and_equal_inputs_give_equal_plans(
    bases: list[Node], queue: list[Waiting], running: list[Waiting], headroom: Headroom, chance: random.Random
) -> None:
    blue = team("blue", guaranteed={"cpu": 2}, borrows={"cpu": 1}, lends={"cpu": 0})
    world = World(bases, Rules(headroom=headroom, teams=Teams([blue])), queue=list(running))
    world.admit(world.plan(running))
    world.queue.extend(queue)
    leases, nodes = list(world.leases.values()), list(world.nodes().values())
    expected = world.plan(queue)

    chance.shuffle(leases)
    chance.shuffle(nodes)
    again = plan_queue(
        queue, NodeTable(nodes), leases, Usage.of(leases), lambda _: world.rules, world.now, expected_sources=world.told
    )

    assert again == expected
    world.admit(expected)  # asks of each grant, on what the ones before it left, whether it is allowed
    for seen in world.nodes().values():
        lent = Usage.of(world.leases.values()).lent_by(seen.name)
        assert seen.base.covers(lent)
        limit = seen.limits.max_share_cpu
        assert limit is None or lent["cpu"] <= limit


def test_the_world_is_what_it_says() -> None:
    """A lender has less, a borrower more, and everything is returned in the end."""
    world = World([MASTER, node("a", cpus=4)], queue=[Waiting("w", ask(amount=3, duration_s=60.0), NOON)])
    world.admit(world.plan(world.queue))

    assert (world.nodes()["a"].free["cpu"], world.nodes()["gpu-master"].free["cpu"]) == (10_000, 30_000)
    world.go_on_to(NOON + timedelta(seconds=60))
    assert world.nodes()["gpu-master"].free == ResourceVector()
