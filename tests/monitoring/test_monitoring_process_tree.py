"""Which processes are a node's, and how much CPU time they took: nothing twice, nothing negative, no earlier use."""

import os
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_grid.monitoring.on_node_probe.files import numbers, read_text
from distributed_grid.monitoring.on_node_probe.own import Copies
from distributed_grid.monitoring.on_node_probe.probe import WINDOW_S, Rate
from distributed_grid.monitoring.on_node_probe.process_tree import CpuTime, Process, TreeRates, parse_stat, tree

RAYLET = 10


def process(
    pid: int, parent: int = RAYLET, own: int = 0, reaped: int = 0, born: int = 0, copy: bool = False
) -> Process:
    return Process(pid, parent, born, own, reaped, copy)


def by_pid(*processes: Process) -> dict[int, Process]:
    return {one.pid: one for one in processes}


def test_a_process_may_call_itself_anything() -> None:
    text = "4242 (ray::f) (x) S 10 1 1 0 -1 4194368 9 0 0 0 150 25 7 3 35 15 20 0 987654 100 50 1 1 0"

    assert parse_stat(text) == Process(4242, 10, 987654, 175, 10, True)


def test_our_own_stat_can_be_read() -> None:
    me = parse_stat(read_text("/proc/self/stat") or "")

    assert (me.pid, me.parent) == (os.getpid(), os.getppid())


def test_a_tree_is_the_process_and_all_below_it() -> None:
    everything = by_pid(
        process(1, 0), process(RAYLET, 1), process(11), process(12, 11), process(20, 1), process(21, 20)
    )

    assert set(tree(RAYLET, everything)) == {RAYLET, 11, 12}


def test_what_outlives_its_parent_stays_with_the_node_but_a_pid_that_came_back_does_not() -> None:
    orphan, child_of_it, other = process(12, 1, born=5), process(13, 12), process(14, 1, born=99)

    found = tree(RAYLET, by_pid(process(RAYLET, 1), orphan, child_of_it, other), known=[(12, 5), (14, 6)])

    assert set(found) == {RAYLET, 12, 13}


def test_what_was_used_before_the_first_look_is_not_counted() -> None:
    cpu = CpuTime([process(11, own=500)], at=100)

    cpu.look_at_all([process(11, own=530)], at=200)

    assert cpu.ticks == 30


def test_a_new_process_counts_from_its_birth() -> None:
    cpu = CpuTime([], at=100)

    cpu.look_at_all([process(11, own=40, reaped=3, born=150)], at=200)

    assert cpu.ticks == 43


def test_a_process_that_came_over_from_elsewhere_counts_from_then_on() -> None:
    cpu = CpuTime([], at=100)

    cpu.look_at_all([process(11, own=4000, reaped=300, born=7)], at=200)
    cpu.look_at_all([process(11, own=4010, reaped=301, born=7)], at=300)

    assert cpu.ticks == 11


def test_what_a_child_used_until_it_ended_is_counted_once() -> None:
    cpu = CpuTime([process(11, own=5), process(12, 11, own=100, reaped=20)], at=100)
    cpu.look_at_all([process(11, own=5), process(12, 11, own=150, reaped=20)], at=200)
    assert cpu.ticks == 50

    # It used another 30 and ended; its parent, which waited for it, used 1 itself.
    cpu.look_at_all([process(11, own=6, reaped=150 + 20 + 30)], at=300)

    assert cpu.ticks == 50 + 30 + 1


def test_a_whole_branch_that_ended_is_counted_once() -> None:
    cpu = CpuTime([process(11), process(12, 11, own=10), process(13, 12, own=20)], at=100)

    cpu.look_at_all([process(11, reaped=10 + 5 + 20 + 7)], at=200)

    assert cpu.ticks == 5 + 7


def test_children_that_came_and_went_between_two_looks_are_counted() -> None:
    cpu = CpuTime([process(11)], at=100)

    cpu.look_at_all([process(11, reaped=77)], at=200)

    assert cpu.ticks == 77


