"""A plain Ray program: it computes half of its parts itself, and gives the other half to tasks.

`python halves.py PARTS STEPS`; its last line of output is JSON. It knows nothing of grid.
"""

import json
import os
import sys
import time

import ray


def part(steps: int) -> int:
    total = 0
    for step in range(steps):
        total += step
    return total


@ray.remote(num_cpus=1)
def part_elsewhere(steps: int) -> tuple[int, list[int]]:
    return part(steps), sorted(os.sched_getaffinity(0))


def main(parts: int, steps: int) -> None:
    ray.init()
    began = time.perf_counter()
    given_away = [part_elsewhere.remote(steps) for _ in range(parts // 2)]
    total = sum(part(steps) for _ in range(parts - parts // 2))
    done = ray.get(given_away)
    seconds = time.perf_counter() - began
    told = {
        "total": total + sum(one for one, _ in done),
        "computing_s": seconds,
        "driver_cpu_s": time.process_time(),
        "driver_cores": sorted(os.sched_getaffinity(0)),
        "task_cores": sorted({core for _, cores in done for core in cores}),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
