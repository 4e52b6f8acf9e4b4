"""`grid roles up|status|scale|down` on a real cluster: what Ray has then, and what is left."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest
import ray
from live_grid import GRID, PACKAGED, LiveGrid, until
from page_sessions import Reader, Shell, files, steps
from role_runs import a_run

from distributed_grid.execution.role_records import NAMESPACE, RoleRecords

pytestmark = pytest.mark.cluster

CONFIG = PACKAGED
PAGE = "docs/roles.md"
SUPPORT = str(Path(__file__).parents[1] / "support")

PROGRAM = """
import time
from pathlib import Path

class Worker:
    def __init__(self):
        print("a worker is here")
    def step(self):
        return 1

class Learner(Worker):
    pass

class Broken:
    def __init__(self):
        raise ValueError("no such model")

class Slow:
    def __init__(self, path):
        Path(path).touch()
        time.sleep(600)
"""
WORKLOAD = """
name: small
roles:
  worker: {class: 'small_roles:Worker', count: 2}
  learner: {class: 'small_roles:Learner', gpus: 1}
"""
OWNER = """
import sys, ray
from distributed_grid.execution.role_records import RoleRecords
sys.path.insert(0, {support!r})
from page_sessions import Reader, Shell, files, steps
from role_runs import a_run
ray.init(address={address!r}, log_to_driver=False, logging_level="ERROR")
me = ray.get_runtime_context().get_worker_id()
record = a_run("theirs", owner={{"node": "head", "pid": 1, "worker_id": me}})
print(RoleRecords.connected().register(record), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(grid: LiveGrid, tmp_path: Path) -> Iterator[Path]:
    """Where the program is; and afterwards nothing of any run is left in Ray."""
    grid.settled()
    (tmp_path / "small_roles.py").write_text(PROGRAM)
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    yield tmp_path
    assert RoleRecords.connected().names() == []
    ray_has([])
    grid.settled()
    assert until(lambda: not grid.client.boost_status()["boosts"], 10, "no lease is left")


def actors() -> list[str]:
    """Of runs of roles, as Ray tells it."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return sorted(one["name"] for one in named if one["namespace"] == NAMESPACE)


def ray_has(wanted: list[str]) -> None:
    until(lambda: actors() == wanted, 10, f"the actors {wanted}")


def typed(grid: LiveGrid, folder: Path, *words: str, code: int = 0) -> tuple[str, str]:
    done = grid.cli("roles", *words, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def test_the_page_s_workload_comes_up_is_seen_scales_and_goes_down(grid: LiveGrid, folder: Path) -> None:
    """What docs/roles.md shows, typed; and after each command, what Ray and the controller say."""
    for name, text in files(PAGE).items():
        (grid.folder / name).write_text(text)
    counters = [f"words/counter/{index}" for index in range(4)]
    then = {
        "grid roles up words.yaml": [*counters, "words/tally/0"],
        "grid roles scale words counter 3": [*counters[:3], "words/tally/0"],
        "grid roles down words": [],
    }
    keepers = []
    shell = Shell(grid)
    try:
        reader = Reader(shell, grid.address, {})
        for step in (step for step in steps(PAGE) if "--cluster" not in step.command):
            reader.type(step)
            if (wanted := then.pop(step.command, None)) is not None:
                ray_has(wanted)
            keepers += [run["owner"]["pid"] for run in grid.client.role_runs()["runs"]]
    finally:
        shell.close()

    assert then == {} and len(set(keepers)) == 1
    until(lambda: not psutil.pid_exists(keepers[0]), 20, "its keeper is gone")


def test_a_run_whose_keeper_is_killed_is_lost_and_ray_ends_its_actors(grid: LiveGrid, folder: Path) -> None:
    (folder / "elsewhere").mkdir()

    typed(grid, folder / "elsewhere", "up", "../small.yaml", "--name", "killed", "--working-dir", "..")
    again = typed(grid, folder, "up", "small.yaml", "--name", "killed", code=4)[1]
    assert "A run named killed already exists and is running" in again
    until(lambda: "a worker is here" in typed(grid, folder, "logs", "killed")[0], 10, "what actors print is there")
    run = grid.json("roles", "status", "killed")
    assert [len(one["gpus"]) for one in run["members"] if one["role"] == "learner"] == [1]
    os.kill(run["owner"]["pid"], signal.SIGKILL)

    until(lambda: grid.client.role_run("killed")["state"] == "lost", 20, "seen as lost")
    ray_has([])
    assert typed(grid, folder, "down", "killed")[0] == "killed was already lost; its record is removed.\n"


@pytest.mark.parametrize(
    ("roles", "code", "reported"),
    [
        ("a: {class: 'small_roles:Worker', cpus: 99}", 4, "no node has 99 CPUs free"),
        ("a: {class: 'small_roles:Worker'}\n  b: {class: 'small_roles:Broken'}", None, "no such model"),
    ],
    ids=["does not fit", "dies in its constructor"],
)
def test_what_does_not_come_up_says_why_and_leaves_nothing(
    grid: LiveGrid, folder: Path, roles: str, code: int | None, reported: str
) -> None:
    (folder / "bad.yaml").write_text(f"name: bad\nroles:\n  {roles}\n")

    done = grid.cli("roles", "up", "bad.yaml", "--json", cwd=folder)

    error = json.loads(done.stderr)["error"]
    assert done.returncode == error["exit_code"] != 0, done.stderr
    assert code is None or done.returncode == code
    assert reported in json.dumps(error) and done.stdout == ""


def test_ctrl_c_while_it_starts_ends_it(grid: LiveGrid, folder: Path) -> None:
    begun = folder / "begun"
    (folder / "slow.yaml").write_text(
        f"name: slow\nroles:\n  a: {{class: 'small_roles:Slow', config: {str(begun)!r}}}\n"
    )
    typing = subprocess.Popen([GRID, "roles", "up", "slow.yaml"], cwd=folder, env=grid.env, stderr=PIPE, text=True)
    until(begun.exists, 60, "its constructor runs")
    until(lambda: "0 of 1 actors are up" in typed(grid, folder, "status", "slow")[0], 10, "it is told how far it is")

    typing.send_signal(signal.SIGINT)

    assert typing.wait(60) == 130
    assert typing.stderr is not None and "Traceback" not in typing.stderr.read()


def test_records_and_commands_in_ray_itself(grid: LiveGrid) -> None:
    """Between processes: what an owner wrote is read, commands reach it, and that it died is seen."""
    records = RoleRecords.connected()
    me = ray.get_runtime_context().get_worker_id()
    mine = a_run("mine", owner={"node": "head", "pid": 1, "worker_id": me})

    assert records.register(mine) is None
    assert records.register(mine) == mine
    assert records.names() == ["mine"]
    records.send_command("mine", counts={"trainer": 1})
    records.send_command("mine", counts={"rollout_worker": 3}, down=True)
    taken = RoleRecords.at(grid.address).take_command("mine")
    assert taken is not None
    assert (taken["counts"], taken["down"]) == ({"trainer": 1, "rollout_worker": 3}, True)
    assert records.pending_command("mine") is None

    program = OWNER.format(support=SUPPORT, address=grid.address)
    owner = subprocess.Popen([sys.executable, "-c", program], stdin=PIPE, stdout=PIPE, env=grid.env)
    assert owner.stdout is not None and owner.stdin is not None
    assert owner.stdout.readline() == b"None\n"
    theirs = records.read_record("theirs")
    assert theirs is not None
    assert records.with_dead_owners([mine, theirs]) == frozenset()
    owner.kill()
    owner.wait()
    until(lambda: records.with_dead_owners([mine, theirs]) == {"theirs"}, 10, "it is dead")
    assert records.remove_record("theirs")
    assert records.remove_mine("mine")
    assert records.names() == []
