"""A shell, or a command, whose Ray programs run inside a reserved boost. Imported by the commands that need it."""

from __future__ import annotations

import os
import subprocess
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from distributed_grid.client import GridClient
from distributed_grid.model.endings import TERM_S
from distributed_grid.monitoring.cpu_meter import CpuMeter
from distributed_grid.run.driver import captured, explained
from distributed_grid.run.held_lease import HeldLease, reserved
from distributed_grid.run.monitor import LeaseMessages, MessageFiles

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost

_POLL_S: Final = 0.2


def run_inside(
    client: GridClient,
    boost: Boost,
    command: tuple[str, ...],
    say: Callable[[str], None],
    *,
    allow_escapes: bool = False,
) -> int:
    """Run the command, or a shell, in the user's terminal, folder and environment. Returns its exit code.

    A command is terminated when the grace period ends, as a run is. A shell belongs to its user and stays open: the
    controller cancels the work in it when the grace period ends, and later submissions are refused.
    """
    reserved(client, boost)
    inside = command or (os.environ.get("SHELL", "/bin/sh"),)
    if not command:
        say(f"Ray work in this shell runs on {boost['source_node']}, in boost {boost['boost_id'][:8]}. To leave: exit")
    with tempfile.TemporaryDirectory(prefix="grid-shell-") as folder:
        files = MessageFiles(Path(folder))
        environment = captured(client, boost, allow_escapes=allow_escapes) | files.environment
        with explained(inside[0]), subprocess.Popen(inside, env=environment) as process:
            try:
                return _supervised(client, boost, process, Path(inside[0]).name, say, files, ends=bool(command))
            except BaseException:
                process.kill()
                raise


def _supervised(
    client: GridClient,
    boost: Boost,
    process: subprocess.Popen[bytes],
    label: str,
    say: Callable[[str], None],
    files: MessageFiles,
    *,
    ends: bool,
) -> int:
    lease = HeldLease(client, boost, uuid.uuid4().hex, label, is_ours=False, is_inside=lambda: ends or _runs(process))
    lease.measure(CpuMeter(process.pid).read)
    messages = LeaseMessages(lease, say, files)
    try:
        while (code := _waited(process, _POLL_S)) is None:
            for text in lease.losses():
                say(f"grid: {text}")
            reclaim_now = messages.look("The command" if ends else "What runs in this shell")
            if lease.ended is None and (reclaim_now is None or not reclaim_now.is_over):
                continue
            say(f"grid: boost {lease.id[:8]} has ended.")
            if not ends:
                messages.gone()
                lease.give_back()
                return process.wait()
            process.terminate()
            if (code := _waited(process, TERM_S)) is None:
                process.kill()
            return process.wait() if code is None else code
        return code
    finally:
        lease.give_back()


def _waited(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def _runs(shell: subprocess.Popen[bytes]) -> bool:
    """Whether the shell has child processes, or is merely open."""
    try:
        return bool(psutil.Process(shell.pid).children())
    except psutil.NoSuchProcess:
        return False
