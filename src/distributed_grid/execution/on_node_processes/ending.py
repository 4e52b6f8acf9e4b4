"""Ending a process with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final, TypedDict

from distributed_grid.execution.on_node_processes.proc import Stat, everything, same, tree

_LOOK_S: Final = 0.02
_KILLED_S: Final = 5.0


class Ended(TypedDict):
    was_there: bool
    """It was still the process that is meant; if not, nothing was touched."""
    ended: bool
    """Nothing of it is left."""
    killed: int


def stop(pid: int, created_at: float, grace_s: float) -> Ended:
    """Ask the process and its descendants to end, wait, and kill what is left after `grace_s`."""
    if same(pid, created_at) is None:
        return {"was_there": False, "ended": True, "killed": 0}
    family = tree(pid, everything())
    _signal(family, signal.SIGTERM)
    _signal(family, signal.SIGCONT)  # a stopped process does not handle SIGTERM
    left = _wait(family, grace_s)
    killed = len(left)
    if left:
        # Also processes that were started in the meantime.
        left = list({one.pid: one for member in left for one in [member, *tree(member.pid, everything())]}.values())
        _signal(left, signal.SIGKILL)
        left = _wait(left, _KILLED_S)
    return {"was_there": True, "ended": not left, "killed": killed}


def _signal(family: list[Stat], number: int) -> None:
    for member in family:
        if same(member.pid, member.created_at) is not None and member.pid != os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(member.pid, number)


def _wait(family: list[Stat], within_s: float) -> list[Stat]:
    """The processes that are still alive after that time; zombies count as ended."""
    deadline = time.monotonic() + within_s
    while True:
        left = [one for one in family if (now := same(one.pid, one.created_at)) is not None and now.state not in "ZX"]
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_LOOK_S)
