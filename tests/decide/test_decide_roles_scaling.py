"""How many members a role that follows a signal is to have, reading by reading."""

from typing import Any

import pytest

from distributed_grid.decide.roles.scaling import NoReading, Scaled, ScalingState, Way, follow_signal
from distributed_grid.model.roles.scaling import Scaling

POOL = {"role": "pool", "method": "fullness"}
AWAY = NoReading("the pool does not answer")


def queue(**changes: Any) -> Scaling:
    return Scaling("queue", **{"up_at": 4, "down_at": 1, "stable_seconds": 5, "cooldown_seconds": 10} | changes)


def follow(
    scaling: Scaling,
    readings: list[tuple[float, float | NoReading]],
    *,
    present: int = 4,
    least: int = 2,
    most: int = 8,
) -> list[Scaled]:
    """What was decided at each of these times, each carried out at once."""
    state, found = ScalingState(), []
    for now, reading in readings:
        found.append(follow_signal(scaling, state, reading, present=present, least=least, most=most, now=now))
        state, present = found[-1].state, found[-1].wanted
    return found


def every_second(*readings: float | NoReading) -> list[tuple[float, float | NoReading]]:
    return [(float(now), reading) for now, reading in enumerate(readings)]


@pytest.mark.parametrize(
    ("scaling", "reading", "way"),
    [
        (queue(), 4.1, Way.UP),
        (queue(), 4, Way.UP),
        (queue(), 3.9, None),
        (queue(), 1.1, None),
        (queue(), 1, Way.DOWN),
        (queue(), 0, Way.DOWN),
        (Scaling(POOL, up_at=0.3, down_at=0.8), 0.1, Way.UP),
        (Scaling(POOL, up_at=0.3, down_at=0.8), 0.3, Way.UP),
        (Scaling(POOL, up_at=0.3, down_at=0.8), 0.5, None),
        (Scaling(POOL, up_at=0.3, down_at=0.8), 0.8, Way.DOWN),
        (Scaling(POOL, up_at=-1, down_at=-3), -2, None),
    ],
)
def test_a_signal_at_a_threshold_is_beyond_it_whichever_way_it_scales(
    scaling: Scaling, reading: float, way: Way | None
) -> None:
    (found,) = follow(scaling, [(0.0, reading)])

    assert found.state.beyond is way


def test_the_signal_must_stay_beyond_its_threshold_for_a_while() -> None:
    found = follow(queue(), every_second(5, 5, 5, 5, 5, 5.25))

    assert [one.wanted for one in found] == [4, 4, 4, 4, 4, 5]
    assert found[-1].reason == "queue at 5.25 (up at 4) for 5 s: from 4 to 5"
    assert [one.reason for one in found[:-1]] == [""] * 5


def test_a_moment_back_in_the_band_begins_the_while_anew() -> None:
    found = follow(queue(), every_second(5, 5, 5, 3, 5, 5, 5, 5, 5, 5))

    assert [one.wanted for one in found] == [4] * 9 + [5]


def test_a_reading_on_the_other_side_begins_the_while_anew() -> None:
    found = follow(queue(), every_second(0, 0, 0, 0, 5, 5, 5, 5, 5, 5))

    assert [one.wanted for one in found] == [4] * 9 + [5]


def test_after_a_change_there_is_rest_and_then_the_next_one() -> None:
    found = follow(queue(), every_second(*[9] * 16))

    assert [one.wanted for one in found] == [4] * 5 + [5] * 10 + [6]
    assert found[12].state_text == "queue at 9 (up at 4), 3 s of cooldown left after the last change"


def test_without_a_while_and_without_rest_every_reading_counts() -> None:
    found = follow(queue(stable_seconds=0, cooldown_seconds=0, step=3), every_second(9, 9, 9, 0, 0, 0, 2))

    assert [one.wanted for one in found] == [7, 8, 8, 5, 2, 2, 2]


