"""The actor that runs a command on a node. This module travels by value, because grid is not installed there.

The types of orders and answers are for mypy only, on both sides: code that is sent to a node never uses them there.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import stat
import tempfile
import threading
from typing import TYPE_CHECKING, Final, Literal, Required, TypedDict

from distributed_grid.execution.on_node_kept import Kept

if TYPE_CHECKING:
    from distributed_grid.wire.offload import LogPiece

State = Literal["prepared", "running", "ended", "failed"]
PREPARED: Final = "prepared"
RUNNING: Final = "running"
ENDED: Final = "ended"
FAILED: Final = "failed"
_STARTED_S: Final = 30.0
LARGEST_PIECE: Final = 256 * 1024
_FROM_RAY: Final = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class RunnerOrder(TypedDict):
    """What a runner starts, and which files that reads and writes; None: none, or the runner's log."""

    command: list[str]
    cwd: str
    stdin: str | None
    stdout: str | None
    stderr: str | None


class StartOrder(RunnerOrder):
    """What the keeper starts."""

    env: dict[str, str]


class RunnerRecord(TypedDict, total=False):
    """What a runner keeps about a moved process, for a controller that finds it later."""

    kind: str
    label: str
    from_node: str
    from_pid: int
    created_at: float
    to_node: str
    requester: str
    team: str
    kept: bool
    grace_s: float
    began_at: str
    by_hand: str
    stopping: bool
    cancelled: bool
    """A user asked for its end; `grace_s` is then the grace period of that."""


class RunnerSaid(RunnerRecord):
    """A runner's record and state."""

    state: Required[State]
    why: Required[str | None]
    pid: Required[int | None]
    exit_code: Required[int | None]
    output: Required[str]
    output_from: Required[int]


class Runner:
    """Runs one command once, in the part of its node that this actor holds.

    The actor first receives the command, and starts it on a second order; a repeated order does not start it again. The
    command is the child of a keeper, which ends it when this process is gone.
    """

    def __init__(self, name: str, record: RunnerRecord) -> None:
        """`record`: facts for processes that find this actor later."""
        self._record = record
        self._state: State = PREPARED
        self._why: str | None = None
        self._pid: int | None = None
        self._exit_code: int | None = None
        self._lock = threading.Lock()
        self._reported = threading.Event()
        self._over = threading.Event()
        self._folder = _folder()
        self._log = os.path.join(self._folder, f"{name}.log")
        self._output, self._output_from = self._log, 0
        self._order: StartOrder | None = None
        self._kept = Kept()
        threading.Thread(target=self._listen, daemon=True).start()

    def prepare(self, order: RunnerOrder, env: dict[str, str], given: dict[str, str]) -> RunnerSaid:
        """Set what to run: `command`, `cwd`, files to read and write. `env`: copied values, `given`: new values."""
        own = {name: os.environ[name] for name in _FROM_RAY if name in os.environ}
        output = order.get("stdout") or self._log
        self._output = output
        self._order = {**order, "env": env | own | given, "stdout": output}
        return self.about()

    def note(self, changes: RunnerRecord) -> RunnerSaid:
        """Add to the record for processes that find this actor later."""
        self._record = {**self._record, **changes}
        return self.about()

    def go(self) -> RunnerSaid:
        """Start the command, once; the resulting state."""
        with self._lock:
            if self._order is not None and self._state == PREPARED:
                self._state = RUNNING
                self._kept.tell(start=self._order)
                self._order = None
        self._reported.wait(_STARTED_S)
        return self.about()

    def wait(self, within_s: float) -> bool:
        """Wait until the command has ended, or will never start; False if that takes longer."""
        return self._over.wait(within_s)

    def about(self) -> RunnerSaid:
        return {
            **self._record,
            "state": self._state,
            "why": self._why,
            "pid": self._pid,
            "exit_code": self._exit_code,
            "output": self._output,
            "output_from": self._output_from,
        }

    def read(self, begin: int) -> LogPiece:
        """A piece of the command's output, from byte `begin` after its start."""
        return read_piece(self._output, self._output_from, begin)

    def end(self, grace_s: float, within_s: float) -> RunnerSaid:
        """End the command: SIGTERM, and SIGKILL after the grace period."""
        self._kept.tell(end=grace_s)
        self._over.wait(within_s)
        return self.about()

    def _listen(self) -> None:
        for said in self._kept.heard():
            if "started" in said:
                self._pid, self._output_from = said["started"], said["output_from"]
            elif "failed" in said:
                self._state, self._why = FAILED, said["failed"]
            else:
                self._state, self._exit_code = ENDED, said["ended"]
            self._reported.set()
        if self._state not in (ENDED, FAILED):  # it ended before it was started, or its keeper was killed
            self._state, self._why = FAILED, "it was never started" if self._pid is None else "its keeper was killed"
        self._reported.set()
        self._over.set()


def read_piece(path: str, output_from: int, begin: int) -> LogPiece:
    """Text from a log, cut only between characters, and where the next piece begins."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(output_from + begin)
        piece = file.read(LARGEST_PIECE)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(piece)
        more = len(piece) == LARGEST_PIECE
        return {"text": text, "next": begin + len(piece) - len(decoder.getstate()[0]), "more": more}
    return {"text": "", "next": begin, "more": False}


def _folder() -> str:
    """The folder for logs on this node: beside Ray's own logs, readable by its user alone."""
    import ray

    session = ray._private.worker._global_node.get_session_dir_path() if ray.is_initialized() else tempfile.gettempdir()
    return own_folder(os.path.join(session, "grid-runs"))


def own_folder(folder: str) -> str:
    """A folder that only this user can use, created if necessary.

    Ray's own folder is open to all users, so another user's folder may already have this name; that one is refused.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is not a folder owned by user {os.getuid()}; remove it and retry")
    if found.st_mode & 0o077:
        os.chmod(folder, 0o700)
    return folder
