"""A lease is renewed in time, also over a while without the controller, and not after its end."""

import asyncio

import pytest

from distributed_grid.client.lease_keeper import LeaseKeeper
from distributed_grid.errors import BoostNotFound, GridError, NotRenewable, Unavailable


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Controller:
    """Answers each renewal with the next of these; after the last one, all succeed."""

    def __init__(self, *answers: GridError | None) -> None:
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


def test_a_program_keeps_its_lease_in_the_background_until_it_ends() -> None:
    controller = Controller(None, Unavailable("away"), None, NotRenewable("it is releasing"))
    ended = asyncio.run(LeaseKeeper(0.03).keep(controller.later))
    assert (ended.message, controller.renewals) == ("it is releasing", 4)
