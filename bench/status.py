"""`grid boost status`, compared with `ray status`."""

from typing import Final

from bench.commands import time_in_turns
from bench.effort import Effort
from bench.figures import Limits, Line, Outcome
from bench.stage import GRID, RAY, Stage

_LIMITS: Final = Limits(times_baseline=0.4)


def run(stage: Stage, effort: Effort) -> Outcome:
    found = time_in_turns(
        {"ours": [GRID, "boost", "status"], "ray": [RAY, "status", "--address", stage.ray_address]},
        stage.environment,
        effort.commands,
    )
    return Outcome(
        "status", "ray status --address ...", (Line("grid boost status", found["ours"], found["ray"], _LIMITS),)
    )
