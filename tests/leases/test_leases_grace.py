"""A program inside a reservation keeps its place until the deadline, also between two of its tasks, and no longer."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from builders import FOR_ANA, ask
from whole_grid import WholeGrid, at_home

from distributed_grid.errors import BoostNotFound, NotReserved
from distributed_grid.leases.programs import leave, program_answer, report_program
from distributed_grid.leases.reclaim import reclaim, take_reply
from distributed_grid.leases.view import boost_dict
from distributed_grid.model.endings import ENDING_S, EndCause
from distributed_grid.model.leases import WATCHED, Lease, LeaseState, Purpose
from distributed_grid.model.notices import Reply
from distributed_grid.queue.answers import why_answer

GRACE_S = 10.0

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def lab(make_grid: Callable[..., WholeGrid]) -> WholeGrid:
    return make_grid(policy="aggressive")


def reserve(lab: WholeGrid, **changes: object) -> Lease:
    """One GPU for `b`."""
    return lab.run(lab.service.request(ask("b", "gpu", 1, grace_s=GRACE_S, **changes)))


def enter(lab: WholeGrid, boost: Lease, program: str = "p1") -> Lease:
    return lab.run(report_program(lab.parts, lab.leases[boost.id], program, "train.py"))


def stay(lab: WholeGrid, boost: Lease, seconds: float) -> None:
    """The program says once a second that it is there."""
    for _ in range(int(seconds)):
        if boost.id in lab.leases:
            enter(lab, boost)
        lab.wait(1.0)


def release(lab: WholeGrid, boost: Lease, **options: object) -> Lease:
    return lab.run(lab.service.release(boost.id, wait_s=0.0, who="ana", **options))


def test_an_idle_reservation_with_a_program_inside_stays_until_the_deadline(lab: WholeGrid) -> None:
    boost = reserve(lab)
    enter(lab, boost)

    asked = release(lab, boost)

    assert (asked.state, asked.deadline) == (LeaseState.RELEASING, asked.release_asked_at + timedelta(seconds=GRACE_S))
    assert asked.ending.cause is EndCause.RELEASED
    stay(lab, boost, GRACE_S - 1)
    assert boost.id in lab.leases
    assert "train.py" in lab.parts.notes[boost.id][0]


def test_a_program_that_saw_its_boost_before_the_release_does_not_undo_it(lab: WholeGrid) -> None:
    boost = reserve(lab)
    enter(lab, boost, "p1")
    seen = lab.leases[boost.id]
    release(lab, boost)

    lab.run(report_program(lab.parts, seen, "p2", "train.py"))
    assert lab.leases[boost.id].state is LeaseState.RELEASING
    lab.run(leave(lab.parts, seen, "p2"))
    assert lab.leases[boost.id].state is LeaseState.RELEASING
    lab.run(leave(lab.parts, seen, "p1"))
    lab.wait(2.0)
    assert boost.id not in lab.leases
    with pytest.raises(BoostNotFound):
        lab.run(report_program(lab.parts, seen, "p1", "train.py"))
    assert boost.id not in lab.leases
    at_home(lab)


def test_it_is_returned_as_soon_as_the_last_program_has_left(lab: WholeGrid) -> None:
    boost = reserve(lab)
    enter(lab, boost)
    enter(lab, boost, "p2")
    release(lab, boost)

    lab.run(leave(lab.parts, lab.leases[boost.id], "p1"))
    lab.wait(1.0)
    assert boost.id in lab.leases
    lab.run(leave(lab.parts, lab.leases[boost.id], "p2"))

    lab.wait(1.0)
    at_home(lab)


def test_a_program_that_does_not_leave_has_a_stated_time_after_the_deadline_and_no_more(lab: WholeGrid) -> None:
    boost = reserve(lab)
    enter(lab, boost)
    release(lab, boost)

    stay(lab, boost, GRACE_S + ENDING_S - 2)
    assert boost.id in lab.leases
    stay(lab, boost, 4)

    at_home(lab)


def test_a_program_that_fell_silent_holds_nothing(lab: WholeGrid) -> None:
    boost = reserve(lab)
    enter(lab, boost)
    lab.wait(60.0)

    release(lab, boost)

    lab.wait(1.0)
    at_home(lab)


def test_the_lease_of_a_run_is_kept_for_its_holder_and_goes_at_once_when_the_holder_gives_it_back(
    lab: WholeGrid,
) -> None:
    taken, given = (reserve(lab, purpose=Purpose.RUN) for _ in range(2))

    lab.run(lab.service.release(given.id, grace_s=0.0))
    release(lab, taken)
    lab.wait(GRACE_S - 2)

    assert list(lab.leases) == [taken.id]
    lab.wait(3.0)
    at_home(lab)


def test_deadline_and_programs_survive_a_crash(lab: WholeGrid) -> None:
    boost = reserve(lab)
    enter(lab, boost)
    asked = release(lab, boost)
    lab.wait(3.0)

    lab.crash()

    found = lab.leases[boost.id]
    assert (found.deadline, found.ending, found.programs) == (asked.deadline, asked.ending, asked.programs)
    lab.wait(3.0)
    assert boost.id in lab.leases  # though no task runs, and the program has not been heard since
    stay(lab, boost, 3)
    lab.run(leave(lab.parts, lab.leases[boost.id], "p1"))
    lab.wait(1.0)
    at_home(lab)


def test_a_hook_that_gives_the_lease_up_ends_the_grace_period_of_the_program_inside(lab: WholeGrid) -> None:
    boost = reserve(lab, reclaim_hook=WATCHED)
    enter(lab, boost)

    async def asked_and_answered() -> None:
        asked = reclaim(lab.parts, lab.leases[boost.id], "ana needs it", FOR_ANA)
        await take_reply(lab.parts, asked, Reply(release=True), who="bo")

    lab.run(asked_and_answered())

    left = program_answer(lab.parts, lab.leases[boost.id])["ends_in_seconds"]
    assert left <= 0
    lab.run(leave(lab.parts, lab.leases[boost.id], "p1"))
    lab.wait(1.0)
    at_home(lab)


def test_one_that_is_asked_for_says_by_whom_for_whom_and_by_when_wherever_it_is_shown(lab: WholeGrid) -> None:
    boost = reserve(lab)
    enter(lab, boost)
    lab.run(_ask(lab, boost))

    shown = boost_dict(lab.leases[boost.id])
    why = lab.run(why_answer(lab.parts, lab.service, boost.id))
    [event] = [event for event in lab.parts.journal.since(0) if event.event == "reclaim_asked"]

    assert shown["ending"] == event.details["ending"]
    assert (shown["ending"]["by"], shown["ending"]["claimant"]["request_id"]) == ("ana", "r1e9f00d")
    assert shown["programs"] == ["train.py"]
    deadline = lab.leases[boost.id].deadline
    assert any(
        "preempted by ana's request" in fact and f"{deadline:%Y-%m-%dT%H:%M:%SZ}" in fact for fact in why["facts"]
    )


async def _ask(lab: WholeGrid, boost: Lease) -> None:
    reclaim(lab.parts, lab.leases[boost.id], "ana needs it", FOR_ANA)


def test_nothing_can_be_inside_of_a_transfer(lab: WholeGrid) -> None:
    boost = lab.run(lab.service.request(ask("b", amount=2, source="a")))
    with pytest.raises(NotReserved):
        enter(lab, boost)
