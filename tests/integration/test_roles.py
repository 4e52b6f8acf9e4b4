"""Whole workloads on a real cluster: Ray is asked, not grid, whether they are there and whether they are gone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from live_grid import NOTICE_SOON, TWO_LENDERS, LiveGrid, until
from live_roles import (
    actors,
    free,
    free_cpus,
    grid_is_found,  # noqa: F401 - a fixture for all tests here
    nothing_is_left_of,
    restarts,
    shared_runs,  # noqa: F401 - a fixture
    shown,
    told,
)
from role_classes import Hangs, Pool, Refuses, Sync, Teller, Trainer, Worker, small

from distributed_grid.errors import (
    CallTimedOut,
    CannotScale,
    DoesNotFit,
    GridError,
    MemberFailed,
    MemberLost,
    NoCapacity,
    RoleRunInUse,
    StartTimedOut,
)
from distributed_grid.roles import Pool as Pool_
from distributed_grid.roles import Run, Workload, launch
from distributed_grid.roles.supervision.surveying import Surveyor

pytestmark = pytest.mark.cluster

CONFIG = TWO_LENDERS
ENV = NOTICE_SOON

TRAINING = {"colocation_group": "training"}
RL = Workload(
    "rl",
    (
        small("trainer", Trainer, cpus=1, **TRAINING),
        small("pool", Pool, cpus=1, max_concurrency=4, **TRAINING),
        small("sync", Sync, cpus=1, **TRAINING),
        small("worker", Worker, count=(2, 4), placement="spread", max_restarts=2),
        small("teller", Teller, count=3, config={"lr": 0.5}, env={"COLOUR": "green"}, env_allow=["SHAPE"]),
    ),
)


@pytest.fixture
def run(grid: LiveGrid, runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> Run:
    """One run for all that change little of it. Tests give back all leases in the end, so it has groups of its own."""
    if "rl" not in runs:
        monkeypatch.setenv("SHAPE", "round")
        monkeypatch.setenv("A_SECRET", "for this process only")
        runs["rl"] = launch(RL, "run-1", leases=False)
    return runs["rl"]


# -- a run that goes on ------------------------------------------------------------------------------------------


def test_three_colocated_roles_are_one_process_that_costs_one_cpu(run: Run) -> None:
    pids = {*run["trainer"].call("pid"), *run["pool"].call("pid"), *run["sync"].call("pid")}
    together = next(one for one in run.status()["holdings"] if one["resources"].get("cpu", 0) >= 1)

    assert len(pids) == 1
    assert together["resources"]["cpu"] < 2
    assert run["trainer"].rank_zero.call("sync") == "synced"


def test_siblings_see_each_other_and_others_call_through_ray(run: Run) -> None:
    assert run["worker"].call("work", "a") and run["trainer"][0].call("pooled")
    assert {rank for rank, _ in run["pool"][0].call("all")} >= {0, 1}


def test_each_has_its_rank_and_what_was_chosen_of_the_environment_and_nothing_else(run: Run) -> None:
    told = run["teller"].call("who")

    assert [one["env"]["RANK"] for one in told] == ["0", "1", "2"]
    assert {one["env"]["WORLD_SIZE"] for one in told} == {"3"}
    assert len({(one["env"]["MASTER_ADDR"], one["env"]["MASTER_PORT"]) for one in told}) == 1
    assert {one["env"]["COLOUR"] for one in told} == {"green"}
    assert {one["env"]["SHAPE"] for one in told} == {"round"}
    assert not [one for one in told if "A_SECRET" in one["env"]]
    assert {one["config"]["lr"] for one in told} == {0.5}


def test_what_a_member_raises_comes_back_with_its_traceback_role_and_rank(run: Run) -> None:
    with pytest.raises(MemberFailed, match=r"teller 0 on .*: ValueError: no") as caught:
        run["teller"][0].call("fail", "no")

    assert (caught.value.role, caught.value.rank) == ("teller", 0)
    assert "in fail" in caught.value.remote_traceback and isinstance(caught.value.cause, ValueError)
    found = run["teller"].options(errors="values").call("fail_on", 1)
    assert found[0] == "0" and found[2] == "2" and isinstance(found[1], MemberFailed)


def test_results_come_in_rank_order_and_shards_go_around(run: Run) -> None:
    assert run["teller"].call("sleep", 0.0) == ["0", "1", "2"]
    shards = run["teller"].map("shard", range(7))
    assert [what for _, what in shards] == [*range(7)] and {rank for rank, _ in shards} == {"0", "1", "2"}
    assert ray.get(run["teller"][1].shard.remote("x")) == ("1", "x")


def test_a_deadline_ends_the_waiting_and_a_busy_member_is_not_a_dead_one(run: Run, tmp_path: Path) -> None:
    end = tmp_path / "end"
    with pytest.raises(CallTimedOut, match="teller 2"):
        run["teller"][2].options(deadline_s=0.1).call("wait_for", str(end))

    assert run["teller"].choose().rank != 2
    waits = run["teller"][2].submit("count", 0)
    until(lambda: shown(run, "teller", 2)["queue"] == 1, what="the one that waits is shown")
    end.touch()
    assert ray.get(waits) == 0
    assert run["teller"][2].call("count") == 1  # it waits for its turn
    assert restarts(run, "teller", 2) == 0


def test_the_name_of_a_living_run_is_taken(run: Run) -> None:
    with pytest.raises(RoleRunInUse, match="run-1"):
        launch(Workload("other", (small("one", Teller),)), "run-1")

    assert run["teller"].size == 3


def test_another_process_attaches_calls_and_scales(grid: LiveGrid, run: Run, tmp_path: Path) -> None:
    program = tmp_path / "attached.py"
    program.write_text(
        "import json, ray\n"
        f"ray.init(address={grid.address!r}, log_to_driver=False, logging_level='ERROR')\n"
        "from distributed_grid.errors import GridError\n"
        "from distributed_grid.roles import attach\n"
        "with attach('run-1') as run:\n"
        "    told = run['worker'].call('work', 'from elsewhere')\n"
        "    run.scale('worker', 4)\n"
        "    four = run['worker'].call('pid')\n"
        "    run.scale('worker', 2)\n"
        "    try:\n"
        "        run.scale('worker', 9)\n"
        "    except GridError as error:\n"
        "        refused = error.message\n"
        "    print(json.dumps({'told': told, 'four': four, 'two': len(run['worker']), 'refused': refused}))\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=grid.env, check=False)

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["told"]) >= 2 and len(set(found["four"])) == 4 and found["two"] == 2
    assert "from 2 to 4 members, not 9" in found["refused"]
    assert run["worker"].size == 2
    assert (0, "from elsewhere") in [tuple(one) for one in run["pool"][0].call("all")]


def test_members_know_which_members_came_and_went(run: Run) -> None:
    run.scale("worker", 3)
    until(lambda: run["worker"][0].call("known") == [0, 1, 2], what="the new one is known")
    run.scale("worker", 2)
    until(lambda: run["trainer"][0].call("known")["worker"] == 2, what="it is forgotten again")


def test_a_killed_member_comes_back_with_its_references_and_the_others_do_not_notice(run: Run) -> None:
    before = run["worker"].call("pid")
    os.kill(before[0], signal.SIGKILL)

    until(lambda: restarts(run, "worker", 0), what="it is noticed")
    assert run["worker"][0].call("work", "again")  # it waits for it
    after = run["worker"].call("pid")
    assert after[0] != before[0] and after[1:] == before[1:]
    until(lambda: run.status()["state"] == "running", what="all is well again")
    assert any("worker 0 died" in event["message"] for event in run.status()["events"])


def test_a_call_that_was_under_way_is_lost_and_not_repeated(run: Run) -> None:
    with pytest.raises(MemberLost, match="teller 1"):
        run["teller"][1].call("end")

    assert run["teller"][1].call("count") == 1  # the new one has counted nothing


# -- runs of their own -------------------------------------------------------------------------------------------


def test_two_roles_share_a_gpu_by_halves_in_one_bundle(grid: LiveGrid, run: Run) -> None:
    before = free(grid)
    halves = {"gpus": 0.5, "colocation_group": "gpu", "colocation": "bundle", "count": 2}
    workload = Workload("halves", (small("actor", Teller, **halves), small("critic", Teller, **halves)))
    with launch(workload, wait_s=60) as halved:
        told = [halved[role].call("who") for role in ("actor", "critic")]

        pairs = [*zip(*told, strict=True)]
        assert [one["node"] for one, _ in pairs] == [other["node"] for _, other in pairs]
        assert all(one["gpus"] == other["gpus"] != "" and one["pid"] != other["pid"] for one, other in pairs)
        until(lambda: sum(free(grid)[1::2]) == sum(before[1::2]) - 2, what="two GPUs are taken")
    nothing_is_left_of(grid, "halves", before)


def test_what_cannot_fit_is_reported_at_once_and_leaves_nothing(grid: LiveGrid, run: Run) -> None:
    before = free(grid)
    workload = Workload("big", (small("fits", Teller, count=2), small("trainer", Teller, cpus=64)))

    with pytest.raises(DoesNotFit, match="big does not fit") as caught:
        launch(workload)

    assert "trainer: 0 of 1" in caught.value.because[0]
    nothing_is_left_of(grid, "big", before)


def test_places_that_another_program_took_are_told_one_by_one(
    grid: LiveGrid, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus = free_cpus(grid, "two")
    before = Surveyor.connected().look()
    taken = ray.util.placement_group([{"CPU": cpus}], bundle_label_selector=[{"ray.io/node-id": grid.ids["two"]}])
    assert taken.wait(20)
    monkeypatch.setattr(Surveyor, "look", lambda _: before)  # what all see for a moment
    monkeypatch.setattr("distributed_grid.roles.supervision.parts.TAKE_S", 0.3)  # of each of three tries

    with pytest.raises(NoCapacity, match="The run late could not reserve its places") as caught:
        launch(Workload("late", (small("worker", Teller, cpus=cpus, node_affinity=["two"]),)), leases=False)

    assert "two: the bundle for 1 worker waits for" in caught.value.because[0]
    assert not actors("late")
    ray.util.remove_placement_group(taken)


def test_a_constructor_that_fails_is_reported_with_its_traceback_and_leaves_nothing(grid: LiveGrid, run: Run) -> None:
    before = free(grid)

    with pytest.raises(MemberFailed, match=r"refuser 1 .*rank 1 cannot start") as caught:
        launch(Workload("refused", (small("refuser", Refuses, config="1", count=3),)), leases=False)

    assert "in __init__" in caught.value.remote_traceback
    nothing_is_left_of(grid, "refused", before)


def test_a_constructor_that_hangs_is_found_and_leaves_nothing(grid: LiveGrid, run: Run) -> None:
    before = free(grid)
    workload = Workload("hung", (small("hangs", Hangs, startup_deadline_seconds=5), small("teller", Teller)))

    with pytest.raises(StartTimedOut, match="of 2 actors") as caught:
        launch(workload, leases=False)

    assert "constructor has not ended" in caught.value.because[0]
    nothing_is_left_of(grid, "hung", before)


def test_a_member_that_is_stuck_as_a_whole_is_started_anew(grid: LiveGrid, run: Run) -> None:
    with launch(Workload("stuck", (small("teller", Teller, count=2),)), silent_after_s=3.0, wait_s=60) as stuck:
        pid = stuck["teller"][0].call("who")["pid"]
        os.kill(pid, signal.SIGSTOP)

        until(lambda: restarts(stuck, "teller", 0) == 1, what="it is taken for dead")
        assert stuck["teller"][0].call("who")["pid"] != pid


def test_failure_policies(grid: LiveGrid, run: Run) -> None:
    workload = Workload(
        "policies",
        (
            small("gang", Teller, count=2, failure_policy="restart_gang"),
            small("healthy", Teller, count=2, failure_policy="continue_with_healthy"),
            small("budget", Teller, count=1, failure_policy="restart", failure_budget=1),
        ),
    )
    with launch(workload, leases=False) as policies:
        before = [one["pid"] for one in policies["gang"].call("who")]
        os.kill(before[1], signal.SIGKILL)
        until(lambda: restarts(policies, "gang", 0) == 1, what="the gang restarts")
        after = [one["pid"] for one in policies["gang"].call("who")]
        assert not {*before} & {*after}

        os.kill(policies["healthy"][0].call("who")["pid"], signal.SIGKILL)
        until(lambda: policies["healthy"].size == 1, what="it goes on with the other one")
        assert policies["healthy"].call("count") == [1]

        for _ in range(2):
            os.kill(policies["budget"][0].call("who")["pid"], signal.SIGKILL)
            until(
                lambda: policies["budget"].size == 0 or not policies.endpoints("budget")[0].up.is_set(),
                what="noticed",
            )
        assert policies.wait(60)
        assert policies.state == "failed" and "budget" in policies.why
        with pytest.raises(GridError, match="over"):
            policies["gang"].call("count")
    policies.shutdown()
    policies.shutdown()


def test_all_kinds_of_resources_and_nodes_to_avoid_count_and_a_member_that_may_not_fail_ends_its_run(
    grid: LiveGrid, run: Run
) -> None:
    roles = (
        small("licensed", Teller, resources={"licence": 1}, memory_gb=0.1),
        small("elsewhere", Teller, node_anti_affinity=["head", "one"]),
        small("vital", Teller, failure_policy="fail"),
    )
    with launch(Workload("kinds", roles), leases=False) as kinds:
        where = [kinds[role][0].call("who")["node"] for role in ("licensed", "elsewhere")]
        assert where == [grid.ids["one"], grid.ids["two"]]
        until(lambda: grid.free("one").get("licence") == 1.0, what="one of two is held")

        os.kill(kinds["vital"][0].call("who")["pid"], signal.SIGKILL)

        assert kinds.wait(60)
        assert kinds.state == "failed" and "vital 0" in kinds.why
    until(lambda: not actors("kinds"), what="all of it has ended")


@pytest.mark.slow
def test_sixty_actors_start_together(grid: LiveGrid, run: Run) -> None:
    before = free(grid)
    with launch(Workload("sixty", (small("teller", Teller, count=60),)), leases=False) as sixty:
        assert sixty["teller"].call("count") == [1] * 60
    nothing_is_left_of(grid, "sixty", before)


def test_in_a_shared_cluster_pools_are_leases_with_quotas(grid: LiveGrid, run: Run) -> None:
    before = free(grid)
    pools = (Pool_("cpu_pool", num_cpus=2, nodes=["one"]), Pool_("gpu_pool", num_gpus=1))
    roles = (
        small("worker", Teller, cpus=1, count=(1, 4), pool="cpu_pool"),
        small("trainer", Teller, cpus=1, gpus=1, pool="gpu_pool"),
    )
    with launch(Workload("pooled", roles, pools), wait_s=60) as pooled:
        held = {one["boost_id"]: one for one in pooled.status()["holdings"]}
        known = {one["boost_id"]: one for one in grid.client.boost_status()["boosts"] if one["purpose"] == "roles"}
        assert held.keys() == known.keys()
        assert {one["label"] for one in known.values()} == {"pooled/cpu_pool", "pooled/gpu_pool"}
        assert pooled["worker"].size == 2  # the quota, though four would fit
        assert {one["node"] for one in pooled["worker"].call("who")} == {grid.ids["one"]}
        pooled.scale("worker", 3, wait_s=0)
        until(lambda: "worker does not have 3 members" in told(pooled), what="it is told why")
        with pytest.raises(CannotScale, match="2 of 3") as caught:
            pooled.scale("worker", 3, wait_s=0.1)
        assert "cpu_pool" in caught.value.because[0]

        pooled.scale("worker", 2)  # or it goes on looking for room

        # A lease is taken away: its members move to another place.
        taken = next(one for one in known.values() if one["label"] == "pooled/gpu_pool")
        pid = pooled["trainer"][0].call("who")["pid"]
        grid.release(taken["boost_id"], grace_seconds=0)
        until(lambda: restarts(pooled, "trainer", 0), what="it is noticed")
        assert pooled["trainer"][0].call("who")["pid"] != pid
    nothing_is_left_of(grid, "pooled", before)


def test_a_node_that_dies_under_a_gang_is_replaced(grid: LiveGrid, run: Run) -> None:
    run.shutdown()  # what is on that node would go with it
    spread = {"placement": "spread", "node_affinity": ["one", "two"]}  # so rank 0 is on the node that dies
    gang = small("gang", Teller, cpus=0.5, count=4, failure_policy="restart_gang", **spread)
    workload = Workload("moved", (gang, small("other", Teller, node_affinity=["two"])))
    with launch(workload, wait_s=60) as moved:
        other = moved["other"][0].call("who")["pid"]
        before = moved["gang"].call("who")
        assert before[0]["node"] == grid.ids["one"]
        grid.kill_node("one")
        try:
            until(lambda: restarts(moved, "gang", 0) == 1, 60, what="the gang restarts")
            after = moved["gang"].options(deadline_s=60).call("who")

            assert grid.ids["one"] not in {one["node"] for one in after}
            assert not {one["pid"] for one in before} & {one["pid"] for one in after}
            assert len({(one["env"]["MASTER_ADDR"], one["env"]["MASTER_PORT"]) for one in after}) == 1
            assert [one["env"]["RANK"] for one in after] == ["0", "1", "2", "3"]
            assert moved["other"][0].call("who")["pid"] == other
        finally:
            grid.start_node("one")
            until(lambda: "one" in grid.live_nodes(), what="the node is back")
            grid.ids = grid.live_nodes()
