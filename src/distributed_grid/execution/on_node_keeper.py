"""Keeps one command: starts it, tells how it ended, and lets nothing of it outlive whoever wanted it.

This file is run as a program of its own on the node where the command runs (`on_node_kept.py` starts it); nothing of
grid is installed there, so it imports only what Python ships. It is the parent of the command, and of everything that
the command leaves behind. It is itself nobody's child: a Ray worker that ends kills its children, and then nobody would
end the rest.

It is told what to do in lines of JSON on its standard input, and answers in such lines on its standard output:

    {"start": {"command": [...], "cwd": ..., "env": {...}, "stdin": ..., "stdout": ..., "stderr": ...,
               "orphaned_s": 2.0, "folder": ...}}
    {"end": 10.0}             end it: SIGTERM, and SIGKILL after so many seconds

    {"started": pid, "output_from": bytes}, {"failed": why}, {"ended": exit code, as Python's subprocess has it}

When its standard input ends, whoever wanted the command is gone, and the command goes, too; it has `orphaned_s` for
that. A `folder` is the command's alone, and goes last.
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
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(1, json.dumps(what).encode() + b"\n")


class Keeper:
    def __init__(self) -> None:
        self.child: subprocess.Popen[bytes] | None = None
        self.kill_at: float | None = None
        self.exit_code: int | None = None
        self.orphaned_s = _ORPHANED_S
        self.folder: str | None = None

    def run(self) -> None:
        """Until the command has ended, and nothing of it is left."""
        _prctl(_SUBREAPER, 1)
        waker, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.end(self.orphaned_s))
        signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the command would inherit
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        heard, told = [0, waker], b""
        while not self.is_over():
            ready = select.select(heard, [], [], self.pause())[0]
            if waker in ready:
                os.read(waker, 4096)
            if 0 in ready:
                part = os.read(0, 65536)
                if not part:
                    heard.remove(0)
                    self.end(self.orphaned_s)
                *lines, told = (told + part).split(b"\n")
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
                    preexec_fn=lambda: _prctl(_DEATH_SIGNAL, signal.SIGKILL),  # if even the keeper is killed
                )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            _tell(failed=f"{type(error).__name__}: {error}")
            self.kill_at = time.monotonic()
            return
        _tell(started=self.child.pid, output_from=output_from)

    def end(self, grace_s: float) -> None:
        """A later order may only hurry."""
        kill_at = time.monotonic() + grace_s
        if self.kill_at is None and grace_s > 0:
            self.signal_all(signal.SIGTERM)
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)

    def reap(self) -> None:
        """Whoever ended is let go; when the command itself did, what it leaves behind ends, too."""
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
        """All processes below this one, also ended ones that are not let go yet. As it reaps them, none can leave."""
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
