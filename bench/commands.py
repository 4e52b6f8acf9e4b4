"""Times whole commands, as a user at a prompt waits for them."""

import subprocess
import time
from collections.abc import Mapping, Sequence

from bench.figures import Samples


def time_in_turns(
    commands: Mapping[str, Sequence[str]], environment: Mapping[str, str], runs: int
) -> dict[str, Samples]:
    """Milliseconds of every command, in turns, after one run of each that does not count."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    for run in range(runs + 1):
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True, timeout=120
            )
            if run:
                found[name].append((time.perf_counter() - began) * 1000)
    return {name: Samples.of(values) for name, values in found.items()}
