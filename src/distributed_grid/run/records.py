"""The runs on this machine: for each a folder with its record, its output if detached, and its reports."""

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypedDict, Unpack, cast

import psutil

from distributed_grid.errors import RunNotFound
from distributed_grid.model.times import instant
from distributed_grid.store.durable import replace_durably
from distributed_grid.store.home import GridHome

_KEPT: Final = 200
"""How many ended runs are kept."""
_SAME_PROCESS_S: Final = 1.0


State = Literal["starting", "running", "done", "failed", "cancelled", "lost", "refused"]
"""A refused run never began; a lost one was ended with its lease, or its process exited without recording an end."""


class ShownRun(TypedDict):
    """One run as `--json` shows it."""

    task_id: str
    command: str
    folder: str
    state: State
    pid: int
    exit_code: int | None
    boost_id: str | None
    source_node: str | None
    source_nodes: tuple[str, ...]
    target_node: str | None
    isolation: str
    allow_escapes: bool
    detached: bool
    messages: tuple[str, ...]
    label: str
    began_at: str
    ended_at: str | None
    seconds: float


class ShownRuns(TypedDict):
    """The runs of this machine as `--json` shows them."""

    tasks: list[ShownRun]


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    id: str
    command: str
    """Its command line, with likely secrets hidden."""
    folder: str
    state: State
    pid: int
    """The process that holds the lease and the program."""
    pid_since: float
    began: float
    ended: float | None = None
    exit_code: int | None = None
    boost_id: str | None = None
    source_node: str | None = None
    """The lender; of several, the first."""
    source_nodes: tuple[str, ...] = ()
    """All lenders."""
    target_node: str | None = None
    isolation: str = "group"
    allow_escapes: bool = False
    detached: bool = False
    messages: tuple[str, ...] = ()
    """Messages for the user: what was rewritten, what escaped."""
    label: str = ""
    """Its name in what other users see."""

    @property
    def is_over(self) -> bool:
        return self.ended is not None

    def shown(self) -> ShownRun:
        """As `--json` shows it."""
        from datetime import UTC, datetime

        def at(moment: float | None) -> str | None:
            return None if moment is None else instant(datetime.fromtimestamp(moment, UTC))

        kept = {key: value for key, value in asdict(self).items() if key not in ("pid_since", "began", "ended", "id")}
        seconds = (self.ended or time.time()) - self.began
        times = {"began_at": at(self.began), "ended_at": at(self.ended), "seconds": seconds}
        return cast("ShownRun", {"task_id": self.id, **kept, **times})


class RunChanges(TypedDict, total=False):
    """The fields of a run that change while it runs."""

    state: State
    ended: float
    exit_code: int
    boost_id: str
    source_node: str
    source_nodes: tuple[str, ...]
    target_node: str
    messages: tuple[str, ...]


class Runs:
    """The runs of one installation, as files that all the user's processes may read."""

    def __init__(self, home: GridHome) -> None:
        self._path = home.runs

    def begin(
        self,
        command: str,
        *,
        isolation: str,
        detached: bool,
        label: str = "",
        allow_escapes: bool = False,
        run_id: str | None = None,
    ) -> Run:
        """Create a run that this process holds. `label`: its name in what other users see."""
        self._forget_old()
        run_id = run_id or uuid.uuid4().hex[:12]
        folder = self._path / run_id
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.save(
            Run(
                run_id,
                command,
                str(folder),
                "starting",
                os.getpid(),
                psutil.Process().create_time(),
                time.time(),
                isolation=isolation,
                allow_escapes=allow_escapes,
                detached=detached,
                label=label,
            )
        )

    def save(self, run: Run, **changes: Unpack[RunChanges]) -> Run:
        changed = replace(run, **changes)
        replace_durably(Path(run.folder) / "run.json", json.dumps(asdict(changed), indent=2).encode() + b"\n")
        return changed

    def forget(self, run: Run) -> None:
        shutil.rmtree(run.folder, ignore_errors=True)

    def all(self) -> list[Run]:
        """The youngest first. A run whose process ended without recording an end is lost."""
        return sorted(self._read(), key=lambda run: (-run.began, run.id))

    def find(self, run_id: str) -> Run:
        """By its id or a prefix of it."""
        matches = [run for run in self.all() if run.id.startswith(run_id)] if run_id else []
        if len(matches) == 1:
            return matches[0]
        raise RunNotFound(
            f"{'Several runs begin' if matches else 'No run begins'} with {run_id!r}",
            try_next="See the runs of this machine: grid tasks ls",
        )

    def process_of(self, run: Run) -> psutil.Process | None:
        """The process that holds the run, never a later one with the same id."""
        try:
            process = psutil.Process(run.pid)
            same = abs(process.create_time() - run.pid_since) < _SAME_PROCESS_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None

    def _read(self) -> Iterator[Run]:
        for file in self._path.glob("*/run.json"):
            try:
                data = json.loads(file.read_text())
                run = Run(
                    **{**data, **{name: tuple(data[name]) for name in ("messages", "source_nodes") if name in data}}
                )
            except (OSError, ValueError, TypeError, KeyError):
                continue  # being written, or not ours
            if not run.is_over and self.process_of(run) is None:
                run = replace(run, state="lost", ended=file.stat().st_mtime)
            yield run

    def _forget_old(self) -> None:
        for run in [run for run in self.all() if run.is_over][_KEPT:]:
            self.forget(run)
