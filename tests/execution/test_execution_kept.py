"""A command under a keeper: nothing of it outlives its owner, however the owner ends."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from live_grid import until

from distributed_grid.execution.on_node_kept import Kept
from distributed_grid.execution.on_node_raylet import OwnRay

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
WITH_A_CHILD = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
WANTS_ONE = """
import json, os, sys, time
from distributed_grid.execution.on_node_kept import Kept
kept = Kept()
kept.tell(start=json.loads(sys.argv[1]))
print(next(kept.heard())["started"], flush=True)
time.sleep(600)
"""


def order(cwd: Path, code: str, **more: Any) -> dict[str, Any]:
    where = {"cwd": str(cwd), "env": dict(os.environ), "stdin": None, "stdout": str(cwd / "out"), "stderr": None}
    return {"command": [sys.executable, "-c", code]} | where | more


def test_when_it_is_let_go_even_a_stubborn_command_ends_and_its_folder_goes_last(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    kept = Kept()
    kept.tell(start=order(folder, STUBBORN, orphaned_s=0.0, folder=str(folder)))
    heard = kept.heard()
    pid = next(heard)["started"]

    kept.let_go()

    assert list(heard) == [{"ended": -9}]
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


def test_a_command_can_be_interrupted_though_its_keeper_cannot(tmp_path: Path) -> None:
    kept = Kept()
    kept.tell(start=order(tmp_path, "import signal; print(signal.getsignal(2) is signal.default_int_handler)"))

    assert list(kept.heard())[-1] == {"ended": 0}
    assert (tmp_path / "out").read_text() == "True\n"


def test_when_the_process_that_wanted_it_is_killed_with_its_children_nothing_is_left(tmp_path: Path) -> None:
    """As Ray ends a worker: first all children that it has."""
    wanting = subprocess.Popen(
        [sys.executable, "-c", WANTS_ONE, json.dumps(order(tmp_path, WITH_A_CHILD))], stdout=subprocess.PIPE
    )
    assert wanting.stdout is not None
    command = psutil.Process(int(wanting.stdout.readline()))
    below = until(command.children)

    for child in psutil.Process(wanting.pid).children():
        child.kill()
    wanting.kill()
    wanting.wait()
    wanting.stdout.close()

    assert psutil.wait_procs([command, *below], timeout=60)[1] == []


def test_a_ray_that_does_not_start_says_why_and_leaves_nothing() -> None:
    ray = OwnRay(["--no-such-option"])
    folder = Path(ray.folder)

    assert folder.is_dir()
    why = ray.why_not_up(60.0)
    ray.end()

    assert why is not None and "No such option" in why
    assert not folder.exists()


SLOW = "import time; end = time.time() + 4\nwhile time.time() < end: pass"
HANGS = "import time; time.sleep(600)"
GIVES_UP_TWICE = """
import os, pathlib, sys
tries = pathlib.Path(os.environ["TRIES"])
tries.write_text(tries.read_text() + "." if tries.exists() else ".")
if len(tries.read_text()) < 3:
    print("Exception: The current node timed out during startup.", flush=True)
    os._exit(1)
"""


@pytest.mark.parametrize(
    ("begins_with", "becomes"),
    [(SLOW, "No such option"), (HANGS, "it was not up after"), (GIVES_UP_TWICE, "No such option")],
)
def test_a_ray_may_take_its_time_as_long_as_it_gets_on(tmp_path: Path, begins_with: str, becomes: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(begins_with)
    ray = OwnRay(["--no-such-option"], {"PYTHONPATH": str(tmp_path), "TRIES": str(tmp_path / "tries")})

    why = ray.why_not_up(1.5)
    ray.end()

    assert why is not None and becomes in why
