"""Roles that grow and shrink on a real cluster, while they are called and while something fails."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
from hook_server import HookServer
from live_grid import NOTICE_SOON, TWO_LENDERS, LiveGrid, until
from live_roles import (
    actors,
    free,
    free_cpus,
    grid_is_found,  # noqa: F401 - a fixture for all tests here
    nothing_is_left_of,
    shared_runs,  # noqa: F401 - a fixture
    shown,
    told,
)
from role_classes import Held, Pool, Refuses, Shy, Teller, small

from distributed_grid.errors import CannotScale
from distributed_grid.roles import Run, Scaling, Workload, launch

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON

ONE_AT_FIRST = {"count": (1, 2), "scaling": Scaling(lambda: 0.5, 1, 0)}


@pytest.fixture
def run(grid: LiveGrid, runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One for all. Tests give back all leases in the end, so it has groups of its own."""
    if "sizes" not in runs:
        hold = str(tmp_path_factory.mktemp("held") / "hold")
        roles = (
            small("refuser", Refuses, config="1", failure_policy="fail", **ONE_AT_FIRST),
            small("worker", Teller, count=(1, 3)),
            small("gang", Held, config=hold, count=(1, 2), failure_policy="restart_gang"),
            small("shy", Shy, **ONE_AT_FIRST),
        )
        runs["sizes"] = launch(Workload("sizes", roles), leases=False, wait_s=60)
    return runs["sizes"]


def test_a_member_that_cannot_start_is_told_of_and_harms_no_other(run: Run) -> None:
    before = run["refuser"].call("pid")

    with pytest.raises(CannotScale, match="1 of 2 members: the added members did not start") as caught:
        run.scale("refuser", 2)

    assert "rank 1 cannot start" in caught.value.because[0] and "in __init__" in caught.value.because[0]
    assert run["refuser"].call("pid") == before and run["worker"][0].call("count", 0) == 0
    until(lambda: run.state == "running", what="all is well")
    until(lambda: actors("sizes/refuser") == ["sizes/refuser/0"], what="nothing is left of it")


def test_a_removed_member_finishes_its_calls_and_an_added_one_takes_part(run: Run, tmp_path: Path) -> None:
    def maps(folder: str, shards: int) -> list[str]:
        (tmp_path / folder).mkdir()
        return run["worker"].map("begin_in", [str(tmp_path / folder)] * shards)

    def begun(folder: str) -> set[str]:
        return {path.name for path in (tmp_path / folder).glob("*")}

    with ThreadPoolExecutor(2) as threads:
        few = threads.submit(maps, "few", 5)
        until(lambda: begun("few") == {"0", "1", "2"}, what="all are busy")
        run.scale("worker", 1)
        assert run["worker"].size == 1 and shown(run, "worker", 2)["state"] == "leaving"
        (tmp_path / "few" / "end").touch()
        assert sorted(few.result(60)) == ["0", "0", "0", "1", "2"]
        until(lambda: actors("sizes/worker") == ["sizes/worker/0"], what="they end when they are through")

        more = threads.submit(maps, "more", 2)
        until(lambda: begun("more") == {"0"}, what="the only one is busy")
        run.scale("worker", 2)
        until(lambda: begun("more") == {"0", "1"}, what="the new one has a shard")
        (tmp_path / "more" / "end").touch()
        assert sorted(more.result(60)) == ["0", "1"]


def test_a_gang_can_be_called_again_though_it_was_scaled_down_while_it_started(run: Run) -> None:
    hold = Path(run.parts.spec("gang").config)
    hold.touch()
    try:
        os.kill(run["gang"][0].call("pid"), signal.SIGKILL)
        until(lambda: shown(run, "gang", 0)["restarts"] == 1, what="the gang restarts")
        until(lambda: shown(run, "gang", 0)["state"] == "up", what="one of them is up")

        run.scale("gang", 1)
        assert len(run["gang"].options(deadline_s=60).call("pid")) == 1
    finally:
        hold.unlink()


