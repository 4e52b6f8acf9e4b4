"""A Ray of its own for one run, on this machine, that cannot outlive whoever started it.

This module travels by value: it may import only what Python ships, and nothing of this package.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_STARTED = "Ray runtime started"
_AGENT_PORTS = (
    "--metrics-export-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--runtime-env-agent-port",
)

# Runs as a process of its own between the holder and Ray. When the pipe from the holder is closed, by it or because it
# is gone, all that was started here ends: what loses its parent becomes a child of this one, so nothing gets away.
# It is no child of the holder: a Ray worker that ends kills its children, and then nobody would end the rest.
_KEEPER = r"""
import ctypes, os, shutil, signal, subprocess, sys, threading, time
if os.fork():
    os._exit(0)
folder = os.path.dirname(sys.argv[1])
with open(sys.argv.pop(1), "w") as own_pid:
    own_pid.write(str(os.getpid()))
_PR_SET_CHILD_SUBREAPER = 36
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
def below():
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat:
                fields = stat.read().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(name)] = int(fields[1])
        except OSError:
            pass
    found, last = set(), {os.getpid()}
    while last:
        last = {pid for pid, parent in parents.items() if parent in last} - found
        found |= last
    return found
def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
ray = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
def until_let_go():
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
def end(*_):
    deadline = time.monotonic() + 20
    while (left := below()) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        reap()
        time.sleep(0.02)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=until_let_go, daemon=True).start()
while ray.poll() is None:
    time.sleep(0.1)
end()
"""


class OwnRay:
    """One `ray start --block`, which ends with this object or its process."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        """`arguments`: of `ray start`, but for the ports of its agents and, for a head, where it keeps its files."""
        self.folder = tempfile.mkdtemp(prefix="grid-ray-", dir="/tmp")  # short: the kernel limits the paths of sockets
        where = ["--temp-dir", self.folder] if "--head" in arguments else []
        self._log = Path(self.folder) / "ray-start.log"
        agents = zip(_AGENT_PORTS, _free_ports(len(_AGENT_PORTS)), strict=True)
        ports = [part for flag, port in agents for part in (flag, str(port))]
        ray = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", *arguments, *where, *ports]
        quiet = ["--disable-usage-stats", "--log-style", "record", "--log-color", "false", "--block"]
        keeper_pid = Path(self.folder) / "keeper.pid"
        with self._log.open("wb") as log:
            launcher = subprocess.Popen(
                [sys.executable, "-P", "-c", _KEEPER, str(keeper_pid), *ray, *quiet],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_clean(os.environ) | dict(environment or {}),
            )
        self._hold = launcher.stdin
        launcher.wait()
        while not (written := keeper_pid.read_text() if keeper_pid.exists() else ""):
            time.sleep(0.01)
        self.pid = int(written)

    def why_not_up(self, within_s: float) -> str | None:
        """Wait until it runs; the last lines of its log if it does not."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            said = self._log.read_text(errors="replace")
            if _STARTED in said:
                return None
            if not self._is_there():
                return _last_lines(said) or "Ray ended and wrote nothing to its log"
            time.sleep(0.05)
        return f"it was not up after {within_s:.0f} s: {_last_lines(self._log.read_text(errors='replace'))}"

    def end(self) -> None:
        """All its processes are gone on return."""
        if self._hold is not None:
            self._hold.close()
        deadline = time.monotonic() + 30
        while self._is_there() and time.monotonic() < deadline:
            time.sleep(0.02)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_there(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what another Ray has left in it, but for how one gets in."""
    kept = {name: value for name, value in environ.items() if not name.startswith("RAY_") or "AUTH" in name}
    return kept | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_worker_prestart": "0"}


def _free_ports(count: int) -> list[int]:
    """Free now; together, so that they differ."""
    with contextlib.ExitStack() as open_at_once:
        sockets = [open_at_once.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _last_lines(text: str, count: int = 8) -> str:
    return "; ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])
