"""Transfer: the capacity itself moves, and Ray's own scheduler sees it."""

import pytest
import ray
from live_grid import BIG_AND_SMALL, GB, LiveGrid, hold_until, is_pending, on, until, where_am_i

from distributed_grid.errors import NoCapacity, SourceNotFound

pytestmark = pytest.mark.cluster

CONFIG = BIG_AND_SMALL


def test_a_task_too_big_for_the_head_waits_and_runs_once_the_boost_is_there(grid: LiveGrid) -> None:
    big = where_am_i.options(**on("head", num_cpus=5)).remote()
    assert is_pending(big, 0.3)

    boost = grid.boost("head", "cpu", 3)

    assert boost["state"] == "active"
    assert boost["delivery"] == "transfer"
    assert boost["source_node"] == "lender"
    assert ray.get(big, timeout=60) == "head"
    grid.total_is("head", "CPU", 5.0)
    grid.total_is("lender", "CPU", 5.0)
    assert grid.release(boost, wait_seconds=20)["state"] == "released"
    until(grid.is_at_base, 5, "every node exactly at base")


def test_memory_moves_like_cpus(grid: LiveGrid) -> None:
    big = where_am_i.options(**on("head", num_cpus=0, memory=7 * GB)).remote()
    assert is_pending(big, 0.3)

    boost = grid.boost("head", "memory", 4)

    assert ray.get(big, timeout=60) == "head"
    grid.total_is("head", "memory", 8.0 * GB)
    grid.total_is("lender", "memory", 12.0 * GB)
    assert grid.release(boost, wait_seconds=20)["state"] == "released"
    until(grid.is_at_base, 5)


def test_a_custom_resource_moves_to_a_node_that_had_none(grid: LiveGrid) -> None:
    odd = where_am_i.options(**on("head", num_cpus=0, resources={"widget": 2})).remote()
    assert is_pending(odd, 0.3)

    boost = grid.boost("head", "widget", 2.5)

    assert boost["amount"] == 2.5
    assert ray.get(odd, timeout=60) == "head"
    grid.total_is("head", "widget", 2.5)
    grid.total_is("lender", "widget", 3.5)
    assert grid.release(boost, wait_seconds=20)["state"] == "released"
    until(lambda: "widget" not in grid.totals("head"), 5, "the custom resource gone from the head")
    until(grid.is_at_base, 5)


def test_the_amounts_are_shown_on_the_nodes_while_they_are_lent(grid: LiveGrid) -> None:
    boost = grid.boost("head", "cpu", 2)
    grid.total_is("head", "grid:borrowed:cpu", 2.0)
    grid.total_is("lender", "grid:lent:cpu", 2.0)

    grid.release(boost)

    until(grid.is_at_base, 5, "no marker left")


def test_a_busy_source_refuses_with_a_reason_per_node_and_nothing_changes(grid: LiveGrid, tmp_path) -> None:
    stop = tmp_path / "stop"
    busy = hold_until.options(**on("lender", num_cpus=7)).remote(str(stop))
    until(lambda: grid.free("lender").get("CPU", 0.0) == 1.0, 15, "the lender busy")

    def refusal() -> tuple[NoCapacity, str]:
        with pytest.raises(NoCapacity) as refused:
            grid.boost("head", "cpu", 4)
        return refused.value, "\n".join(refused.value.because)

    try:
        # The controller may see a moment later than we that it is busy.
        until(lambda: "lender: 1 of 8 CPUs free, 4 requested" in refusal()[1], 15, "the lender known to be busy")
        refused, reasons = refusal()
        assert refused.message == "No nodes have sufficient available resources"
        assert "small: 1 of 1 CPU free, 4 requested" in reasons
        assert "head: it is the target" in reasons
        assert refused.try_next is not None and "grid boost request head cpu 2" in refused.try_next
        until(grid.is_at_base, 5)
    finally:
        stop.touch()
        ray.get(busy)


