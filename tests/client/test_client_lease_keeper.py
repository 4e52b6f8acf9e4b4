"""A lease is renewed in time, also over a while without the controller, and not after its end."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from builders import NOON, lease

from distributed_grid.client.lease_keeper import LeaseKeeper, WatchedLease, kept_in_background
from distributed_grid.errors import BoostNotFound, GridError, NotRenewable, Unavailable
from distributed_grid.model.leases import Cause


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Controller:
    """Answers each renewal with the next of these; after the last one, all succeed."""

    def __init__(self, *answers: Exception | None) -> None:
        self._answers = list(answers)
        self.renewals = 0

    def __call__(self) -> None:
        self.renewals += 1
        if (error := self._answers.pop(0) if self._answers else None) is not None:
            raise error

    async def later(self) -> None:
        self()


def test_a_lease_is_renewed_after_each_third_of_its_length() -> None:
    clock, controller = Clock(), Controller()
    keeper = LeaseKeeper(60.0, clock)
    due = []
    for _ in range(60):
        clock.now += 1.0
        if keeper.is_due:
            due.append(clock.now - 100.0)
            keeper.renew(controller)
    assert due == [20.0, 40.0, 60.0]


def test_while_the_controller_is_away_the_lease_is_tried_again_before_it_expires() -> None:
    clock, controller = Clock(), Controller(Unavailable("away"), Unavailable("away"), Unavailable("away"))
    keeper = LeaseKeeper(60.0, clock)
    while controller.renewals < 4:
        clock.now += keeper.pause_s
        assert keeper.is_due
        keeper.renew(controller)
    assert clock.now < 160.0, "the lease has not expired"
    assert keeper.ended is None
    assert keeper.pause_s == 20.0


@pytest.mark.parametrize("error", [NotRenewable("it is releasing"), BoostNotFound("no such boost")])
def test_a_lease_that_ends_is_renewed_no_more(error: GridError) -> None:
    clock = Clock()
    keeper = LeaseKeeper(60.0, clock)
    keeper.renew(Controller(error))
    clock.now += 1000.0
    assert keeper.ended is error
    assert not keeper.is_due


def test_a_command_keeps_its_lease_until_it_ends() -> None:
    controller = Controller(None, Unavailable("away"), None, NotRenewable("it is releasing"))
    ended = LeaseKeeper(0.03).keep_here(controller)
    assert (ended.message, controller.renewals) == ("it is releasing", 4)


def test_a_program_keeps_its_lease_in_the_background_until_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    answers = (None, Unavailable("away"), RuntimeError("unforeseen"), None, NotRenewable("it is releasing"))
    controller = Controller(*answers)
    ended = asyncio.run(LeaseKeeper(0.03).keep(controller.later))
    assert (ended.message, controller.renewals) == ("it is releasing", 5)
    reported = "".join(capsys.readouterr())
    assert "RuntimeError: unforeseen" in reported and "away" not in reported


# -- as its holder sees it ---------------------------------------------------------------------------------------------

PREEMPTED = {"cause": "lender", "by": "grid", "reason": "gpu1 needs it", "claimant": None, "deadline": None}


def a_boost(state: str = "active", ending: object = None, lasts_s: int = 30) -> Any:
    at = {"allocated_at": "2026-01-01T10:00:00Z", "expires_at": f"2026-01-01T10:00:{lasts_s:02}Z"}
    return {"boost_id": "b1", "state": state, "ending": ending, **at}


def no_such_boost() -> Any:
    raise BoostNotFound("no such boost")


def test_a_lease_that_is_asked_back_is_held_until_it_is_gone_and_the_holder_learns_why() -> None:
    lease = WatchedLease(a_boost())
    lease.take_in(a_boost("releasing", PREEMPTED))
    assert (lease.ending, lease.ended) == (PREEMPTED, None)
    lease.look(no_such_boost)
    assert lease.ended == "gpu1 needs it"


@pytest.mark.parametrize(
    ("boost", "why"),
    [
        (a_boost("lost"), "the lease is lost"),
        (a_boost("released", PREEMPTED), "gpu1 needs it"),
        (a_boost("releasing"), None),
        (a_boost("granting"), None),
    ],
)
def test_a_lease_is_gone_once_it_is_lost_or_released(boost: Any, why: str | None) -> None:
    lease = WatchedLease(a_boost())
    lease.look(lambda: boost)
    assert lease.ended == why


def test_without_an_answer_a_lease_is_as_it_was_and_one_that_is_unknown_is_gone() -> None:
    lease = WatchedLease(a_boost(ending=PREEMPTED))
    with pytest.raises(RuntimeError):
        lease.look(lambda: fail(RuntimeError("unforeseen")))
    lease.look(lambda: fail(Unavailable("away")))
    assert (lease.ending, lease.ended) == (PREEMPTED, None)
    lease.take_in(a_boost())
    lease.look(no_such_boost)
    assert lease.ended == "no such boost"


def fail(error: Exception) -> Any:
    raise error


def test_a_lease_is_renewed_by_its_id_unless_it_is_asked_back_or_gone() -> None:
    renewed: list[str] = []
    lease = WatchedLease(a_boost(lasts_s=0))
    lease.keep(renewed.append)
    lease.take_in(a_boost("releasing", PREEMPTED))
    lease.keep(renewed.append)
    lease.take_in(a_boost("active"))
    lease.keep(renewed.append)
    lease.take_in(a_boost("lost"))
    lease.keep(renewed.append)
    assert renewed == ["b1", "b1"]


def test_the_controller_renews_a_moved_processs_lease_when_a_keeper_would() -> None:
    moved = lease(duration_s=600.0, expires_at=NOON + timedelta(seconds=600))
    keeper = LeaseKeeper(moved.duration_s, lambda: 0.0)
    assert moved.renewal_due == NOON + timedelta(seconds=keeper.pause_s)


@pytest.mark.parametrize("cause", [Cause.PRESSURE, Cause.DEMAND, Cause.FORECAST])
def test_a_lease_that_grid_made_for_a_cause_is_renewed_in_its_last_quarter(cause: Cause) -> None:
    own = lease(duration_s=600.0, expires_at=NOON + timedelta(seconds=600), cause=cause)
    assert own.renewal_due == NOON + timedelta(seconds=450)


def test_the_end_of_a_lease_that_is_kept_in_the_background_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    controller = Controller(None, NotRenewable("it is releasing"))

    async def kept() -> None:
        await kept_in_background("b1", 0.03, controller.later)

    asyncio.run(kept())
    assert controller.renewals == 2
    reported = "".join(capsys.readouterr())
    assert "b1" in reported and "it is releasing" in reported
