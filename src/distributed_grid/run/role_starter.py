"""Starts the process that owns a run of roles, and learns from it whether the run came up."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from distributed_grid.errors import GridError, error_from_dict
from distributed_grid.store.home import GridHome

if TYPE_CHECKING:
    from distributed_grid.run.role_owner import RunOrder

OUTPUT: Final = "output.log"
_LOOK_S: Final = 0.3
_END_S: Final = 60.0
_LAST_LINES: Final = 5
_FOR_A_FILE: Final = {"RAY_DEDUP_LOGS": "0", "RAY_COLOR_PREFIX": "0"}
"""Keep every line that actors print, without colours, unless the user's environment says otherwise."""


def output_of(home: GridHome, name: str) -> Path:
    return home.roles / name / OUTPUT


@dataclass(frozen=True, slots=True)
class Order:
    """The run to start, and how."""

    name: str
    file: str
    working_dir: str | None
    """Ray copies it to every node."""
    wait_s: float
    """How long to wait for room."""
    foreground: bool

    @property
    def folder(self) -> str:
        """Where classes are looked up."""
        return str(Path(self.working_dir or ".").absolute())

    def to_dict(self, home: GridHome, answer_fd: int) -> "RunOrder":
        return {
            "home": str(home.path),
            "name": self.name,
            "file": str(Path(self.file).absolute()),
            "folder": self.folder,
            "working_dir": self.folder if self.working_dir else None,
            "wait_s": self.wait_s,
            "foreground": self.foreground,
            "answer_fd": answer_fd,
        }


class OwnerProcess:
    """A started owner process. Leaving this block before the run is up ends it."""

    def __init__(self, home: GridHome, order: Order) -> None:
        self._home = home
        self._order = order
        self._output = output_of(home, order.name)
        self._is_up = False

    def __enter__(self) -> Self:
        reading, writing = os.pipe()
        try:
            self._process = self._start(writing)
        finally:
            os.close(writing)
        self._answer = os.fdopen(reading, "rb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._answer.close()
        if not self._is_up:
            self.end()

    def until_up(self, look: Callable[[], None]) -> None:
        """Wait until the run is up, calling `look` now and then. Raises the reason if it does not come up."""
        while not select.select([self._answer], [], [], _LOOK_S)[0]:
            look()
        line = self._answer.readline()
        if not line:  # it died, or was ended, without an answer
            code = self._process.wait()
            raise GridError(
                f"The owner process of {self._order.name} exited with {code} before the run was up",
                because=self._last_lines(),
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self._process.wait()  # it has released everything by then
            raise error_from_dict(answer["error"])
        self._is_up = True

    def stay(self) -> int:
        """Wait until the owner ends. It handles Ctrl-C itself: it takes everything down first."""
        while True:
            try:
                return self._process.wait()
            except KeyboardInterrupt:
                continue

    def end(self) -> None:
        """Ask the owner to take down all that it has started; if it does not, kill it, and Ray does so."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self, answer_fd: int) -> "subprocess.Popen[bytes]":
        # -P: the order decides what is on sys.path, so the current folder is not added.
        command = [sys.executable, "-P", "-m", "distributed_grid.run.role_owner"]
        folder = self._order.folder
        if self._order.foreground:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[answer_fd], cwd=folder)
        else:
            for path in (self._home.create().roles, self._output.parent):
                path.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[answer_fd],
                    cwd=folder,
                    env=_FOR_A_FILE | os.environ,
                    start_new_session=True,
                )
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(json.dumps(self._order.to_dict(self._home, answer_fd)).encode())
        return process

    def _last_lines(self) -> list[str]:
        if self._order.foreground:
            return []
        return self._output.read_text(errors="replace").splitlines()[-_LAST_LINES:]
