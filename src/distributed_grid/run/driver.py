"""The user's program: its command line, its environment, and its process, which ends with all its children."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import psutil

from distributed_grid import capture
from distributed_grid.client import GridClient
from distributed_grid.decide.offload.secrets import shown_command
from distributed_grid.errors import InvalidRequest
from distributed_grid.model.resources import ResourceVector
from distributed_grid.model.work import RUN_MARK
from distributed_grid.run.signals import unblock_signals

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import Boost


def command_of(words: Sequence[str], environ: Mapping[str, str], own_python: str) -> list[str]:
    """`script.py args`, `-m module args` and `-c code` are Python's; anything else is a command."""
    if not words:
        raise InvalidRequest(
            "There is nothing to run",
            try_next="grid run --cpus 4 -- script.py args... (or -m module, or any command)",
        )
    first = words[0]
    if first in ("-m", "-c"):
        if len(words) == 1:
            raise InvalidRequest(f"{first} needs an argument")
        return [python(environ, own_python), *words]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise InvalidRequest(f"There is no script {first!r} here", because=[f"looked in {Path.cwd()}"])
        return [python(environ, own_python), *words]
    _check_command(first, environ)
    return list(words)


def _check_command(first: str, environ: Mapping[str, str]) -> None:
    if first.startswith("-"):
        raise InvalidRequest(f"grid run has no option {first!r}", try_next="See all of them: grid run --help")
    if shutil.which(first, path=environ.get("PATH")) is not None:
        return
    if Path(first).is_file():
        raise InvalidRequest(f"{first!r} cannot be executed", try_next=f"chmod +x {first}, or: bash {first}")
    if " " in first:
        raise InvalidRequest(
            f"There is no command {first!r}",
            because=["quoted, it is one word that contains spaces"],
            try_next=f"Leave out the quotes, or let a shell run it: grid run -- sh -c {shlex.quote(first)}",
        )
    raise InvalidRequest(f"There is no command {first!r}", because=["looked in PATH"] if "/" not in first else [])


def python(environ: Mapping[str, str], own_python: str) -> str:
    """The interpreter of the user's active environment, else the one that runs grid."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        found = Path(environ[name]) / "bin" / "python" if environ.get(name) else None
        if found is not None and os.access(found, os.X_OK):
            return str(found)
    return own_python


_INTERPRETER: Final = re.compile(r"python[\d.]*")
_LONGEST_LINE: Final = 500


def label_of(words: Sequence[str]) -> str:
    """The name shown to others: the program or the script, never the arguments, which may contain secrets."""
    first, name = words[0], Path(words[0]).name
    if first == "-m" and len(words) > 1:
        return f"-m {words[1]}"
    if first == "-c":
        return "-c ..."
    if _INTERPRETER.fullmatch(name) and len(words) > 1 and (words[1] in ("-m", "-c") or words[1].endswith(".py")):
        return f"{name} {label_of(words[1:])}"
    return name


def line_of(words: Sequence[str]) -> str:
    """The command line as its own user sees it: on one line, shortened, with likely secrets hidden."""
    line = " ".join(shlex.join(shown_command(words)).split())
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 3]}..."


_JOB_CONFIG: Final = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray adds its value to the configuration of every job whose driver has this variable."""


