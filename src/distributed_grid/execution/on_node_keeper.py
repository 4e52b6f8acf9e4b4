"""The keeper of one command: starts it, reports how it ended, and ends it when its owner goes away.

This file runs as a separate program on the node where the command runs (`on_node_kept.py` starts it). Grid is not
installed there, so it imports only what Python ships. The keeper is the parent of the command and of every process that
the command leaves behind. The keeper itself is not a child of the Ray worker: a worker that ends kills its children,
and then nothing would end the rest.

The keeper reads orders as lines of JSON from its standard input, and answers with such lines on its standard output:

    {"start": {"command": [...], "cwd": ..., "env": {...}, "stdin": ..., "stdout": ..., "stderr": ...,
               "orphaned_s": 2.0, "folder": ...}}
    {"end": 10.0}             end the command: SIGTERM, and SIGKILL after this many seconds

    {"started": pid, "output_from": bytes}, {"failed": why}, {"ended": exit code, as Python's subprocess has it}

When its standard input ends, the command's owner is gone, and the keeper ends the command within `orphaned_s`. A
`folder` belongs to the command alone; the keeper removes it last.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import time
from typing import Any

_ORPHANED_S = 2.0
_SUBREAPER, _DEATH_SIGNAL = 36, 1
_LOOK_S = 0.05


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _tell(**what: object) -> None:
    with contextlib.suppress(OSError):  # the owner no longer reads
        os.write(1, json.dumps(what).encode() + b"\n")


class Keeper:
    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.kill_at: float | None = None
        self.exit_code: int | None = None
        self.orphaned_s = _ORPHANED_S
        self.folder: str | None = None

    def run(self) -> None:
        """Run until the command and everything it started have ended."""
        _prctl(_SUBREAPER, 1)
        waker, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.end(self.orphaned_s))
        signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the command would inherit
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        heard, unread = [0, waker], b""
        while not self.is_over():
            ready = select.select(heard, [], [], self.pause())[0]
            if waker in ready:
                os.read(waker, 4096)
            if 0 in ready:
                part = os.read(0, 65536)
                if not part:
                    heard.remove(0)
                    self.end(self.orphaned_s)
                *lines, unread = (unread + part).split(b"\n")
                for line in lines:
                    self.obey(json.loads(line))
            self.reap()
            if self.kill_at is not None and time.monotonic() >= self.kill_at:
                self.signal_all(signal.SIGKILL)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.exit_code is not None:
            _tell(ended=self.exit_code)

    def obey(self, order: dict[str, Any]) -> None:
        if "end" in order:
            self.end(order["end"])
        elif "start" in order and self.child is None and self.kill_at is None:
            self.start(**order["start"])

    def start(
        self,
        command: list[str],
        cwd: str,
        env: dict[str, str],
        stdin: str | None,
        stdout: str,
        stderr: str | None,
        orphaned_s: float = _ORPHANED_S,
        folder: str | None = None,
    ) -> None:
        self.orphaned_s, self.folder = orphaned_s, folder
        try:
            with contextlib.ExitStack() as files:
                output = files.enter_context(open(stdout, "ab"))
                errors = output if stderr in (None, stdout) else files.enter_context(open(stderr, "ab"))
                output_from = os.fstat(output.fileno()).st_size
                self.child = subprocess.Popen(
                    command,
                    cwd=cwd,
                    env=env,
                    stdin=files.enter_context(open(stdin or os.devnull, "rb")),
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                    preexec_fn=lambda: _prctl(_DEATH_SIGNAL, signal.SIGKILL),  # even if the keeper is killed
                )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            _tell(failed=f"{type(error).__name__}: {error}")
            self.kill_at = time.monotonic()
            return
        _tell(started=self.child.pid, output_from=output_from)

    def end(self, grace_s: float) -> None:
        """End the command. A later order may only shorten the grace period."""
        kill_at = time.monotonic() + grace_s
        if self.kill_at is None and grace_s > 0:
            self.signal_all(signal.SIGTERM)
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)

    def reap(self) -> None:
        """Collect ended processes. When the command itself has ended, end what it leaves behind."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if self.child is not None and ended[0] == self.child.pid:
                    self.exit_code = os.waitstatus_to_exitcode(ended[1])
                    self.end(self.orphaned_s)
                    self.signal_all(signal.SIGTERM)

    def is_over(self) -> bool:
        if self.child is None:
            return self.kill_at is not None
        return self.exit_code is not None and not self.below()

    def pause(self) -> float | None:
        if self.kill_at is None:
            return None
        return max(0.0, min(_LOOK_S, self.kill_at - time.monotonic())) or _LOOK_S

    def signal_all(self, number: int) -> None:
        for pid in self.below():
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def below(self) -> list[int]:
        """All processes below this one, including ended ones not yet reaped. None escapes: the keeper reaps them."""
        children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{int(name)}/stat") as file:
                children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
        found: list[int] = []
        left = [os.getpid()]
        while left:
            below = children.get(left.pop(), [])
            found += below
            left += below
        return found


if __name__ == "__main__" and os.fork() == 0:
    Keeper().run()
