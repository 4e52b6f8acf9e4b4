"""A lease is idle only if it is known that its work did not use it, for all of the time that counts."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from builders import NOON, amounts, lease, node, reading, reservation, snapshot
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.decide.leases.idle import (
    QUIET_CORES,
    InsideUse,
    Occupant,
    ProgramUse,
    Unused,
    idle_after_of,
    is_due,
    is_idle,
    programs_inside,
    sampled,
    why_borrowed,
    why_devices_used,
    why_never_idle,
    why_occupied,
    with_report,
)
from distributed_grid.model.endings import EndCause, Ending
from distributed_grid.model.leases import LeaseState, Notice, Program, Purpose
from distributed_grid.model.resources import GB, ResourceVector
from distributed_grid.model.snapshots import GpuProcess, GpuReading, NodeSnapshot, WorkerUse
from distributed_grid.model.validators import NEVER_S

AFTER = timedelta(minutes=15)
GAP = timedelta(seconds=25)
WINDOW = timedelta(seconds=10)
SOON = NOON + timedelta(seconds=30)
FOR_IDLE = Ending(EndCause.IDLE, "ana")

# So many seconds after the sample before; whether it shows no use.
samples = st.lists(st.tuples(st.floats(-5.0, 40.0), st.sampled_from([True, True, True, True, False])), max_size=120)


@given(samples, st.floats(1.0, 300.0))
def test_an_active_lease_never_counts_as_idle(steps: list[tuple[float, bool]], after_s: float) -> None:
    """Whenever it counts as idle, every sample of the last `idle_after` showed no use, and none was missing."""
    at, unused, taken = NOON, None, []
    for passed_s, is_unused in steps:
        at += timedelta(seconds=passed_s)
        unused = sampled(unused, is_unused, at, GAP)
        taken.append((at, is_unused))
        if not is_idle(unused, timedelta(seconds=after_s)):
            continue
        assert unused is not None
        assert unused.until == at
        recent: list[datetime] = []
        for moment, shows_none in reversed(taken):
            assert shows_none
            assert not recent or timedelta(0) <= recent[-1] - moment <= GAP
            recent.append(moment)
            if at - moment >= timedelta(seconds=after_s):
                break
        assert recent[0] - recent[-1] >= timedelta(seconds=after_s)


def test_a_lease_is_idle_once_it_was_unused_for_long_enough() -> None:
    unused = None
    for second in range(0, 901, 10):
        assert not is_idle(unused, AFTER)
        unused = sampled(unused, True, NOON + timedelta(seconds=second), GAP)
    assert is_idle(unused, AFTER)
    assert not is_idle(sampled(unused, False, NOON, GAP), AFTER)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": LeaseState.GRANTING}, "it is granting"),
        ({"state": LeaseState.RELEASING}, "it is releasing"),
        ({"notice": Notice(1, "", NOON, SOON), "ending": Ending(EndCause.LENDER, "grid")}, "it is being reclaimed"),
        ({"notice": Notice(1, "", NOON, SOON), "ending": FOR_IDLE}, None),
        ({"idle_after": NEVER_S}, "its request says that it is never idle"),
        ({"idle_after": 60.0}, None),
    ],
)
def test_a_lease_on_its_way_in_or_out_is_in_use(changes: dict[str, object], why: str | None) -> None:
    assert why_never_idle(lease(**changes)) == why


def test_the_request_or_else_the_configuration_says_when_a_lease_is_idle() -> None:
    assert idle_after_of(lease(), AFTER) == AFTER
    assert idle_after_of(lease(idle_after=60.0), AFTER) == timedelta(seconds=60)


# -- programs inside ---------------------------------------------------------------------------------------------

HERE = Program("p", "train.py", NOON + timedelta(days=1))


@st.composite
def lives(draw: st.DrawFn) -> tuple[list[tuple[datetime, float]], set[datetime]]:
    """The reports of a program, and the moments at which it took as much CPU time as a busy process in that window."""
    at, cpu_s, reports, busy_at = NOON, 0.0, [], set()
    for passed_s, used in draw(
        st.lists(st.tuples(st.floats(0.5, 30.0), st.sampled_from([0.0, 0.0, 0.0, 0.001, 0.04, 1.0])), max_size=150)
    ):
        at += timedelta(seconds=passed_s)
        cpu_s += used * passed_s
        reports.append((at, cpu_s))
        if used * passed_s >= QUIET_CORES * WINDOW.total_seconds():
            busy_at.add(at)
    return reports, busy_at


@given(lives(), st.floats(5.0, 300.0))
def test_an_active_program_keeps_its_lease_from_counting_as_idle(
    life: tuple[list[tuple[datetime, float]], set[datetime]], after_s: float
) -> None:
    """Whenever it counts as idle, the program reported all the time, and every window of that time was a quiet one."""
    reports, busy_at = life
    held, inside, unused = reservation(purpose=Purpose.RUN, programs=(HERE,)), InsideUse(NOON), None
    for number, (at, cpu_s) in enumerate(reports):
        inside = inside.with_report("p", cpu_s, at, WINDOW, GAP)
        found = programs_inside(held, inside, at, GAP)
        is_known = isinstance(found, Unused)
        unused = sampled(unused, is_known, found.until if is_known else at, GAP, found.since if is_known else None)
        if not is_idle(unused, timedelta(seconds=after_s)):
            continue
        assert unused is not None
        idle = [(moment, used) for moment, used in reports[: number + 1] if moment >= unused.since]
        assert not busy_at & {moment for moment, _ in idle if moment > unused.since}
        assert all(b[0] - a[0] <= GAP for a, b in pairwise(idle)), "it was silent for long"
        total_s = (idle[-1][0] - idle[0][0]).total_seconds()
        assert idle[-1][1] - idle[0][1] <= QUIET_CORES * (total_s + 2 * WINDOW.total_seconds())


def reported(*counts: tuple[float, float]) -> ProgramUse | None:
    use = None
    for second, cpu_s in counts:
        use = with_report(use, cpu_s, NOON + timedelta(seconds=second), WINDOW, GAP)
    return use


@pytest.mark.parametrize(
    ("counts", "since"),
    [
        ([(0, 5.0), (10, 5.1), (20, 5.2)], 0),
        ([(0, 5.0), (5, 5.1)], None),
        ([(0, 5.0), (10, 5.1), (11, 6.0)], None),
        ([(0, 5.0), (10, 5.1), (11, 6.0), (21, 6.1)], 11),
        ([(0, 5.0), (10, 5.1), (60, 5.1)], None),
        ([(0, 5.0), (10, 4.0)], None),
        ([(10, 5.0), (0, 5.0)], None),
    ],
)
def test_a_program_is_quiet_once_a_whole_window_was(counts: list[tuple[float, float]], since: int | None) -> None:
    use = reported(*counts)
    assert use is not None
    assert (use.unused and use.unused.since) == (None if since is None else NOON + timedelta(seconds=since))


QUIET = ProgramUse(1.0, SOON, Unused(NOON, SOON))


@pytest.mark.parametrize(
    ("changes", "inside", "now", "expected"),
    [
        ({}, None, SOON, None),
        ({"programs": (Program("p", "silent for long", NOON),)}, None, SOON, None),
        ({"programs": (HERE,)}, InsideUse(NOON, {"p": QUIET}), SOON, Unused(NOON, SOON)),
        ({"programs": (HERE,)}, InsideUse(SOON, {"p": QUIET}), SOON, Unused(SOON, SOON)),
        ({"programs": (HERE,)}, None, SOON, "train.py does not report its CPU time"),
        ({"programs": (HERE,)}, InsideUse(NOON, {"q": QUIET}), SOON, "train.py does not report its CPU time"),
        ({"programs": (HERE,)}, InsideUse(NOON, {"p": QUIET}), SOON + 2 * GAP, "train.py does not report its CPU time"),
        (
            {"programs": (HERE,)},
            InsideUse(NOON, {"p": ProgramUse(1.0, SOON)}),
            SOON,
            "train.py is busy, or has just begun",
        ),
        (
            {"programs": (HERE, Program("q", "shell", HERE.until))},
            InsideUse(NOON, {"p": QUIET, "q": ProgramUse(1.0, SOON)}),
            SOON,
            "shell is busy, or has just begun",
        ),
        ({"purpose": Purpose.RUN}, None, SOON, "its program does not report its CPU time"),
        ({"purpose": Purpose.RUN}, InsideUse(NOON, {"p": QUIET}), SOON, Unused(NOON, SOON)),
        ({}, InsideUse(SOON), SOON, Unused(SOON, SOON)),
    ],
)
def test_every_program_inside_must_be_known_to_be_quiet(
    changes: dict[str, object], inside: InsideUse | None, now: datetime, expected: Unused | str | None
) -> None:
    assert programs_inside(reservation(**changes), inside, now, GAP) == expected


OURS, OTHER, UNKNOWN = GpuProcess(7, 1, True), GpuProcess(8, 1, False), GpuProcess(9, 1, None)


@pytest.mark.parametrize(
    ("utilisation", "processes", "why"),
    [
        (0.0, (OTHER,), ""),
        (0.0, None, ""),
        (0.9, (OURS,), ""),
        (0.9, (OURS, OTHER), "GPU 0 is busy"),
        (0.9, (UNKNOWN,), "GPU 0 is busy"),
        (0.9, (), "GPU 0 is busy"),
        (0.9, None, "GPU 0 is busy"),
        (None, (OTHER,), "GPU 0 is busy"),
    ],
)
def test_a_device_that_may_compute_for_a_program_without_ray_is_in_use(
    utilisation: float | None, processes: tuple[GpuProcess, ...] | None, why: str
) -> None:
    device = replace(gpu(utilisation), processes=processes)
    seen = snapshot(node(gpus=1), measured=reading(device))
    assert why_devices_used(reservation(kind="gpu"), seen) == why
    assert why_devices_used(lease(), seen) == ""


def test_devices_without_a_measurement_are_in_use() -> None:
    held = reservation(kind="gpu")
    assert why_devices_used(held, snapshot(node(gpus=1), measured=reading())) == "its GPUs are not measured"
    assert why_devices_used(held, snapshot(node(gpus=1), stale=True)) == "its node has no recent measurement"


# -- a reservation that is occupied ------------------------------------------------------------------------------

HOLDER = Occupant(7, (1,))


def gpu(utilisation: float | None) -> GpuReading:
    return GpuReading(0, "GPU-1", "H200", utilisation, 140 * GB, 100 * GB)


def measured(*gpus: float | None, **workers: float) -> NodeSnapshot:
    """`_7=0.5`: the worker with pid 7 used half a core."""
    used = tuple(WorkerUse(int(pid.removeprefix("_")), cores) for pid, cores in workers.items())
    found = reading(*map(gpu, gpus))
    return snapshot(node(gpus=2), measured=type(found)(found.host, found.own, found.gpus, None, used))


def test_a_gpu_that_computes_nothing_for_a_process_that_waits_is_unused() -> None:
    assert why_occupied([HOLDER], [HOLDER], measured(0.9, 0.0, _7=0.01, _8=1.0)) == ""


@pytest.mark.parametrize(
    ("now", "before", "seen", "why"),
    [
        ([HOLDER], [HOLDER], measured(0.0, 0.3, _7=0.0), "GPU 1 is busy"),
        ([HOLDER], [HOLDER], measured(0.0, None, _7=0.0), "GPU 1 is busy"),
        ([HOLDER], [HOLDER], measured(0.0, _7=0.0), "GPU 1 is busy"),
        ([HOLDER], [HOLDER], measured(0.0, 0.0, _7=0.4), "process 7 is busy"),
        ([HOLDER], [HOLDER], measured(0.0, 0.0, _8=0.0), "process 7 is busy"),
        ([HOLDER], [], measured(0.0, 0.0, _7=0.0), "process 7 began there"),
        ([HOLDER], [Occupant(7, (0,))], measured(0.0, 0.0, _7=0.0), "process 7 began there"),
        ([HOLDER, Occupant(8)], [HOLDER, Occupant(8)], measured(0.0, 0.0, _7=0.0, _8=0.9), "process 8 is busy"),
        ([], [], measured(0.0, 0.0), "a process that is not known holds a part of it"),
        ([HOLDER], [HOLDER], None, "its node has no recent measurement"),
        ([HOLDER], [HOLDER], snapshot(node(), measured=None), "its node has no recent measurement"),
        ([HOLDER], [HOLDER], snapshot(node(), stale=True), "its node has no recent measurement"),
    ],
)
def test_what_is_busy_or_not_known_is_in_use(
    now: list[Occupant], before: list[Occupant], seen: NodeSnapshot | None, why: str
) -> None:
    assert why_occupied(now, before, seen) == why


# -- a transfer --------------------------------------------------------------------------------------------------

OWN = amounts(cpu=4, memory=16)


@pytest.mark.parametrize(
    ("kind", "used", "own_cpu", "own_memory", "why"),
    [
        ("cpu", amounts(cpu=4), 0.5, 2, ""),
        ("cpu", amounts(cpu=4.5), 0.5, 2, "gpu-master has given out 4.5 CPUs, more than its own 4 CPUs"),
        ("cpu", amounts(cpu=1), 4.6, 2, "gpu-master uses 4.6 CPUs, more than its own 4 CPUs"),
        ("memory", amounts(cpu=9, memory=2), 9.0, 8, ""),
        ("memory", amounts(), 0.5, 17, "gpu-master uses 17 GB of memory, more than its own 16 GB of memory"),
        ("cpu", None, 0.5, 2, "its target has no recent measurement"),
    ],
)
def test_a_transfer_is_unused_while_its_target_needs_no_more_than_its_own(
    kind: str, used: ResourceVector | None, own_cpu: float, own_memory: int, why: str
) -> None:
    seen = snapshot(node("gpu-master"), measured=reading(own_cpu=own_cpu, own_memory=own_memory * GB))
    assert why_borrowed(lease(kind=kind), used, OWN, seen) == why


def test_a_transfer_to_a_node_with_a_silent_probe_is_in_use() -> None:
    assert why_borrowed(lease(), amounts(cpu=0), OWN, snapshot(node("gpu-master"), stale=True))


# -- the end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("until", "ending", "is_taken"),
    [
        (SOON, FOR_IDLE, True),
        (SOON - timedelta(seconds=1), FOR_IDLE, False),
        (SOON, Ending(EndCause.PREEMPTED, "ana"), False),
    ],
)
def test_an_idle_lease_is_taken_only_when_a_sample_from_after_the_deadline_shows_no_use(
    until: datetime, ending: Ending, is_taken: bool
) -> None:
    asked = reservation(notice=Notice(1, "", NOON, SOON), ending=ending)
    unused = Unused(NOON - AFTER, until)
    assert is_due(asked, unused, AFTER) is is_taken
    assert not is_due(asked, None, AFTER)
    assert not is_due(asked, Unused(NOON, until), AFTER)
