"""Signals that reach a run, and the sender of each, so that the program gets every signal exactly once.

The kernel sends what is typed at a terminal (Ctrl-C, Ctrl-Z) to all processes of the foreground group, so to the
program as well as to the run. A signal sent with `kill` reaches the run alone. The kernel reveals the sender to a
process that waits for a signal, but not to a handler. So while the program runs, signals are blocked and waited for.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Final, Self

CANCELS: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_PASSED_ON: Final = frozenset({signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP})
"""Signals that do not ask for the run's end: the program may save its work, or print what it does."""
HANDLED: Final = CANCELS | _PASSED_ON
_SI_USER_MAX: Final = 0
"""A signal from a process has a code up to this (man 2 sigaction); the kernel's own codes are above."""


class Cancelled(BaseException):
    """A signal ended the run before the program began; as with KeyboardInterrupt, everything is released."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class ReceivedSignal:
    """One signal."""

    number: int
    sender: int | None
    """The sending process; None if the kernel sent it, which signals the terminal's whole foreground group."""

    @property
    def is_typed(self) -> bool:
        """Whether a user typed it at the terminal; a hangup means that the terminal is gone."""
        return self.sender is None and self.number != signal.SIGHUP

    def has_reached(self, pid: int) -> bool:
        """Whether that process got it, too: a program may have left the run's process group."""
        try:
            return self.sender is None and os.getpgid(pid) == os.getpgrp()
        except ProcessLookupError:
            return True  # the process is gone


class Signals:
    """Until the program begins, the first signal that cancels raises `Cancelled`. From then on signals are blocked and
    `next` returns them. Signals after the program's end have no effect."""

    def __init__(self) -> None:
        # Ignored signals stay ignored, as `nohup` and a shell's `&` require; but SIGTERM can always end a run.
        ignored = {number for number in HANDLED if signal.getsignal(number) == signal.SIG_IGN}
        self._heard = HANDLED - ignored | {signal.SIGTERM}
        self._raises = True

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in CANCELS & self._heard}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def while_the_program_runs(self) -> Iterator[None]:
        with signals_blocked():
            self._raises = False
            yield

    def next(self, within_s: float) -> ReceivedSignal | None:
        """The next signal within that time; None if there is none, or when a child has ended or stopped."""
        found = signal.sigtimedwait(self._heard | {signal.SIGCHLD}, within_s)
        if found is None or found.si_signo == signal.SIGCHLD:
            return None
        return ReceivedSignal(found.si_signo, found.si_pid if found.si_code <= _SI_USER_MAX else None)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._raises:
            self._raises = False
            raise Cancelled(number)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals: for good in threads started here, and in processes started here until `unblock_signals`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED | {signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock_signals() -> None:
    """Unblock the signals, as in a fresh process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED | {signal.SIGCHLD})


def stop_here() -> None:
    """Stop as with Ctrl-Z until continued. No effect where nothing could continue us: the kernel ignores it then."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
