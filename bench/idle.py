"""What the controller costs while it gets no requests."""

import time

import psutil

from bench.effort import Effort
from bench.figures import Line, Outcome, Samples
from bench.stage import Stage
from bench.standing import standing

_UNIT = "CPU s/min"


def run(stage: Stage, effort: Effort) -> Outcome:
    nothing = _cpu_per_minute(stage, effort.idle_s)
    with standing(stage, effort.many):
        much = _cpu_per_minute(stage, effort.idle_s)
    return Outcome(
        "idle controller",
        "no boosts",
        (
            Line("no boosts", nothing, unit=_UNIT),
            Line(f"{effort.many:,} active boosts", much, nothing, unit=_UNIT),
        ),
    )


def _cpu_per_minute(stage: Stage, seconds: float) -> Samples:
    """For the whole process, including the Ray worker's own threads."""
    controller = psutil.Process(stage.controller_pid())
    time.sleep(1.0)
    used, began = _cpu_s(controller), time.monotonic()
    time.sleep(seconds)
    return Samples.of([(_cpu_s(controller) - used) / (time.monotonic() - began) * 60])


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
