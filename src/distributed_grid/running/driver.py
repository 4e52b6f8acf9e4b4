"""The user's program: started once, in their terminal, folder and environment, and ended with all that it started."""

import ctypes
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psutil

from distributed_grid.errors import InvalidRequest
from distributed_grid.running.signals import let_in

GRACE_S: Final = 5.0
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)  # opened here: between fork and exec as little as possible may happen


@contextmanager
def explained(program: str) -> Iterator[None]:
    """Why a program cannot be started, in words for whoever typed it."""
    try:
        yield
    except FileNotFoundError:
        raise InvalidRequest(f"There is no command {program!r}") from None
    except PermissionError:
        raise InvalidRequest(f"{program!r} cannot be executed", try_next=f"python {program}") from None


class Driver:
    """One process and its children."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], output: Any = None) -> None:
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
        """Whether that process, on the machine at that address, is the program, or one that it started."""
        here = {found.address for interface in psutil.net_if_addrs().values() for found in interface}
        if address not in here:
            return False
        try:
            return pid == self.pid or any(parent.pid == self.pid for parent in psutil.Process(pid).parents())
        except psutil.Error:
            return False

    def exit_code(self) -> int | None:
        """None while it runs; as a shell tells it: 128 and the signal's number, if a signal ended it."""
        code = self._process.poll()
        return 128 - code if code is not None and code < 0 else code

    def wait(self, seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.exit_code()

    def tell(self, number: int) -> None:
        """Send it a signal; the program may know what to do with it."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end(self, grace_s: float = GRACE_S) -> int:
        """Ask it to end, then make it; what it started ends with it. Its exit code."""
        below = self._below()
        self.tell(signal.SIGTERM)
        if self.wait(grace_s) is None:
            self._process.kill()
        code = self.wait(GRACE_S)
        _kill(below | self._below())
        return 128 + signal.SIGKILL if code is None else code

    def _below(self) -> set[psutil.Process]:
        if self._process.poll() is not None:
            return set()  # by now its number may be another's
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
    """In the child, before the program: it hears signals, and does not go on without the lease if grid is killed."""
    let_in()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
