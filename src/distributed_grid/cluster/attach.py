"""Putting grid into a running Ray cluster, by a process of its own that may import ray."""

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from distributed_grid.controller.listening import checked
from distributed_grid.errors import Unavailable, error_from_dict
from distributed_grid.model.listening import Listening
from distributed_grid.store.home import GridHome

_PATIENCE_S = 120


def put_controller_in(
    ray_address: str,
    home: GridHome,
    config: Mapping[str, Any],
    config_source: str,
    *,
    listening: Listening | None = None,
) -> dict[str, Any]:
    """Start the controller in the cluster at `ray_address`; how it is reached, or the error that says why not."""
    order = {
        "address": ray_address,
        "home": str(home.create().path),
        "config": dict(config),
        "config_source": config_source,
        "listening": checked(listening or Listening()).to_dict(),
    }
    return ask_apart("distributed_grid.controller.join", order, if_silent="grid doctor tells what is in the way.")


def ask_apart(
    module: str, order: Mapping[str, Any], *, if_silent: str | None = None, patience_s: float = _PATIENCE_S
) -> dict[str, Any]:
    """Run one of grid's modules that import ray in a process of its own: JSON in, JSON out.

    `if_silent` tells a person what to try when no answer comes in time.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            timeout=patience_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"The cluster did not answer within {patience_s:.0f} s", try_next=if_silent) from error
    lines = done.stdout.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise Unavailable(
            f"{module} ended without an answer (exit code {done.returncode})",
            because=done.stderr.strip().splitlines()[-5:],
        ) from None
    if "error" in answer:
        raise error_from_dict(answer["error"])
    return answer