def captured(
    client: GridClient,
    boost: Boost,
    report: Path | None = None,
    *,
    run_id: str = "",
    allow_escapes: bool = False,
) -> dict[str, str]:
    """The environment of a program whose Ray work goes into the lease's placement group: Python finds the hook."""
    hook = str(Path(capture.__file__).parent)
    path = os.pathsep.join(part for part in (hook, os.environ.get("PYTHONPATH", "")) if part)
    reporting = {} if report is None else {"GRID_RUN_REPORT": str(report)}
    return (
        os.environ
        | reporting
        | {
            "RAY_ADDRESS": client.ray_address(),
            "GRID_BOOST": boost["boost_id"],
            "GRID_PLACEMENT_GROUP": boost["placement_group"] or "",
            "GRID_LEASE_NODE": _node_id(client, boost["source_node"]),
            "GRID_LEASE_RESOURCES": json.dumps(_first_bundle(boost).to_ray()),
            "GRID_CAPTURE_WORKERS": os.environ.get("GRID_CAPTURE_WORKERS", "1"),
            "GRID_ALLOW_ESCAPES": "1" if allow_escapes else "0",
            "PYTHONPATH": path,
        }
        | ({_JOB_CONFIG: marked(os.environ.get(_JOB_CONFIG, ""), run_id)} if run_id else {})
    )


def _first_bundle(boost: Boost) -> ResourceVector:
    """What the first bundle of the lease holds, on the node that `source_node` names."""
    return ResourceVector.of(**(boost["parts"][0]["resources"] if boost["parts"] else boost["resources"]))


def private(boost: Boost, ray_address: str, auth_mode: str) -> dict[str, str]:
    """The environment of a program with a private Ray cluster."""
    return os.environ | {"RAY_ADDRESS": ray_address, "RAY_AUTH_MODE": auth_mode, "GRID_BOOST": boost["boost_id"]}


def marked(job_config: str, run_id: str) -> str:
    """The job configuration with the run's id, so that Ray knows every job of the run, even without the hook."""
    try:
        config = dict(json.loads(job_config or "{}"))
    except (ValueError, TypeError):
        config = {}
    return json.dumps({**config, "metadata": {**(config.get("metadata") or {}), RUN_MARK: run_id}})


def _node_id(client: GridClient, name: str) -> str:
    """Empty if the node has left the cluster: the hook then asks Ray."""
    nodes = client.nodes()["nodes"]
    return next((node["node_id"] for node in nodes if node["name"] == name and node["alive"]), "")


GRACE_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)  # opened here: as little as possible may happen between fork and exec


@contextmanager
def explained(program: str) -> Iterator[None]:
    """Turn a failure to start the program into an error that the user understands."""
    try:
        yield
    except FileNotFoundError:
        raise InvalidRequest(f"There is no command {program!r}") from None
    except PermissionError:
        raise InvalidRequest(f"{program!r} cannot be executed", try_next=f"python {program}") from None


class Driver:
    """One process and its children."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: BinaryIO | None = None) -> None:
        with explained(command[0]):
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                stdin=subprocess.DEVNULL if output is not None else None,
                preexec_fn=_as_a_program,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_above(self, pid: int, address: str) -> bool:
        """Whether the process, on the machine at that address, is the program or one of its descendants."""
        here = {found.address for interface in psutil.net_if_addrs().values() for found in interface}
        if address not in here:
            return False
        try:
            return pid == self.pid or any(parent.pid == self.pid for parent in psutil.Process(pid).parents())
        except psutil.Error:
            return False

    def exit_code(self) -> int | None:
        """None while it runs; as in a shell, 128 plus the signal's number if a signal ended it."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def wait(self, seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.exit_code()

    def tell(self, number: int) -> None:
        """Send the program a signal, which it may handle."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end(self, grace_s: float = GRACE_S) -> int:
        """Ask the program to end, then kill it, with all its descendants. Returns its exit code."""
        below = self._below()
        self.tell(signal.SIGTERM)
        if self.wait(grace_s) is None:
            self._process.kill()
        code = self.wait(GRACE_S)
        _kill(below | self._below())
        return 128 + signal.SIGKILL if code is None else code

    def _below(self) -> set[psutil.Process]:
        if self._process.poll() is not None:
            return set()  # its process id may have been reused
        try:
            return set(psutil.Process(self.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return set()


def _kill(processes: set[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=GRACE_S)


def _as_a_program() -> None:
    """In the child, before exec: unblock signals, and have the program terminated if grid is killed."""
    unblock_signals()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
