"""What a supervisor does next: never two things at once, never in a hurry, and never after it was told to stop."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from service_unit import STAYS_DOWN

from distributed_grid.decide.supervision import (
    Do,
    Observation,
    Phase,
    Step,
    Watch,
    after_failure,
    after_success,
    may_heal,
    next_step,
)
from distributed_grid.errors import (
    AccessDenied,
    AlreadyRunning,
    ConfigInvalid,
    GridError,
    HomeInUse,
    InvalidRequest,
    NoCluster,
    NotOnHead,
    PortTaken,
    RayUnsuitable,
    StoreBroken,
    Unavailable,
)

WELL = Observation(controller=True, head=True)
SILENT = Observation(controller=False, head=True)
NO_HEAD = Observation(controller=False, head=False)

sights = st.builds(Observation, controller=st.booleans(), head=st.booleans(), stopped=st.just(False))


def played(*sights: Observation, watch: Watch | None = None, every: float = 1.0, start: float = 0.0) -> list[Step]:
    """One look after the other; tries to put the controller in fail."""
    watch, now, steps = watch or Watch(), start, []
    for sight in sights:
        steps.append(next_step(watch, sight, now=now))
        watch = steps[-1].watch
        if steps[-1].do is Do.START:
            watch = after_failure(watch, now=now)
        now += every
    return steps


def test_a_controller_that_is_not_there_is_put_in_at_once() -> None:
    assert next_step(Watch(), SILENT, now=0).do is Do.START


def test_one_that_answers_already_is_only_watched() -> None:
    first, second = played(WELL, WELL)

    assert (first.do, second.do) == (Do.WATCH, Do.WATCH)
    assert first.say and not second.say


def test_ray_has_a_moment_to_bring_a_crashed_controller_back() -> None:
    steps = played(WELL, *[SILENT] * 3, WELL)

    assert [step.do for step in steps] == [Do.WATCH, Do.WAIT, Do.WAIT, Do.WAIT, Do.WATCH]
    assert "again after 3 s" in (steps[-1].say or "")


def test_one_that_ray_does_not_bring_back_is_put_in() -> None:
    steps = played(WELL, *[SILENT] * 10)

    assert Do.START in [step.do for step in steps]


def test_a_head_that_is_gone_is_waited_for_and_its_return_used_at_once() -> None:
    steps = played(WELL, *[NO_HEAD] * 100, SILENT)

    assert {step.do for step in steps[1:-1]} == {Do.WAIT}
    assert len([step for step in steps[1:-1] if step.say]) == 1
    assert steps[-1].do is Do.START
    assert "is back after 100 s" in (steps[-1].say or "")


def test_a_head_that_is_away_for_long_is_mentioned_now_and_then_and_not_polled_in_a_hurry() -> None:
    steps = played(*[NO_HEAD] * 1000, every=5.0)

    assert 5 <= len([step for step in steps if step.say]) <= 10
    assert steps[-1].pause_s >= 5.0


def test_the_supervisor_ends_when_grid_was_stopped_on_purpose() -> None:
    for sight in (WELL, SILENT, NO_HEAD):
        assert next_step(Watch(Phase.IN), replace(sight, stopped=True), now=0).do is Do.END


@given(st.integers(0, 200))
def test_tries_come_ever_later_within_bounds(failures: int) -> None:
    watch, pauses = Watch(), []
    for _ in range(failures):
        watch = after_failure(watch, now=0)
        pauses.append(watch.try_at)

    assert pauses == sorted(pauses)
    assert all(1 <= pause <= 30 for pause in pauses)


@given(st.lists(sights, min_size=1, max_size=60), st.floats(0.1, 60))
@example([SILENT] * 60, 0.1)
@example([SILENT] * 60, 1.0)
def test_between_two_tries_there_is_always_a_pause(seen: list[Observation], every: float) -> None:
    tries = [step.do is Do.START for step in played(*seen, every=every)]
    assume(any(tries))
    assert every >= 1.0 or not any(earlier and later for earlier, later in pairwise(tries))


@given(st.lists(sights, max_size=60), st.floats(0.1, 60))
def test_whatever_was_seen_a_controller_that_is_away_for_long_is_put_in(seen: list[Observation], every: float) -> None:
    before = played(*seen, every=every)
    watch = before[-1].watch if before else Watch()

    steps = played(*[SILENT] * 60, watch=watch, start=len(seen) * every)

    assert any(step.do is Do.START for step in steps)


@given(st.lists(sights, max_size=60), st.floats(0.1, 60))
def test_while_it_answers_or_the_head_is_away_nothing_is_put_in(seen: list[Observation], every: float) -> None:
    steps = zip(seen, played(*seen, every=every), strict=True)
    nothing_to_do = [step for sight, step in steps if sight.controller or not sight.head]
    assume(nothing_to_do)
    assert all(step.do in (Do.WATCH, Do.WAIT) and step.pause_s > 0 for step in nothing_to_do)


NEVER_BY_WAITING = [
    *(ConfigInvalid, InvalidRequest, NotOnHead, HomeInUse, AccessDenied, RayUnsuitable, PortTaken, GridError)
]
BY_WAITING = [NoCluster, Unavailable, AlreadyRunning, StoreBroken]


@pytest.mark.parametrize("kind", NEVER_BY_WAITING)
def test_what_waiting_does_not_heal_ends_a_supervisor_that_has_just_been_started(kind: type[GridError]) -> None:
    assert not may_heal(kind("no"), was_in=False)


@pytest.mark.parametrize("kind", BY_WAITING)
def test_what_may_heal_by_itself_is_waited_for(kind: type[GridError]) -> None:
    assert may_heal(kind("not now"), was_in=False)


@pytest.mark.parametrize("kind", [*NEVER_BY_WAITING, *BY_WAITING])
def test_what_worked_once_is_tried_again_whatever_it_is(kind: type[GridError]) -> None:
    assert may_heal(kind("no more"), was_in=True)


def test_a_service_stays_down_only_after_what_no_waiting_heals() -> None:
    assert not {kind.exit_code for kind in BY_WAITING} & set(STAYS_DOWN)
    assert {kind.exit_code for kind in (ConfigInvalid, NotOnHead, HomeInUse)} == set(STAYS_DOWN)


def test_after_a_success_there_is_nothing_to_say() -> None:
    assert next_step(after_success(now=5.0), WELL, now=6.0).say is None
