"""Release while the target still uses what it borrowed: nothing is killed unless that was agreed."""

import time
from pathlib import Path

import pytest
import ray
from live_grid import ONE_LENDER, LiveGrid, hold_until, on, until

pytestmark = pytest.mark.cluster

CONFIG = ONE_LENDER


@ray.remote(max_retries=-1)
def a_moment(seconds: float) -> str:
    time.sleep(seconds)
    me = ray.get_runtime_context().get_node_id()
    return next(n["Labels"]["grid/name"] for n in ray.nodes() if n["NodeID"] == me)


@ray.remote(max_retries=-1)
def note_and_hold(starts: str, number: int, end: str) -> int:
    """Note that it began, and go on until the file `end` is there."""
    with open(starts, "a") as file:  # noqa: PTH123
        file.write(f"{number}\n")
    while not Path(end).exists():
        time.sleep(0.02)
    return number


def test_borrowed_cpus_in_use_come_back_when_the_work_ends(grid: LiveGrid, tmp_path) -> None:
    boost = grid.boost("head", "cpu", 2)
    stop = tmp_path / "stop"
    work = hold_until.options(**on("head", num_cpus=4)).remote(str(stop))
    until(lambda: grid.free("head").get("CPU", 0.0) == 0.0, 15, "the work running")

    assert grid.release(boost, wait_seconds=0.3)["state"] == "releasing"

    until(lambda: any("hold_until" in w for w in grid.shown(boost)["warnings"]), 10, "it says who holds it")
    assert grid.state(boost) == "releasing"
    grid.total_is("head", "CPU", 4.0)
    grid.total_is("lender", "CPU", 4.0)  # no node gets what the head still has
    stop.touch()
    assert ray.get(work, timeout=60) == "head"
    until(lambda: grid.state(boost) == "released", 10)
    until(grid.is_at_base, 5)


def test_the_idle_part_is_returned_at_once_and_the_rest_later(grid: LiveGrid, tmp_path) -> None:
    boost = grid.boost("head", "cpu", 2)
    stop = tmp_path / "stop"
    work = hold_until.options(**on("head", num_cpus=3)).remote(str(stop))
    until(lambda: grid.free("head").get("CPU", 0.0) == 1.0, 15)

    grid.release(boost, wait_seconds=0)

    grid.total_is("head", "CPU", 3.0)
    grid.total_is("lender", "CPU", 5.0)
    stop.touch()
    ray.get(work)
    until(lambda: grid.state(boost) == "released", 10)


def test_hold_waits_for_a_queue_that_keeps_it_busy_and_says_who_holds_it(grid: LiveGrid, tmp_path) -> None:
    boost = grid.boost("head", "cpu", 2, on_grace_end="hold")
    stop = tmp_path / "stop"
    queue = [hold_until.options(**on("head", num_cpus=1)).remote(str(stop)) for _ in range(8)]
    until(lambda: grid.free("head").get("CPU", 0.0) == 0.0, 15)

    try:
        grid.release(boost, grace_seconds=0.5, wait_seconds=0)

        def held() -> list[str]:
            return [e["message"] for e in grid.events("held") if e["boost_id"] == boost["boost_id"]]

        until(held, 20, "an event tells who holds it")
        time.sleep(5)  # it looks every two seconds
        [reported] = held()
        assert "hold_until" in reported
        assert any("hold_until" in w for w in grid.shown(boost)["warnings"])
        assert grid.state(boost) == "releasing"
        assert not grid.events("killed")
        grid.total_is("head", "CPU", 4.0)
    finally:
        stop.touch()
    assert set(ray.get(queue, timeout=60)) == {"head"}
    until(lambda: grid.state(boost) == "released", 10)


def test_drain_gets_it_back_from_a_queue_without_killing_anything(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 2, on_grace_end="drain")
    queue = [a_moment.options(**on("head", num_cpus=1)).remote(0.4) for _ in range(200)]
    until(lambda: grid.free("head").get("CPU", 0.0) == 0.0, 15)

    grid.release(boost, grace_seconds=0, wait_seconds=0)

    until(lambda: grid.state(boost) == "released", 15, "the capacity back")
    assert ray.wait(queue, num_returns=len(queue), timeout=0)[1], "the queue had run dry: nothing was shown"
    assert not grid.events("killed")
    grid.total_is("head", "CPU", 2.0)
    grid.total_is("lender", "CPU", 6.0)
    for task in queue:
        ray.cancel(task)


def test_kill_gets_it_back_at_the_end_of_the_grace_period_and_the_tasks_finish_elsewhere(
    grid: LiveGrid, tmp_path
) -> None:
    grid.settled()
    boost = grid.boost("head", "cpu", 2, on_grace_end="kill")
    starts, end = tmp_path / "starts", tmp_path / "end"
    queue = [note_and_hold.remote(str(starts), number, str(end)) for number in range(12)]  # 4 + 4 run, 4 wait
    until(lambda: all(grid.free(n).get("CPU", 0.0) == 0.0 for n in grid.ids), 20, "both nodes full")
    until(lambda: starts.exists() and len(starts.read_text().split()) == 8, 20, "eight began")

    grid.release(boost, grace_seconds=0.5, wait_seconds=0)

    until(lambda: grid.events("killed"), 10, "something was killed")
    until(lambda: grid.state(boost) == "released", 20, "the capacity back")
    grid.total_is("head", "CPU", 2.0)
    grid.total_is("lender", "CPU", 6.0)
    end.touch()
    assert ray.get(queue, timeout=60) == list(range(12))  # every task finished, the killed ones too
    began = [int(line) for line in starts.read_text().split()]
    assert len(began) > len(set(began)) == 12, "a killed task ran again"
    grid.settled()
