"""A private cluster whose lease ends is drained through Ray, so that programs that know only Ray hear of it."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from live_grid import GRID, ONE_LENDER, LiveGrid, until

from distributed_grid.model.times import parse_instant

pytestmark = pytest.mark.cluster
CONFIG = ONE_LENDER
PATIENCE_S = 240

# Ray's own state, and an actor that goes on working; what Ray says of the node is written down.
WATCHES = """
import json, os, sys, time
import ray
import ray._private.state as state
from ray.core.generated import autoscaler_pb2

ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=1)
class Worker:
    def where(self):
        return ray.get_runtime_context().get_node_id()

worker = Worker.remote()
node = ray.get(worker.where.remote())
print(json.dumps({"what": "began"}), flush=True)
while not (drained := state.state.get_draining_nodes()):
    time.sleep(0.2)
gcs = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
status = {}
while status.get(node) != "DRAINING":  # it comes with the raylet's next report
    time.sleep(0.2)
    found = autoscaler_pb2.GetClusterResourceStateReply.FromString(gcs.get_cluster_resource_state())
    nodes = found.cluster_resource_state.node_states
    status = {one.node_id.hex(): autoscaler_pb2.NodeStatus.Name(one.status) for one in nodes}
after = ray.get(worker.where.remote())
told = {"what": "told", "here": list(drained) == [node], "deadline_ms": drained[node], "status": status[node]}
print(json.dumps(told | {"still_works": after == node}), flush=True)
"""
# Ray Train, unmodified.
TRAINS = """
import json, time
import ray, ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

def train():
    with open(LOG_PATH, "a") as log:
        log.write(json.dumps({"what": "began"}) + "\\n")
    while (info := ray.train.get_preemption_info()) is None:
        time.sleep(0.2)
    with open(LOG_PATH, "a") as log:
        told = {"what": "told", "deadline_ms": info.deadline_ms, "ranks": list(info.preempted_node_to_ranks.values())}
        log.write(json.dumps(told) + "\\n")

ray.init(logging_level="ERROR")
scaling = ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
DataParallelTrainer(train, scaling_config=scaling).fit()
"""
# Tasks alone: Ray would end a node that drains and that no actor holds.
TASKS = """
import json, os, time
import ray

ray.init(logging_level="ERROR", log_to_driver=False)

@ray.remote
def step():
    return 1

ray.get(step.remote())
print(json.dumps({"what": "began"}), flush=True)
while not os.path.exists(os.environ["GRID_RECLAIM_FILE"]):
    ray.get(step.remote())
    time.sleep(0.2)
time.sleep(5)
print(json.dumps({"what": "told", "saved": ray.get(step.remote())}), flush=True)
"""


class Private:
    """A program in a private cluster, and what it has written."""

    def __init__(self, grid: LiveGrid, folder: Path, text: str) -> None:
        self._grid, self._log = grid, folder / "out.jsonl"
        script = folder / "program.py"
        script.write_text(text.replace("LOG_PATH", repr(str(self._log))))
        run = [
            GRID,
            "run",
            "--isolation",
            "cluster",
            "--cpus",
            "4",
            "--memory",
            "1",
            "--grace",
            "90",
            "--",
            str(script),
        ]
        with self._log.open("w") as out:
            env = grid.env | {"RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "1"}
            self.process = subprocess.Popen(run, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)

    def seen(self, what: str) -> list[dict[str, Any]]:
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [said for said in map(json.loads, lines) if said["what"] == what]

    def waits_for(self, what: str) -> dict[str, Any]:
        until(lambda: self.seen(what) or self.process.poll() is not None, PATIENCE_S, what)
        assert self.seen(what), self.process.communicate()[1].decode()
        return self.seen(what)[0]

    def is_released(self) -> dict[str, Any]:
        """Its lease, which its owner has given back."""
        [lease] = [boost for boost in self._grid.client.boost_status()["boosts"] if boost["purpose"] == "run"]
        self._grid.release(lease, wait_seconds=0)
        return self._grid.shown(lease)


@pytest.fixture
def private(grid: LiveGrid, tmp_path: Path) -> Iterator[Any]:
    started: list[Private] = []

    def start(text: str) -> Private:
        started.append(Private(grid, tmp_path, text))
        return started[-1]

    yield start
    for each in started:
        each.process.terminate()
        each.process.communicate(timeout=PATIENCE_S)
    grid.release_everything()


def deadline_ms(boost: dict[str, Any]) -> float:
    return parse_instant(boost["ending"]["deadline"]).timestamp() * 1000


def test_ray_shows_that_the_node_drains_by_when_and_actors_go_on(grid: LiveGrid, private: Any) -> None:
    program = private(WATCHES)
    program.waits_for("began")
    ending = program.is_released()

    told = program.waits_for("told")

    assert told | {"deadline_ms": 0} == {
        "what": "told",
        "here": True,
        "deadline_ms": 0,
        "status": "DRAINING",
        "still_works": True,
    }
    assert abs(told["deadline_ms"] - deadline_ms(ending)) < 10_000
    assert [event["boost_id"] for event in grid.events("raylet_drained")][-1] == ending["boost_id"]
    assert program.process.wait(PATIENCE_S) == 0


def test_ray_train_hears_of_its_preemption(private: Any) -> None:
    program = private(TRAINS)
    program.waits_for("began")
    ending = program.is_released()

    told = program.waits_for("told")

    assert sorted(rank for ranks in told["ranks"] for rank in ranks) == [0, 1]
    assert abs(told["deadline_ms"] - deadline_ms(ending)) < 10_000


def test_a_program_of_tasks_alone_keeps_its_whole_grace_period(grid: LiveGrid, private: Any) -> None:
    program = private(TASKS)
    program.waits_for("began")
    ending = program.is_released()

    assert program.waits_for("told")["saved"] == 1

    assert program.process.wait(PATIENCE_S) == 0
    assert ending["boost_id"] not in [event["boost_id"] for event in grid.events("raylet_drained")]