def test_a_pool_that_fills_up_has_fewer_workers() -> None:
    found = follow(
        Scaling(POOL, up_at=0.3, down_at=0.8, stable_seconds=0, cooldown_seconds=0), every_second(0.9, 0.5, 0.1)
    )

    assert [one.wanted for one in found] == [3, 3, 4]
    assert found[0].reason == "pool.fullness at 0.9 (down at 0.8) for 0 s: from 4 to 3"


def test_what_cannot_be_read_changes_nothing_and_begins_the_while_anew() -> None:
    found = follow(queue(), every_second(9, 9, 9, 9, AWAY, 9, 9, 9, 9, 9, 9))

    assert [one.wanted for one in found] == [4] * 10 + [5]
    assert (found[4].reason, found[4].state_text) == ("", "queue cannot be read: the pool does not answer")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_none_is_no_reading(value: float) -> None:
    (found,) = follow(queue(stable_seconds=0), [(0.0, value)])

    assert found.wanted == 4 and found.state_text == f"queue cannot be read: it is {value}"


@pytest.mark.parametrize(
    ("present", "reading", "reported"),
    [(8, 9, "queue at 9 (up at 4), and 8 is the maximum"), (2, 0, "queue at 0 (down at 1), and 2 is the minimum")],
)
def test_it_stays_between_the_least_and_the_most(present: int, reading: float, reported: str) -> None:
    found = follow(queue(stable_seconds=0), [(0.0, reading)], present=present)

    assert [(one.wanted, one.reason, one.state_text) for one in found] == [(present, "", reported)]


@pytest.mark.parametrize(
    ("present", "wanted", "reason"),
    [(1, 2, "the minimum is 2: from 1 to 2"), (11, 8, "the maximum is 8: from 11 to 8")],
)
def test_a_count_outside_its_bounds_is_corrected_at_once_even_if_no_signal_can_be_read(
    present: int, wanted: int, reason: str
) -> None:
    (found,) = follow(queue(), [(0.0, AWAY)], present=present)

    assert (found.wanted, found.reason) == (wanted, reason)
    assert found.state.changed_at == 0.0


def test_a_step_that_is_too_large_is_cut() -> None:
    assert [one.wanted for one in follow(queue(stable_seconds=0, step=100), [(0.0, 9)])] == [8]
    assert [one.wanted for one in follow(queue(stable_seconds=0, step=100), [(0.0, 0)])] == [2]


def test_what_a_user_changed_gets_its_rest_as_well() -> None:
    scaling = queue(stable_seconds=0)
    before = follow_signal(scaling, ScalingState(), 2, present=4, least=2, most=8, now=0.0)

    first = follow_signal(scaling, before.state, 9, present=6, least=2, most=8, now=1.0)
    later = follow_signal(scaling, first.state, 9, present=6, least=2, most=8, now=11.0)

    assert (first.wanted, later.wanted) == (6, 7)


def test_what_found_no_room_is_tried_again_after_a_rest() -> None:
    scaling = queue(stable_seconds=0)
    state, wanted = ScalingState(), []
    for now in range(12):
        found = follow_signal(scaling, state, 9, present=4, least=2, most=8, now=float(now))
        state = found.state
        wanted.append(found.wanted)

    assert wanted == [5] + [4] * 10 + [5]


def test_how_things_stand_is_reported_at_any_time() -> None:
    found = follow(queue(), every_second(2, 4.56789, 5, 6))

    assert [one.state_text for one in found] == [
        "queue at 2, between 1 and 4",
        "queue at 4.568 (up at 4), for 0 of 5 s",
        "queue at 5 (up at 4), for 1 of 5 s",
        "queue at 6 (up at 4), for 2 of 5 s",
    ]


@pytest.mark.parametrize(
    ("reading", "enough"), [(0.0, True), (1.0, True), (2.0, True), (4.0, False), (9.0, False), (AWAY, False)]
)
def test_a_signal_says_that_there_are_enough_unless_it_asks_for_more_or_cannot_be_read(
    reading: float | NoReading, enough: bool
) -> None:
    assert [one.enough for one in follow(queue(), every_second(reading, reading))] == [enough] * 2
    assert [one.enough for one in follow(queue(stable_seconds=0), [(0.0, reading)])] == [enough]