def test_a_lender_is_never_taken_below_its_limit(grid: LiveGrid) -> None:
    grid.settled()
    first = grid.boost("head", "cpu", 4)

    with pytest.raises(NoCapacity) as refused:
        grid.boost("head", "cpu", 4)

    assert "lender: 4 of at most 6 CPUs lent, 4 requested [LendingLimitReached]" in refused.value.because
    assert grid.state(first) == "active"
    grid.total_is("lender", "CPU", 4.0)


def test_a_named_source_is_honoured_or_refused_never_replaced(grid: LiveGrid) -> None:
    grid.settled()
    assert grid.boost("head", "cpu", 1, source_node="small")["source_node"] == "small"

    with pytest.raises(NoCapacity) as refused:
        grid.boost("head", "cpu", 1, source_node="small")

    assert [line.split(":")[0] for line in refused.value.because][1:] == ["head", "small"], "after why it waits"
    with pytest.raises(SourceNotFound):
        grid.boost("head", "cpu", 1, source_node="nowhere")


def test_several_boosts_add_up(grid: LiveGrid) -> None:
    grid.settled()
    boosts = [grid.boost("head", "cpu", amount) for amount in (1, 1.5, 0.25)]
    grid.total_is("head", "CPU", 4.75)

    grid.release(boosts[1])

    grid.total_is("head", "CPU", 3.25)


def test_a_request_can_wait_until_capacity_comes_back(grid: LiveGrid, tmp_path) -> None:
    grid.settled()
    stop = tmp_path / "stop"
    busy = hold_until.options(**on("lender", num_cpus=8)).remote(str(stop))
    until(lambda: grid.free("lender").get("CPU", 0.0) == 0.0, 15)
    grid_request = grid.cli  # the wait happens in the controller, so the command line is the honest client
    import threading

    answers = []
    waiting = threading.Thread(
        target=lambda: answers.append(grid_request("boost", "request", "head", "cpu", "4", "--wait", "30", "--json"))
    )
    waiting.start()
    until(lambda: not answers and waiting.is_alive(), 1)

    stop.touch()
    waiting.join(40)

    assert answers[0].returncode == 0, answers[0].stderr
    grid.total_is("head", "CPU", 6.0)
    ray.get(busy)


@pytest.mark.parametrize("amount", [0.01, 0.1, 0.3, 1.7, 2.0001, 0.0001])
def test_fractions_arrive_exactly(grid: LiveGrid, amount: float) -> None:
    """Ray cuts differences off after four digits, so 4 - 0.01 would become 3.9901; its view may do so still."""
    grid.settled()
    boost = grid.boost("head", "cpu", amount)

    until(lambda: grid.totals("head")["CPU"] == pytest.approx(2 + amount, abs=1.1e-4), 5)
    until(lambda: grid.totals("lender")["CPU"] == pytest.approx(8 - amount, abs=1.1e-4), 5)
    assert grid.totals("head")["CPU"] + grid.totals("lender")["CPU"] <= 10.0
    assert grid.release(boost, wait_seconds=20)["state"] == "released"
    until(grid.is_at_base, 5)


def test_a_client_that_stops_waiting_gets_nothing(grid: LiveGrid, tmp_path) -> None:
    import signal
    import subprocess

    from live_grid import GRID

    grid.settled()
    stop = tmp_path / "stop"
    busy = hold_until.options(**on("lender", num_cpus=8)).remote(str(stop))
    until(lambda: grid.free("lender").get("CPU", 0.0) == 0.0, 15)
    waiting = subprocess.Popen(
        [GRID, "boost", "request", "head", "cpu", "4", "--wait", "60"], env=grid.env, stderr=subprocess.PIPE, text=True
    )
    waiting.stderr.readline()  # it says that it waits
    until(lambda: waiting.poll() is None, 1)

    waiting.send_signal(signal.SIGINT)

    assert waiting.wait(60) == 130
    until(lambda: not grid.client.queue()["requests"], 5, "no request waits any more")
    stop.touch()
    ray.get(busy)
    grid.settled()
    assert grid.client.boost_status()["boosts"] == []
    until(grid.is_at_base, 5)
