"""grid offload as a person types and reads it: the real engine, processes that a test makes up."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import process
from served_grid import ServedGrid

from distributed_grid.errors import InvalidAmount
from distributed_grid.model.resources import GB
from distributed_grid.sdk.executor import recommendation_from

GRID = str(Path(sys.executable).with_name("grid"))
NODES = {name: {"cpus": 8, "memory": 16} for name in ("gpu-master", "gpu1")}
TRAIN = ("/usr/bin/python3", "train.py", "--api-key", "s3cret")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedGrid]:
    """ana's training and her web server run on gpu-master."""
    found = ServedGrid(tmp_path, nodes=NODES)
    home = next(r.node_id for r in found.cluster.raylets() if r.labels["grid/name"] == "gpu-master")
    names = ("HOME", "PATH", "WANDB_API_KEY")
    values = {name: f"value-of-{name}" for name in names}
    found.control.add(home, process(4711, command=TRAIN, cpu=3.9, memory=6 * GB, environment=names), **values)
    found.control.add(home, process(815, listening=1, cpu=1.0))
    try:
        yield found
    finally:
        found.close()


def typed(served: ServedGrid, *words: str, code: int = 0, width: int = 100) -> tuple[str, str]:
    env = {**os.environ, "GRID_HOME": str(served.home.path), "COLUMNS": str(width)}
    done = subprocess.run([GRID, *words], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


def reported(served: ServedGrid, *words: str) -> Any:
    return json.loads(typed(served, *words, "--json")[0])


def test_a_scan_shows_what_could_move_where_to_and_how_sure_that_is(served: ServedGrid) -> None:
    shown, _ = typed(served, "offload", "scan", "gpu-master")

    assert shown.splitlines() == [
        " PID  Node        Kind    CPU  Memory  GPU    Age  Destination  Confidence  Command",
        "4711  gpu-master  python  3.9  6.0 GB    -  5 min  gpu1                90%  /usr/bin/python3 train.…",
        "",
        "4711: uses 3.9 cores, 6.0 GB",
        "",
        "To move one:  grid offload execute 4711 --from gpu-master --to auto",
        "1 more cannot move: 815 (python3)",
        "To see why:  grid offload scan gpu-master --all",
    ]
    assert "\n815: it has sockets in use" in typed(served, "offload", "scan", "gpu-master", "--all")[0]
    assert typed(served, "offload", "scan")[0].endswith("To see why:  grid offload scan --all\n")
    assert typed(served, "offload", "scan", "gpu1", "--all")[0].endswith("No heavy process is blocked from moving.\n")
    assert "815: it has sockets in use: 1 on which it listens [Sockets]" in typed(served, "offload", "scan", "--all")[0]
    assert "s3cret" not in json.dumps(reported(served, "offload", "scan"))
    assert not [line for line in typed(served, "offload", "scan", "--all", width=80)[0].splitlines() if len(line) > 80]


def test_a_program_gets_the_same_recommendations_as_data(served: ServedGrid) -> None:
    (candidate,) = served.client.offload_candidates()["candidates"]
    found = recommendation_from(candidate)

    assert (found.target_node, found.destination, found.cpu, found.memory) == ("gpu-master", "gpu1", 4.0, 7.25 * GB)
    assert found.process is not None
    assert (found.process.pid, found.process.created_at, found.command) == (4711, 100.0, None)
    moved = served.client.offload({"pid": 4711, "created_at": 100.0, "to": found.destination})
    assert moved["offload"]["state"] == "running"


def test_a_process_is_moved_to_a_fraction_of_one_gpu_or_to_whole_gpus(served: ServedGrid) -> None:
    with pytest.raises(InvalidAmount, match=r"1\.5 GPUs: Ray gives out a fraction of one GPU, or whole GPUs"):
        served.client.offload({"pid": 4711, "to": "gpu1", "gpus": 1.5})


def test_a_move_says_what_it_will_do_and_what_it_did(served: ServedGrid) -> None:
    shown, said = typed(served, "offload", "execute", "4711", "--env", "MODE=fast")

    assert said.splitlines() == [
        "Process 4711 on gpu-master: /usr/bin/python3 train.py --api-key '***'",
        "  gpu1 reserves 4 CPUs, 7.2 GB for it",
        "  it gets SIGTERM, and SIGKILL after 10 s",
        "  the same command starts on gpu1, in /home/ana",
        "  its output goes to a log: grid offload log",
        "  environment: HOME, PATH, MODE",
        "  not copied: WANDB_API_KEY  (--env NAME copies one)",
    ]
    (one,) = reported(served, "offload", "status")["offloads"]
    short = one["offload_id"][:8]
    assert shown.splitlines() == [
        f"Offloaded {one['offload_id']}  running",
        "  process 4711 of gpu-master is now process 99 of gpu1",
        f"To see its output:  grid offload log {short} --follow",
        f"To end it:  grid offload cancel {short}",
    ]
    table, _ = typed(served, "offload", "status")
    assert table.splitlines()[1].split()[:5] == [short, "running", "-", "gpu-master:4711", "gpu1:99"]
    boosts, _ = typed(served, "boost", "status", "--all", width=200)
    assert "/usr/bin/python3 train.py --api-key ***" in boosts

    ended, _ = typed(served, "offload", "cancel", short)
    assert ended == f"Offloaded process {short}: cancelled on gpu1 with exit code -15\n"
    everything = served.home.audit_log.read_text() + shown + said + table + boosts
    assert not [secret for secret in ("value-of-", "s3cret", "fast") if secret in everything]


def test_a_dry_run_changes_nothing(served: ServedGrid) -> None:
    shown, _ = typed(served, "offload", "execute", "4711", "--dry-run", "--keep", "--cpus", "2", "--memory", "1")

    assert "gpu1 reserves 2 CPUs, 1 GB for it" in shown
    assert "it keeps running there as well (--keep)" in shown
    assert reported(served, "offload", "execute", "4711", "--dry-run")["offload"] is None
    assert served.control.done == []
    assert not served.client.boost_status()["boosts"]


def test_what_cannot_move_is_refused_with_exit_code_4(served: ServedGrid) -> None:
    _, said = typed(served, "offload", "execute", "815", code=4)

    assert "Process 815 (python3) cannot leave gpu-master" in said
    assert "sockets in use" in said
    _, missing = typed(served, "offload", "execute", "1", code=3)
    assert "There is no process 1 on any node" in missing
    assert "No offloaded process has the id" in typed(served, "offload", "cancel", "nobody", code=3)[1]


def test_where_nothing_was_moved_it_says_what_to_type(served: ServedGrid) -> None:
    assert "grid offload scan" in typed(served, "offload", "status")[0]
