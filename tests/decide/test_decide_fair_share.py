"""What a team used weighs on it, and is forgotten."""

from datetime import timedelta

import pytest
from builders import NOON, amounts, lease, team

from distributed_grid.decide.queue.claims import HALF_LIFE_S, Account, burden, charged
from distributed_grid.model.leases import LeaseState

CLUSTER = amounts(cpu=100, gpu=10)
HOUR = timedelta(hours=1)


def test_a_team_is_charged_for_the_largest_part_that_it_holds_of_any_kind() -> None:
    leases = (
        lease("a", kind="cpu", amount=10, team="blue"),
        lease("b", kind="gpu", amount=5, team="blue"),
        lease("c", kind="cpu", amount=20, team="red"),
    )

    found = charged({}, leases, CLUSTER, NOON + timedelta(seconds=10))

    assert found["blue"].used == pytest.approx(0.5 * 10, rel=1e-3)
    assert found["red"].used == pytest.approx(0.2 * 10, rel=1e-3)


def test_after_the_half_life_half_is_forgotten() -> None:
    accounts = {"blue": Account(1000.0, NOON)}

    assert burden(team("blue"), accounts, NOON + timedelta(seconds=HALF_LIFE_S)) == pytest.approx(500.0)


def test_how_often_it_is_charged_makes_no_difference() -> None:
    leases = (lease(amount=25, team="blue"),)
    often = {}
    for minute in range(1, 601):
        often = charged(often, leases, CLUSTER, NOON + timedelta(minutes=minute))

    once = charged({}, leases, CLUSTER, NOON + timedelta(minutes=600))

    assert often["blue"].used == pytest.approx(once["blue"].used)


def test_a_lease_is_charged_from_when_it_began_not_from_when_the_account_was_last_seen() -> None:
    accounts = {"blue": Account(0.0, NOON - timedelta(days=3))}

    found = charged(accounts, (lease(amount=100, team="blue"),), CLUSTER, NOON + timedelta(seconds=60))

    assert found["blue"].used == pytest.approx(60.0, rel=1e-3)


def test_twice_the_weight_is_half_the_burden() -> None:
    accounts = {"blue": Account(100.0, NOON), "red": Account(100.0, NOON)}

    assert burden(team("blue", weight=2.0), accounts, NOON) == burden(team("red"), accounts, NOON) / 2


def test_what_was_returned_is_not_charged() -> None:
    assert charged({}, (lease(state=LeaseState.RELEASED),), CLUSTER, NOON + HOUR) == {}


def test_a_team_that_was_quiet_for_long_is_forgotten() -> None:
    accounts = {"blue": Account(1000.0, NOON)}

    assert "blue" in charged(accounts, (), CLUSTER, NOON + timedelta(days=1))
    assert charged(accounts, (), CLUSTER, NOON + timedelta(days=30)) == {}


def test_a_kind_that_the_cluster_does_not_have_weighs_nothing() -> None:
    found = charged({}, (lease(kind="licence", amount=1, team="blue"),), CLUSTER, NOON + HOUR)

    assert found["blue"].used == 0.0
