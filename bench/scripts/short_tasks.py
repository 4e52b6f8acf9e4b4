"""A plain Ray program with a queue of short tasks: `python short_tasks.py TASKS SECONDS`; 0 tasks: without an end.

It knows nothing of grid. With `ONLY_ON` in its environment, its tasks run on the node with that label.
"""

import os
import sys
import time

import ray

_QUEUED = 200


@ray.remote(num_cpus=1)
def short(seconds: float) -> None:
    time.sleep(seconds)


def main(tasks: int, seconds: float) -> None:
    ray.init()
    only = {"label_selector": {"grid/name": os.environ["ONLY_ON"]}} if "ONLY_ON" in os.environ else {}
    task = short.options(**only)
    waiting = [task.remote(seconds) for _ in range(tasks or _QUEUED)]
    while waiting:
        _, waiting = ray.wait(waiting)
        if not tasks:
            waiting.append(task.remote(seconds))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
