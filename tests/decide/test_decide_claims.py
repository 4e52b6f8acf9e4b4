"""The order of claims: whose turn it is, and who yields to whom."""

import random
from datetime import timedelta

import pytest
from builders import NOON, ask, lease, reservation, team, waits

from distributed_grid.decide.capacity.usage import Usage
from distributed_grid.decide.queue.claims import (
    AGING_STEP_S,
    OVERDUE_S,
    Account,
    Claim,
    effective_rank,
    is_overdue,
    may_take,
    ordered,
    yields_to,
)
from distributed_grid.model.leases import Lease
from distributed_grid.model.policies import AllocationPriority
from distributed_grid.model.requests import Ask, Waiting
from distributed_grid.model.teams import Teams

LOW, NORMAL, HIGH, CRITICAL = AllocationPriority
BURDENED = {"blue": Account(1000.0, NOON), "red": Account(10.0, NOON)}


def order(
    *waiting: Waiting,
    accounts: dict[str, Account] = BURDENED,
    teams: Teams = Teams(),  # noqa: B008
    leases: tuple[Lease, ...] = (),
) -> list[str]:
    return [one.id for one in ordered(waiting, Usage.of(leases), accounts, teams, NOON)]


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


# -- guarantees ----------------------------------------------------------------------------------------------

OWNER = team("owner", guaranteed={"cpu": 4, "gpu": 1})
TEAMS = Teams([OWNER, team("blue", guaranteed={"cpu": 4})])


@pytest.mark.parametrize(
    ("asked", "leases", "within"),
    [
        (ask(amount=4, team="owner"), (), True),
        (ask(amount=5, team="owner"), (), False),
        (ask(amount=2, team="owner"), (lease(amount=2, team="owner"),), True),
        (ask(amount=3, team="owner"), (lease(amount=2, team="owner"),), False),
        (ask(amount=4, team="owner"), (lease(amount=8, team="blue"),), True),
        (ask(kind="gpu", amount=1, team="owner"), (), True),
        (ask(kind="gpu", amount=1, team="owner"), (lease(amount=4, team="owner"),), True),  # its CPU comes along
        (ask(kind="gpu", amount=1, team="owner", along=(("cpu", 50_000),)), (), False),
        (ask(kind="gpu", amount=1, team="blue"), (), False),
        (ask(kind="licence", amount=1, team="owner"), (), False),
        (ask(amount=1, team="who"), (), False),
    ],
)
def test_a_request_is_within_its_teams_guarantee_if_all_that_it_asks_for_is(
    asked: Ask, leases: tuple[Lease, ...], within: bool
) -> None:
    assert Claim.of(asked, Usage.of(leases), TEAMS).is_guaranteed is within


def test_a_request_within_its_teams_guarantee_goes_before_every_priority_and_every_age() -> None:
    own = waits("own", 4, priority=LOW, team="owner")
    urgent = waits("urgent", 1, priority=CRITICAL, team="green", waited_s=60.0)
    overdue = waits("overdue", 1, waited_s=2 * OVERDUE_S, team="green")
    assert order(urgent, overdue, own, teams=TEAMS) == ["own", "overdue", "urgent"]
    assert order(urgent, overdue, own, teams=TEAMS, leases=(lease(amount=4, team="owner"),))[-1] == "own"


def test_of_one_team_no_more_goes_first_than_is_guaranteed_to_it() -> None:
    requests = [waits(f"own{n}", 3, team="owner", waited_s=10.0 - n) for n in range(3)]
    other = waits("other", 1, priority=HIGH, team="green")
    small = waits("small", 1, priority=LOW, team="owner")
    assert order(*requests, other, small, teams=TEAMS) == ["own0", "small", "other", "own1", "own2"]


GUARANTEED, ABOVE = Claim("owner", True, NORMAL.rank), Claim("owner", False, CRITICAL.rank)


@pytest.mark.parametrize(
    ("held", "claim", "preempts", "yields"),
    [
        (lease(team="blue", priority=CRITICAL), GUARANTEED, False, True),  # whatever its priority and the policy
        (lease(team="owner", priority=NORMAL), GUARANTEED, True, False),  # not for the same worth
        (lease(team="owner", priority=LOW), GUARANTEED, True, True),
        (lease(team="owner", priority=LOW), GUARANTEED, False, False),
        (lease(team="blue", priority=HIGH), ABOVE, True, True),
        (lease(team="blue", priority=HIGH), ABOVE, False, False),
        (lease(team="blue", priority=CRITICAL), ABOVE, True, False),
        (lease(team="owner", priority=CRITICAL), ABOVE, True, False),
    ],
)
def test_the_leases_that_yield_to_a_claim(held: Lease, claim: Claim, preempts: bool, yields: bool) -> None:
    assert yields_to(held, claim, preempts=preempts) is yields


@pytest.mark.parametrize(
    ("held", "claim", "above", "units"),
    [
        (lease(amount=6, team="blue"), GUARANTEED, 2, 20_000),  # the part that is above its team's guarantee
        (lease(amount=6, team="blue"), ABOVE, 2, 20_000),
        (lease(amount=6, team="blue"), GUARANTEED, 0, 0),
        (lease(amount=6, team="blue"), GUARANTEED, -3, 0),
        (reservation(kind="cpu", amount=6, team="blue"), GUARANTEED, 2, 60_000),  # it cannot be divided
        (reservation(kind="cpu", amount=6, team="blue"), ABOVE, 2, 0),
        (reservation(kind="cpu", amount=6, team="blue"), ABOVE, 6, 60_000),
        (reservation(kind="cpu", amount=6, team="blue"), GUARANTEED, 0, 0),
        (lease(amount=6, team="owner"), GUARANTEED, -3, 60_000),  # within its own guarantee a team chooses by priority
        (lease(amount=6, team="owner"), ABOVE, 0, 0),  # what is guaranteed is worth more than what is above
    ],
)
def test_what_a_team_has_within_its_guarantee_stays(held: Lease, claim: Claim, above: float, units: int) -> None:
    assert may_take(held, claim, {"cpu": round(above * 10_000)}) == units