def test_an_introduction_that_fails_is_reported(run: Run) -> None:
    run.scale("shy", 2)

    until(lambda: "shy 0 failed in on_peers(): KeyError: 'company'" in told(run), what="it is told")
    assert len(run["shy"].call("pid")) == 2


def test_a_role_that_follows_its_queue_shrinks_under_a_map_and_loses_nothing(grid: LiveGrid, tmp_path: Path) -> None:
    """One call each is little to do; so they go, though each has one."""
    follows = Scaling("queue", up_at=4, down_at=1, stable_seconds=0, cooldown_seconds=1, every_seconds=0.1)
    workload = Workload("shrinks", (small("worker", Teller, count=(1, 3), scaling=follows),))
    with launch(workload, leases=False, wait_s=60) as shrinks, ThreadPoolExecutor(1) as thread:
        shrinks.scale("worker", 3, wait_s=0)
        found = thread.submit(shrinks["worker"].map, "begin_in", [str(tmp_path)] * 9)
        until(lambda: "was scaled down to 1" in told(shrinks), what="all but one are to go")
        (tmp_path / "end").touch()

        assert len(found.result(60)) == 9


def test_a_role_follows_its_signal_and_borrows_what_it_lacks(grid: LiveGrid, run: Run) -> None:
    before = free(grid)
    signal_is = [1.0]
    follows = Scaling(lambda: signal_is[0], 1, 0, stable_seconds=0, cooldown_seconds=0, every_seconds=0.1, boost=True)
    worker = small("follower", Teller, cpus=2, count=(1, 2), node_affinity=["one"], scaling=follows)
    full = small("full", Teller, cpus=free_cpus(grid, "one") - 2, node_affinity=["one"])
    with launch(Workload("follows", (worker, full)), wait_s=60) as following:
        until(lambda: following["follower"].size == 2, what="there is one more, though its node was full")
        assert following["follower"].call("count") == [1, 1]
        assert {one["node"] for one in following["follower"].call("who")} == {grid.ids["one"]}
        assert grid.totals("one")["CPU"] > grid.base["one"]["CPU"]

        signal_is[0] = 0.0
        until(lambda: following["follower"].size == 1, what="there is one less")
        until(grid.is_at_base, what="what was borrowed is returned")
        until(lambda: "is returned" in told(following), what="it is told")
        assert "from 1 to 2" in told(following) and "borrows" in told(following)
    nothing_is_left_of(grid, "follows", before)


def test_roles_follow_their_queue_what_another_role_says_and_a_prometheus_server(run: Run, tmp_path: Path) -> None:
    at_once = {"stable_seconds": 0, "cooldown_seconds": 0, "every_seconds": 0.1}
    load = {"resultType": "vector", "result": [{"metric": {}, "value": [1.0, "0"]}]}
    with HookServer({"status": "success", "data": load}) as server:
        metrics = {"prometheus": f"http://127.0.0.1:{server.port}", "query": "sum(load)"}
        roles = (
            small("busy", Teller, count=(1, 2), scaling=Scaling("queue", 2, 0.5, **at_once)),
            small("filler", Teller, count=(1, 2), scaling=Scaling({"role": "pool", "method": "size"}, 2, 5, **at_once)),
            small("served", Teller, count=(1, 2), scaling=Scaling(metrics, 10, 1, **at_once)),
            small("pool", Pool),
        )
        with launch(Workload("signals", roles), leases=False) as following:
            sizes = lambda: {role: following[role].size for role in ("busy", "filler", "served")}  # noqa: E731
            waits = [following["busy"][0].submit("wait_for", str(tmp_path / "done")) for _ in range(6)]
            load["result"][0]["value"][1] = "10"
            until(lambda: sizes() == {"busy": 2, "filler": 2, "served": 2}, what="each has one more")

            (tmp_path / "done").touch()
            assert ray.get(waits) == ["0"] * 6
            for item in range(5):
                following["pool"][0].call("put", item)
            load["result"][0]["value"][1] = "1"
            until(lambda: sizes() == {"busy": 1, "filler": 1, "served": 1}, what="each has one less")
            assert [following[role].call("count") for role in ("busy", "filler", "served")] == [[1]] * 3
