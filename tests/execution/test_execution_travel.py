"""What runs on other nodes travels by value: where it arrives, nothing of grid is installed."""

import os
import subprocess
import sys
from typing import Any

import pytest
from ray import cloudpickle

from distributed_grid.execution import processes
from distributed_grid.execution.packing import on_node_raylet, on_node_runner

ELSEWHERE = """
import pickle, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("distributed_grid", "structlog", "pydantic"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Nowhere())
import ray  # as in any worker
function, args = pickle.load(sys.stdin.buffer)
print(function(*args))
"""


def run_a_command(make: Any) -> str:
    made = make("travelled", {})
    order = {"command": ["echo", "here"], "cwd": "/", "stdin": None, "stderr": None}
    made.prepare(order, {"PATH": "/usr/bin:/bin"}, {})
    made.go()
    made.wait(30)
    return str(made.read(0)["text"] + made.about()["state"])


def start_a_ray(make: Any) -> str:
    return str(make(["--no-such-option"], {}).why_not_up(60.0))


@pytest.mark.parametrize(
    ("function", "args", "reported"),
    [
        (processes.look_at, (os.getpid(),), "'processes': [{'pid'"),
        (processes.scan, (False, 0.0, 0, os.getpid()), "'processes': ["),
        (processes.find_here, (["/"],), "'files': {'/'"),
        (processes.environment, (os.getpid(), -1.0, []), None),
        (processes.stop, (os.getpid(), -1.0, 0.0), "'was_there': False"),
        (run_a_command, (on_node_runner.Runner,), "here\nended"),
        (start_a_ray, (on_node_raylet.RayletHost,), "No such option"),
    ],
    ids=["look_at", "scan", "find_here", "environment", "stop", "runner", "raylet"],
)
def test_it_works_where_only_ray_is_installed(function: Any, args: tuple[Any, ...], reported: str | None) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        parcel = cloudpickle.dumps((function, args))
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])

    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        input=parcel,
        capture_output=True,
        check=False,
        timeout=150,
        env={**os.environ, "RAY_ADDRESS": "local"},  # else Ray tries the cluster that was last started here
    )

    said = done.stdout.decode()
    if reported is None:  # there is no such process, and that is what it says
        assert "ProcessLookupError" in done.stderr.decode()
    else:
        assert reported in said, done.stderr.decode()
