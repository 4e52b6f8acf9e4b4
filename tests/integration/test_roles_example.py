"""The worked example of roles, run as people run it: it learns, loses a worker, and has more and fewer of them."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import ray
from live_grid import ONE_LENDER, LiveGrid, until

from distributed_grid.roles import launch

CONFIG = ONE_LENDER
EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_pipeline.py"


def test_the_same_workload_learns_in_one_process_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    example = importlib.import_module("rl_pipeline")
    monkeypatch.setattr(example, "SIMULATOR_S", 0.0)

    with launch(example.workload(), local=True) as run:
        found = example.train(run)

    assert found["learnt"] and found["mean_return"]["before"] < 50
    assert found["restarts"] == 0 and {line["workers"] for line in found["iterations"]} <= {2, 3, 4}


@pytest.mark.cluster
def test_a_policy_is_learnt_while_a_worker_is_killed_and_their_number_follows_the_pool(grid: LiveGrid) -> None:
    command = [sys.executable, str(EXAMPLE), "--json"]
    shown = subprocess.run(command, env=grid.env, cwd=grid.folder, capture_output=True, text=True, timeout=180)

    assert shown.returncode == 0, shown.stdout + shown.stderr
    reported = json.loads(shown.stdout)
    scores, workers = ([line[what] for line in reported["iterations"]] for what in ("mean_return", "workers"))
    assert reported["learnt"]
    assert (
        reported["mean_return"]["before"]
        < 50
        < 150
        <= reported["mean_return"]["after"]
        <= reported["mean_return"]["most"]
    )
    assert scores[-1] > 2 * scores[3], "it learnt most of it after the worker was killed"
    assert reported["restarts"] >= 1
    assert any("rollout_worker 0 died" in event and "it restarts" in event for event in reported["events"])
    assert 2 <= min(workers) < max(workers) <= 4 and workers[-1] < max(workers)
    for change in ("scaled up to 3", "scaled down to"):
        assert any(f"rollout_worker was {change}" in event for event in reported["events"])
    assert "iteration  workers  pool  updates  mean return" in shown.stderr, "the story of it is for people"
    assert not [actor for actor in ray.util.list_named_actors(all_namespaces=True) if "rl-pipeline" in actor["name"]]
    until(lambda: grid.client.boost_status()["boosts"] == [], 10, "everything is returned")
