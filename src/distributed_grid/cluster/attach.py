"""Adds grid to a running Ray cluster, through a separate process that may import ray."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from distributed_grid.controller.listening import checked
from distributed_grid.errors import Unavailable, error_from_dict
from distributed_grid.model.listening import Listening
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.controller.join import JoinOrder
    from distributed_grid.wire.controller import ControllerUp

_PATIENCE_S = 300
_BEAT_S = 1.0


def start_controller(
    ray_address: str,
    home: GridHome,
    config: Mapping[str, object],
    config_source: str,
    *,
    listening: Listening | None = None,
    adopt: bool = False,
    patient: bool = False,
    meanwhile: Callable[[], None] | None = None,
) -> "ControllerUp":
    """Start the controller in the cluster at `ray_address`; how to reach it, or the error that says why not.

    A `patient` controller starts degraded if its state files cannot be read, and reports that in its status instead of
    raising. `meanwhile` is called about every second until the start ends.
    """
    order: JoinOrder = {
        "address": ray_address,
        "home": str(home.create().path),
        "config": dict(config),
        "config_source": config_source,
        "listening": checked(listening or Listening()).to_dict(),
        "adopt": adopt,
        "patient": patient,
    }
    answer = ask_apart(
        "distributed_grid.controller.join",
        order,
        if_silent="To find the cause: grid doctor",
        meanwhile=meanwhile,
    )
    return cast("ControllerUp", answer)


def ask_apart(
    module: str,
    order: Mapping[str, object],
    *,
    if_silent: str | None = None,
    patience_s: float = _PATIENCE_S,
    meanwhile: Callable[[], None] | None = None,
) -> dict[str, object]:
    """Run one of grid's modules that import ray in a separate process: JSON in, JSON out.

    `if_silent` tells a person what to try when no answer comes in time.
    """
    command = [sys.executable, "-m", module]
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    except OSError as error:
        raise Unavailable(
            f"Cannot start a process for {module}: {error.strerror}",
            try_next="Free some memory, or end some processes.",
        ) from error
    with process as child:
        try:
            said, complained = _answer_of(child, json.dumps(order), patience_s, meanwhile)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"The cluster did not answer within {patience_s:.0f} s", try_next=if_silent) from error
        finally:
            child.kill()  # if it has not ended yet: its answer is no longer needed
    lines = said.strip().splitlines()
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise Unavailable(
            f"{module} ended without an answer (exit code {child.returncode})",
            because=complained.strip().splitlines()[-5:],
        ) from None
    if "error" in answer:
        raise error_from_dict(answer["error"])
    return answer


def _answer_of(
    child: "subprocess.Popen[str]", order: str, patience_s: float, meanwhile: Callable[[], None] | None
) -> tuple[str, str]:
    """The output of a process until it ends; `TimeoutExpired` if that takes too long."""
    deadline = time.monotonic() + patience_s
    unsent: str | None = order
    while True:
        left = deadline - time.monotonic()
        try:
            return child.communicate(unsent, timeout=min(left, _BEAT_S) if meanwhile else left)
        except subprocess.TimeoutExpired:
            unsent = None  # the process has the input by now
            if meanwhile is None or time.monotonic() >= deadline:
                raise
            meanwhile()
