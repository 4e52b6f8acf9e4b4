"""A job against five rivals whose queues of short tasks have no end, as in ray-project/ray#63790: alone, inside grid
with a high priority, and in plain Ray."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.effort import Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.stage import GRID, say
from bench.two_nodes import HEAD, SOURCE, Small, with_grid
from distributed_grid.client import GridClient

_CPUS: Final = 4
_RIVALS: Final = 5
_TASK_S: Final = 0.25
_TASKS_IN_TURN: Final = 60
"""Tasks of the job for each CPU, for each of the effort's programs: in all a minute, alone."""
_GRACE_S: Final = 0.5
_LIMITS: Final = Limits(times_baseline=1.2)
_WARM_S: Final = 10.0
_PATIENCE_S: Final = 1200.0
_SCRIPT: Final = str(Path(__file__).with_name("scripts") / "short_tasks.py")
_CONFIG: Final = f"""
name: rivals
embedded: true
execution:
  resource_sharing: {{enabled: true, min_hold_seconds: 0, thresholds: {{excess_threshold: 0}}}}
nodes:
  - {{name: {HEAD}, host: 127.0.0.1, role: master, cpu_count: 1, memory_gb: 2, resource_sharing: {{can_share: false}}}}
  - {{name: {SOURCE}, host: 127.0.0.1, role: worker, cpu_count: {_CPUS}, memory_gb: 2}}
"""


def run(effort: Effort) -> Outcome:
    """In turns. The tasks sleep, so that the machine's own cores, which all share, decide nothing."""
    tasks, rounds = _CPUS * _TASKS_IN_TURN * effort.programs, effort.programs // 2
    job = [sys.executable, _SCRIPT, str(tasks), str(_TASK_S)]
    rival = [sys.executable, _SCRIPT, "0", str(_TASK_S)]
    alone: list[float] = []
    in_grid: list[float] = []
    plain: list[float] = []
    with with_grid(_CONFIG) as cluster:
        outside = {**_environment(cluster), "ONLY_ON": SOURCE}
        inside = _environment(cluster)
        _timed([*job[:2], str(_CPUS), "0"], outside)  # starts the workers
        for turn in range(rounds):
            say(f"  {turn + 1} of {rounds}")
            alone.append(_timed(job, outside))
            with _at_work([_leased(1, "low", rival)] * _RIVALS, inside):
                _until_lent(cluster)
                in_grid.append(_timed(_leased(_CPUS, "high", job), inside))
            with _at_work([rival] * _RIVALS, outside):
                time.sleep(_WARM_S)
                plain.append(_timed(job, outside))
    return Outcome(
        f"a job against {_RIVALS} rivals with endless queues",
        "the same job alone, in plain Ray",
        (
            Line("inside grid, with a high priority", Samples.of(in_grid), Samples.of(alone), _LIMITS, unit="s"),
            Line("in plain Ray", Samples.of(plain), Samples.of(alone), unit="s"),
        ),
    )


def _leased(cpus: int, priority: str, command: Sequence[str]) -> list[str]:
    asked = ["--cpus", str(cpus), "--priority", priority, "--grace", str(_GRACE_S), "--wait", "10m"]
    return [GRID, "run", *asked, "--target", HEAD, "--source", SOURCE, "--", *command]


@contextmanager
def _at_work(commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> Iterator[None]:
    """These programs run meanwhile. Some may end: a lease may be reclaimed."""
    with ExitStack() as stack:
        for command in commands:
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(_ended, process)
        yield


def _ended(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _until_lent(cluster: Small) -> None:
    """Until the rivals' leases take all that the node has, and their queues are at work in them."""
    client, deadline = GridClient(cluster.home), time.monotonic() + _PATIENCE_S
    try:
        while sum(boost["amount"] for boost in client.boost_status()["boosts"] if boost["state"] == "active") < _CPUS:
            if time.monotonic() > deadline:
                raise TimeoutError("the rivals did not get their leases")
            time.sleep(0.1)
    finally:
        client.close()
    time.sleep(_WARM_S)


def _timed(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Seconds from a command's start to its end."""
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_PATIENCE_S)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return time.perf_counter() - began


def _environment(cluster: Small) -> dict[str, str]:
    return os.environ | {"GRID_HOME": str(cluster.home.path), "RAY_ADDRESS": cluster.ray_address}