def test_a_parent_that_waits_for_no_child_makes_nothing_negative() -> None:
    cpu = CpuTime([process(RAYLET, 1), process(11, own=900)], at=100)

    cpu.look_at_all([process(RAYLET, 1, own=2)], at=200)

    assert cpu.ticks == 2


def test_a_look_in_between_saves_what_such_a_child_used_at_last() -> None:
    cpu = CpuTime([process(RAYLET, 1), process(11, own=900)], at=100)

    cpu.look([process(11, own=950), process(12, own=30, born=150)])
    cpu.look([process(11, own=960)])
    cpu.look_at_all([process(RAYLET, 1)], at=200)

    assert cpu.ticks == 60 + 30


def test_a_look_in_between_does_not_count_what_ended_children_used_twice() -> None:
    cpu = CpuTime([process(11), process(12, 11, own=100)], at=100)

    cpu.look([process(11, own=4, reaped=110)])
    cpu.look_at_all([process(11, own=5, reaped=110)], at=200)

    assert cpu.ticks == 5 + 10


def test_a_pid_that_is_used_again_is_another_process() -> None:
    cpu = CpuTime([process(11, own=1000, born=1)], at=100)

    cpu.look_at_all([process(11, own=20, born=150)], at=200)

    assert cpu.ticks == 20


class Machine:
    """Processes that live, work, have children and end; all wait for their children, as a shell does."""

    def __init__(self) -> None:
        self.living = {RAYLET: process(RAYLET, 1)}
        self.pids = count(RAYLET + 1)
        self.used = 0
        self.now = 0

    def work(self, pid: int, ticks: int) -> None:
        self.living[pid] = self.living[pid]._replace(own=self.living[pid].own + ticks)
        self.used += ticks

    def fork(self, pid: int) -> None:
        new = next(self.pids)
        self.living[new] = process(new, pid, born=self.now)

    def end(self, pid: int) -> None:
        if pid == RAYLET:
            return
        for child in [one.pid for one in self.living.values() if one.parent == pid]:
            self.end(child)
        gone = self.living.pop(pid)
        heir = self.living[gone.parent]
        self.living[heir.pid] = heir._replace(reaped=heir.reaped + gone.own + gone.reaped)


@given(
    st.lists(
        st.tuples(st.sampled_from(["work", "fork", "end", "look", "glance"]), st.integers(0, 50), st.integers(0, 9)),
        max_size=60,
    )
)
def test_whatever_processes_do_exactly_their_work_is_counted(steps: list[tuple[str, int, int]]) -> None:
    machine = Machine()
    cpu = CpuTime(machine.living.values(), at=0)
    for what, which, ticks in steps:
        pid = sorted(machine.living)[which % len(machine.living)]
        machine.now += 1
        if what == "work":
            machine.work(pid, ticks)
        elif what == "fork":
            machine.fork(pid)
        elif what == "end":
            machine.end(pid)
        elif what == "look":
            before = cpu.ticks
            cpu.look_at_all(machine.living.values(), machine.now)
            assert cpu.ticks >= before
        else:
            cpu.look([one for one in machine.living.values() if one.parent == RAYLET])

    cpu.look_at_all(machine.living.values(), machine.now)

    assert cpu.ticks == machine.used


def test_cores_are_seconds_of_work_over_seconds() -> None:
    rate = Rate()
    rate.add(100.0, now=10.0)
    assert rate.cores is None

    rate.add(115.0, now=20.0)

    assert rate.cores == 1.5


@pytest.mark.parametrize(
    ("used", "after", "counter"), [(101.0, WINDOW_S / 2, "a"), (900.0, 10.0, "another"), (3.0, 10.0, "a")]
)
def test_too_soon_or_by_another_counter_what_was_known_stays(used: float, after: float, counter: str) -> None:
    rate = Rate()
    rate.add(98.0, now=0.0, counter="a")
    rate.add(100.0, now=1.0, counter="a")

    rate.add(used, now=1.0 + after, counter=counter)

    assert rate.cores == 2.0


