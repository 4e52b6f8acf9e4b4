"""Any signal, however it swings: the number of members stays in its bounds, and follows it calmly."""

from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from distributed_grid.decide.roles.scaling import NoReading, ScalingState, Way, follow_signal
from distributed_grid.model.roles.scaling import MethodSignal, Scaling

VALUES = st.floats(-10, 10)
READINGS = st.one_of(VALUES, VALUES, st.sampled_from([float("nan"), float("inf")]), st.just(NoReading("it is away")))
TIMES = st.sampled_from([0.0, 0.5, 1.0, 3.0, 5.0, 10.0, 60.0])
Steps = list[tuple[float, float | NoReading]]
STEPS = st.lists(st.tuples(TIMES, READINGS), max_size=40)
"""How long after the one before, and what was read."""


@st.composite
def scalings(draw: st.DrawFn) -> Scaling:
    up, down = draw(st.lists(st.integers(-5, 5), min_size=2, max_size=2, unique=True))
    return Scaling(
        MethodSignal("pool", "fullness"),
        up_at=up,
        down_at=down,
        step=draw(st.integers(1, 4)),
        stable_seconds=draw(TIMES),
        cooldown_seconds=draw(TIMES),
    )


@st.composite
def bounds(draw: st.DrawFn) -> tuple[int, int]:
    least = draw(st.integers(0, 5))
    return least, draw(st.integers(least + 1, 12))


def run(
    scaling: Scaling, between: tuple[int, int], start: int, steps: Steps
) -> list[tuple[float, int, float | NoReading]]:
    """When, how many there are to be, and what was read; each decision is carried out."""
    least, most = between
    state, present, now = ScalingState(), start, 0.0
    found: list[tuple[float, int, float | NoReading]] = []
    for after, reading in steps:
        now += after
        decided = follow_signal(scaling, state, reading, present=present, least=least, most=most, now=now)
        assert bool(decided.reason) == (decided.wanted != present) and decided.state_text
        state, present = decided.state, decided.wanted
        found.append((now, present, reading))
    return found


@given(scalings(), bounds(), st.integers(0, 15), STEPS)
def test_it_is_never_outside_its_bounds(scaling: Scaling, between: tuple[int, int], start: int, steps: Steps) -> None:
    assert all(between[0] <= wanted <= between[1] for _, wanted, _ in run(scaling, between, start, steps))


@given(scalings(), bounds(), STEPS, st.data())
def test_changes_are_at_least_a_rest_apart_and_at_most_a_step_large(
    scaling: Scaling, between: tuple[int, int], steps: Steps, data: st.DataObject
) -> None:
    start = data.draw(st.integers(*between))
    found = [(0.0, start, NoReading("")), *run(scaling, between, start, steps)]

    changes = [(now, after - before) for (_, before, _), (now, after, _) in pairwise(found) if after != before]
    assume(changes)

    assert all(abs(by) <= scaling.step for _, by in changes)
    assert all(later - earlier >= scaling.cooldown_seconds for (earlier, _), (later, _) in pairwise(changes))


@given(scalings(), bounds(), STEPS, st.data())
def test_a_change_was_asked_for_all_the_while_before_it(
    scaling: Scaling, between: tuple[int, int], steps: Steps, data: st.DataObject
) -> None:
    start = data.draw(st.integers(*between))
    found = [(0.0, start, NoReading("")), *run(scaling, between, start, steps)]
    changes = [number for number in range(1, len(found)) if found[number][1] != found[number - 1][1]]
    assume(changes)

    for number in changes:
        (_, before, _), (now, after, reading) = found[number - 1], found[number]
        # Several readings may have the time at which the signal went beyond its threshold: the last one counts.
        readings = [reading for at, _, reading in found[1:number] if at > now - scaling.stable_seconds] + [reading]
        assert {side(scaling, reading) for reading in readings} == {Way.UP if after > before else Way.DOWN}


def side(scaling: Scaling, reading: float | NoReading) -> Way | None:
    if isinstance(reading, NoReading) or reading - reading != 0:  # neither nan nor infinite
        return None
    if reading >= scaling.up_at if scaling.rises else reading <= scaling.up_at:
        return Way.UP
    return Way.DOWN if (reading <= scaling.down_at if scaling.rises else reading >= scaling.down_at) else None


@given(scalings(), bounds(), st.lists(st.tuples(TIMES, st.floats(0.01, 0.99)), max_size=30), st.data())
def test_a_signal_that_stays_in_the_band_changes_nothing(
    scaling: Scaling, between: tuple[int, int], steps: list[tuple[float, float]], data: st.DataObject
) -> None:
    start = data.draw(st.integers(*between))
    inside: Steps = [(t, scaling.down_at + part * (scaling.up_at - scaling.down_at)) for t, part in steps]

    assert {wanted for _, wanted, _ in run(scaling, between, start, inside)} <= {start}


@given(scalings(), bounds(), STEPS, VALUES, VALUES, TIMES, st.data())
def test_a_signal_that_asks_for_more_never_gets_fewer(
    scaling: Scaling,
    between: tuple[int, int],
    steps: Steps,
    one: float,
    other: float,
    after: float,
    data: st.DataObject,
) -> None:
    """After the same readings, what the last one is makes the only difference."""
    start = data.draw(st.integers(*between))
    less, more = sorted([one, other], reverse=not scaling.rises)

    fewer, many = (run(scaling, between, start, [*steps, (after, reading)])[-1][1] for reading in (less, more))

    assert fewer <= many


@given(scalings(), bounds(), st.data())
def test_a_signal_that_stays_beyond_its_threshold_brings_all_there_can_be(
    scaling: Scaling, between: tuple[int, int], data: st.DataObject
) -> None:
    start = data.draw(st.integers(*between))
    long: Steps = [(60.0, float(scaling.up_at))] * 40
    back: Steps = [(60.0, float(scaling.down_at))] * 40

    found = run(scaling, between, start, [*long, *back])

    assert (found[39][1], found[-1][1]) == (between[1], between[0])
