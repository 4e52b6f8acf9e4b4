"""One checkup as a process: the order on stdin, the facts on stdout."""

import json
import os
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Final

from distributed_grid.controller.checkup.rounds import Checkup
from distributed_grid.store.home import GridHome

_LIMIT_S: Final = 75.0


def main() -> int:
    order = json.load(sys.stdin)
    limit_s = order.pop("limit_s", _LIMIT_S)
    checkup = Checkup(GridHome(Path(order.pop("home"))), **order)
    telling = threading.Lock()

    def tell() -> None:
        sys.stdout.write(json.dumps(asdict(checkup.facts)) + "\n")
        sys.stdout.flush()

    def give_up() -> None:
        """Answer with the facts so far: a hanging call cannot be ended otherwise."""
        with telling:
            tell()
            os._exit(0)

    watchdog = threading.Timer(limit_s, give_up)
    watchdog.daemon = True
    watchdog.start()
    checkup.look()
    if (ray := sys.modules.get("ray")) is not None and hasattr(ray, "shutdown"):
        ray.shutdown()  # now, since what it may print must not follow the answer
    with telling:
        watchdog.cancel()
        tell()
    return 0


if __name__ == "__main__":
    sys.exit(main())
