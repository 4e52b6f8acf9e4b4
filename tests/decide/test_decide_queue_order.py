"""Whose turn it is."""

import random
from datetime import timedelta

import pytest
from builders import NOON, team, waits

from distributed_grid.decide.fair_share import Account
from distributed_grid.decide.queue_order import AGING_STEP_S, OVERDUE_S, effective_rank, is_overdue, ordered
from distributed_grid.model.priorities import AllocationPriority
from distributed_grid.model.teams import Teams
from distributed_grid.model.waiting import Waiting

LOW, NORMAL, HIGH, CRITICAL = AllocationPriority
BURDENED = {"blue": Account(1000.0, NOON), "red": Account(10.0, NOON)}


def order(*waiting: Waiting, accounts: dict[str, Account] = BURDENED, teams: Teams = Teams()) -> list[str]:  # noqa: B008
    return [one.id for one in ordered(waiting, accounts, teams, NOON)]


@pytest.mark.parametrize(
    ("priority", "steps", "rank"),
    [
        (LOW, 0, 0),
        (LOW, 0.99, 0),
        (LOW, 1, 1),
        (LOW, 2.5, 2),
        (LOW, 9, 3),
        (HIGH, 1, 3),
        (CRITICAL, 5, 3),
        (LOW, -1, 0),
    ],
)
def test_every_step_of_waiting_lifts_a_request_but_never_above_critical(
    priority: AllocationPriority, steps: float, rank: int
) -> None:
    assert effective_rank(waits(priority=priority, waited_s=steps * AGING_STEP_S), NOON) == rank


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(waits("b", priority=HIGH), waits("a", priority=NORMAL, waited_s=60), id="priority before age"),
        pytest.param(
            waits("b", priority=LOW, waited_s=AGING_STEP_S), waits("a", team="blue"), id="a lifted one is as good"
        ),
        pytest.param(waits("b", team="red"), waits("a", team="blue", waited_s=60), id="the less burdened before age"),
        pytest.param(waits("b", waited_s=60), waits("a"), id="age before the id"),
        pytest.param(waits("a"), waits("b"), id="the id breaks ties"),
        pytest.param(
            waits("b", team="blue", priority=LOW, waited_s=OVERDUE_S),
            waits("a", team="red", priority=CRITICAL, waited_s=60),
            id="who is overdue before who is critical",
        ),
        pytest.param(
            waits("b", team="blue", waited_s=OVERDUE_S + 60),
            waits("a", team="red", waited_s=OVERDUE_S),
            id="the overdue by age alone",
        ),
    ],
)
def test_the_order(first: Waiting, second: Waiting) -> None:
    assert order(second, first) == order(first, second) == [first.id, second.id]


def test_a_heavier_team_carries_more_use() -> None:
    teams = Teams([team("blue", weight=200.0), team("red")])

    assert order(waits("r", team="red"), waits("b", team="blue"), teams=teams) == ["b", "r"]


def test_even_the_lowest_is_lifted_all_the_way_when_it_is_overdue() -> None:
    just = waits(priority=LOW, waited_s=OVERDUE_S)

    assert is_overdue(just, NOON)
    assert effective_rank(just, NOON) == CRITICAL.rank
    assert effective_rank(just, NOON - timedelta(seconds=1)) < CRITICAL.rank


def test_the_order_does_not_depend_on_how_they_come_in() -> None:
    chance = random.Random(1)
    queue = [
        waits(f"w{n}", priority=chance.choice(list(AllocationPriority)), team=chance.choice(["blue", "red", "x"]),
              waited_s=chance.choice([0, 60, 2000, 6000]))
        for n in range(50)
    ]  # fmt: skip
    expected = order(*queue)

    for _ in range(5):
        chance.shuffle(queue)
        assert order(*queue) == expected
