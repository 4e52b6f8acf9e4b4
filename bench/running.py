"""`grid run`: how much faster a program is with a borrowed core, and what the command itself costs."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from bench.commands import time_in_turns
from bench.effort import Effort
from bench.figures import Limits, Line, Outcome, Samples
from bench.pinning import pin, two_cores
from bench.stage import GRID, RAY, say
from bench.two_nodes import HEAD, SOURCE, Small, head_alone, with_grid, with_job_server
from distributed_grid.cluster.processes import trees
from distributed_grid.cluster.record import load

_SCRIPTS: Final = Path(__file__).with_name("scripts")
_STEPS: Final = 12_000_000
"""Steps of one part: about 0.4 s."""
_HALF_AS_FAST_AGAIN: Final = Limits(times_baseline=1 / 1.5)
_NOT_SLOWER: Final = Limits(times_baseline=1.0)
_PATIENCE_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class _Ran:
    """One run of the program: elapsed seconds, the seconds it computed, and CPU seconds outside the program."""

    whole_s: float
    computing_s: float
    ray_s: float
    grid_s: float


def run(effort: Effort) -> Outcome:
    return Outcome("grid run", "plain Ray", (*_speed(effort), *_overhead(effort)))


def _speed(effort: Effort) -> tuple[Line, ...]:
    """In turns: on the head's core alone without grid, and with the source's core borrowed."""
    head_core, source_core = two_cores()
    script = [sys.executable, str(_SCRIPTS / "halves.py"), str(effort.parts), str(_STEPS)]
    borrowing = [GRID, "run", "--cpus", "1", "--target", HEAD, "--source", SOURCE, "--", *script]
    alone: list[_Ran] = []
    borrowed: list[_Ran] = []
    with head_alone() as plain, with_grid() as grid:
        pin(plain.home, {HEAD: {head_core}})
        pin(grid.home, {HEAD: {head_core}, SOURCE: {source_core}})
        for turn in range(effort.programs):
            say(f"  {turn + 1} of {effort.programs}")
            alone.append(_once(plain, script, here=head_core, tasks=head_core))
            borrowed.append(_once(grid, borrowing, here=head_core, tasks=source_core))

    def each(name: str) -> tuple[Samples, Samples]:
        return Samples.of(getattr(one, name) for one in borrowed), Samples.of(getattr(one, name) for one in alone)

    used = Samples.of(100 * (one.ray_s + one.grid_s) / (2 * one.whole_s) for one in borrowed)
    return (
        Line("a CPU-bound program with one core more", *each("whole_s"), _HALF_AS_FAST_AGAIN, unit="s"),
        Line("of that, computing", *each("computing_s"), unit="s"),
        Line("Ray's own processes meanwhile", *each("ray_s"), unit="CPU s"),
        Line("grid's own processes meanwhile", Samples.of(one.grid_s for one in borrowed), unit="CPU s"),
        Line("both together, of the two cores", used, unit="%"),
    )


def _once(cluster: Small, command: Sequence[str], *, here: int, tasks: int) -> _Ran:
    """The user sits at the head: the command and the driver are on its core."""
    resident, children, began = _resident(cluster), _children_s(), time.perf_counter()
    told = json.loads(_output(command, _environment(cluster), here).splitlines()[-1])
    whole_s = time.perf_counter() - began
    if (told["driver_cores"], told["task_cores"]) != ([here], [tasks]):
        raise RuntimeError(f"the driver was to be on core {here} and its tasks on core {tasks}, but: {told}")
    used = {process: _cpu_s(process) - cpu_s for process, cpu_s in resident.items()}
    # What a driver spends on ending comes after its report, and counts as grid's.
    command_s = _children_s() - children - told["driver_cpu_s"] if command[0] == GRID else 0.0
    return _Ran(
        whole_s,
        told["computing_s"],
        ray_s=sum(cpu_s for process, cpu_s in used.items() if not _is_grid(process)),
        grid_s=command_s + sum(cpu_s for process, cpu_s in used.items() if _is_grid(process)),
    )


def _output(command: Sequence[str], environment: Mapping[str, str], core: int) -> str:
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    ) as process:
        try:
            output, errors = process.communicate(timeout=_PATIENCE_S)
        except BaseException:
            process.terminate()  # `grid run` then also ends the program
            raise
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{errors}")
    return output


def _resident(cluster: Small) -> dict[psutil.Process, float]:
    """The processes that run in the cluster before and after the program: none of them computes for it."""
    record = load(cluster.home)
    assert record is not None
    return {process: _cpu_s(process) for process in trees(psutil.Process(node.pid) for node in record.nodes)}


def _is_grid(process: psutil.Process) -> bool:
    """All actors in these clusters are grid's."""
    return bool(process.name().startswith("ray::"))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _children_s() -> float:
    """CPU seconds of ended children and their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment(cluster: Small) -> dict[str, str]:
    return os.environ | {"GRID_HOME": str(cluster.home.path), "RAY_ADDRESS": cluster.ray_address}


def _overhead(effort: Effort) -> tuple[Line, ...]:
    """A program that does nothing, started both ways in turns, in one cluster."""
    empty = [sys.executable, str(_SCRIPTS / "empty.py")]
    with with_job_server() as cluster:
        found = time_in_turns(
            {
                "ours": [GRID, "run", "--", *empty],
                "ray": [RAY, "job", "submit", "--address", cluster.job_server, "--", *empty],
            },
            _environment(cluster),
            max(3, effort.commands // 3),  # Ray's takes seconds
        )
    return (Line("an empty program, against ray job submit", found["ours"], found["ray"], _NOT_SLOWER),)