def test_numbers_with_units_are_bytes() -> None:
    assert numbers("Name:\tx\nRssAnon:\t  12 kB\nThreads:\t30\nusage_usec 5\n") == {
        "RssAnon": 12288,
        "Threads": 30,
        "usage_usec": 5,
    }


MB = 10**6


def rollup(fair_part: float, asked: list[str]) -> "object":
    def read(path: str) -> str:
        asked.append(path)
        return f"Rss: 100 kB\nAnonymous: 1000 kB\nPss_Anon: {round(1000 * fair_part)} kB\n"

    return read


def test_only_families_are_asked_for_their_part() -> None:
    asked: list[str] = []
    copies = Copies(rollup(0.5, asked), now=0.0)
    alone, parent, copy = process(11), process(12), process(13, 12, copy=True)

    parts = copies.parts([alone, parent, copy], {11: MB, 12: MB, 13: MB}, now=10.0)

    assert parts == {11: 1.0, 12: 0.5, 13: 0.5}
    assert sorted(asked) == ["/proc/12/smaps_rollup", "/proc/13/smaps_rollup"]


def test_those_too_large_to_be_asked_count_as_what_they_began_as() -> None:
    asked: list[str] = []
    copies = Copies(rollup(0.5, asked), now=0.0)

    parts = copies.parts([process(12), process(13, 12, copy=True)], {12: 50_000 * MB, 13: 50_000 * MB}, now=10.0)

    assert parts == {12: 1.0, 13: 0.0}
    assert asked == []


# -- how busy each worker is -------------------------------------------------------------------------------------


def test_a_worker_is_as_busy_as_all_that_it_started() -> None:
    rates = TreeRates(shortest=25)
    begin = by_pid(process(RAYLET, 1), process(20), process(21, 20, own=5), process(30, own=9))
    assert rates.look(RAYLET, begin, at=1000) == {}, "it was not there before"

    later = by_pid(process(RAYLET, 1, own=90), process(20, own=1), process(21, 20, own=54), process(30, own=9))
    assert rates.look(RAYLET, later, at=1100) == {20: 0.5, 30: 0.0}


def test_work_of_an_ended_child_counts_with_the_worker_that_waited_for_it() -> None:
    rates = TreeRates(shortest=25)
    rates.look(RAYLET, by_pid(process(20), process(21, 20, own=5)), at=1000)
    assert rates.look(RAYLET, by_pid(process(20, reaped=40)), at=1100) == {20: 0.4}


def test_a_new_worker_and_one_with_a_used_pid_are_left_out() -> None:
    rates = TreeRates(shortest=25)
    rates.look(RAYLET, by_pid(process(20)), at=1000)
    assert rates.look(RAYLET, by_pid(process(20, born=1050), process(21)), at=1100) == {}


def test_what_outlived_its_worker_counts_with_none() -> None:
    rates = TreeRates(shortest=25)
    rates.look(RAYLET, by_pid(process(20), process(21, 20)), at=1000)
    assert rates.look(RAYLET, by_pid(process(20), process(21, 1, own=80)), at=1100) == {20: 0.0}


def test_a_look_too_soon_changes_nothing() -> None:
    rates = TreeRates(shortest=25)
    rates.look(RAYLET, by_pid(process(20)), at=1000)
    known = rates.look(RAYLET, by_pid(process(20, own=50)), at=1100)
    assert rates.look(RAYLET, by_pid(process(20, own=70)), at=1110) == known == {20: 0.5}
    assert rates.look(RAYLET, by_pid(process(20, own=70)), at=1200) == {20: 0.2}


@given(st.lists(st.lists(st.tuples(st.integers(2, 9), st.integers(2, 9), st.integers(0, 50)), max_size=8), max_size=6))
def test_no_rate_is_negative_whatever_the_kernel_shows(looks: list[list[tuple[int, int, int]]]) -> None:
    rates = TreeRates(shortest=0)
    for at, shown in enumerate(looks, start=1):
        found = rates.look(2, by_pid(*(process(pid, parent, own) for pid, parent, own in shown)), at=at * 100)
        assert all(rate >= 0 for rate in found.values())
