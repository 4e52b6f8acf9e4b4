"""Nobody starves in the queue, nobody is delayed by those behind, and a place that was promised is kept."""

import random
from collections.abc import Sequence
from datetime import datetime, timedelta

from builders import NOON, ask, limits, node, team
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_world import World

from distributed_grid.decide.admission import plan_queue
from distributed_grid.decide.fair_share import Account, charged
from distributed_grid.decide.loans import Loans
from distributed_grid.decide.queue_order import OVERDUE_S, ordered
from distributed_grid.model.nodes import Node, NodeTable
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.model.requests import Ask
from distributed_grid.model.resources import ResourceVector, total
from distributed_grid.model.rules import Reserve, Rules
from distributed_grid.model.teams import Teams
from distributed_grid.model.waiting import Waiting

REPEATABLE = settings(derandomize=True, max_examples=60, report_multiple_bugs=False, deadline=None)
STEP = timedelta(minutes=10)
LONGEST = timedelta(minutes=60)
MASTER = node("gpu-master", cpus=0, memory=0)

reserves = st.sampled_from([Reserve(), Reserve("balanced", 0.2), Reserve("conservative", 0.0, 0.5)])
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


def in_order(queue: Sequence[Waiting], accounts: dict[str, Account], rules: Rules, now: datetime) -> list[Waiting]:
    return list(ordered(queue, accounts, rules.teams, now))


@settings(REPEATABLE, max_examples=25)
@given(clusters(), st.randoms(use_true_random=False), st.sampled_from([1, 3, 100]), reserves)
def test_nobody_starves(bases: list[Node], chance: random.Random, depth: int, reserve: Reserve) -> None:
    """Every request is admitted within the time to be overdue and one longest lease for each older one, and two more.

    Newcomers keep coming, more than there is room for, and the most of them are more urgent.
    """
    if len(bases) < 3:
        bases = [*bases, node("d", cpus=8)]
    blue = team("blue", guaranteed={"cpu": 1}, borrows={"cpu": 2})
    world = World(bases, Rules(reserve=reserve, teams=Teams([blue])))
    accounts: dict[str, Account] = {}
    totals = total([one.base for one in bases])
    came: dict[str, Waiting] = {}
    overdue_behind: dict[str, int] = {}
    for step in range(60):
        world.go_on_to(NOON + step * STEP)
        for number in range(chance.randrange(4) if step < 30 else 0):
            one = Waiting(
                f"{step:02}-{number}",
                ask(
                    "gpu-master",
                    *chance.choice([("cpu", 1), ("cpu", 2), ("memory", 8)]),
                    priority=chance.choice(list(AllocationPriority)),
                    duration_s=chance.randint(1, 6) * STEP.total_seconds(),
                    delivery=chance.choice(["transfer", "reserve"]),
                    team=chance.choice(["blue", "red", "green"]),
                ),
                world.now,
            )
            came[one.id] = one
            world.queue.append(one)
        accounts = charged(accounts, world.leases.values(), totals, world.now)
        queue = in_order(world.queue, accounts, world.rules, world.now)
        for one in queue:
            if one.id not in overdue_behind and (world.now - one.since).total_seconds() >= OVERDUE_S:
                overdue_behind[one.id] = sum(other.since <= one.since for other in queue) - 1
        world.admit(world.plan(queue, depth))
        for one in world.queue:
            waited = world.now - one.since
            older = overdue_behind.get(one.id, 0)
            assert waited <= timedelta(seconds=OVERDUE_S) + (older + 2) * LONGEST, f"{one.id} waits for {waited}"
    assert not world.queue, "all were admitted once no more came"


@REPEATABLE
@given(clusters(), requests(), requests(prefix="late"), requests(most=6, prefix="now"), reserves, teams_of_one_world)
def test_a_promised_start_is_kept_whoever_comes_behind(
    bases: list[Node],
    queue: list[Waiting],
    behind: list[Waiting],
    running: list[Waiting],
    reserve: Reserve,
    teams: tuple,
) -> None:
    world = World(bases, Rules(reserve=reserve, teams=Teams(teams)))
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
def test_nobodys_verdict_depends_on_those_behind(
    bases: list[Node], queue: list[Waiting], behind: list[Waiting], running: list[Waiting], depth: int
) -> None:
    blue = team("blue", guaranteed={"cpu": 2}, borrows={"cpu": 1}, lends={"cpu": 1})
    world = World(bases, Rules(teams=Teams([blue])), queue=list(running))
    world.admit(world.plan(running))

    assert world.plan([*queue, *behind], depth)[: len(queue)] == world.plan(queue, depth)


@REPEATABLE
@given(clusters(), requests(most=20), requests(most=6, prefix="now"), reserves, st.randoms(use_true_random=False))
def test_a_plan_keeps_every_limit_and_equal_inputs_give_equal_plans(
    bases: list[Node], queue: list[Waiting], running: list[Waiting], reserve: Reserve, chance: random.Random
) -> None:
    blue = team("blue", guaranteed={"cpu": 2}, borrows={"cpu": 1}, lends={"cpu": 0})
    world = World(bases, Rules(reserve=reserve, teams=Teams([blue])), queue=list(running))
    world.admit(world.plan(running))
    world.queue.extend(queue)
    leases, nodes = list(world.leases.values()), list(world.nodes().values())
    expected = world.plan(queue)

    chance.shuffle(leases)
    chance.shuffle(nodes)
    again = plan_queue(queue, NodeTable(nodes), leases, Loans.of(leases), lambda _: world.rules, world.now)

    assert again == expected
    world.admit(expected)  # asks of each grant, on what the ones before it left, whether it is allowed
    for seen in world.nodes().values():
        lent = Loans.of(world.leases.values()).lent_by(seen.name)
        assert seen.base.covers(lent)
        limit = seen.limits.max_share_cpu
        assert limit is None or lent["cpu"] <= limit


def test_the_world_is_what_it_says() -> None:
    """A lender has less, a borrower more, and all is home in the end."""
    world = World([MASTER, node("a", cpus=4)], queue=[Waiting("w", ask(amount=3, duration_s=60.0), NOON)])
    world.admit(world.plan(world.queue))

    assert (world.nodes()["a"].free["cpu"], world.nodes()["gpu-master"].free["cpu"]) == (10_000, 30_000)
    world.go_on_to(NOON + timedelta(seconds=60))
    assert world.nodes()["gpu-master"].free == ResourceVector()
