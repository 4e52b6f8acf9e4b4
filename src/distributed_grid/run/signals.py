"""Signals that reach a run: who sent each, so that the program gets it exactly once.

What is typed at a terminal (Ctrl-C, Ctrl-Z) the kernel sends to all processes of the foreground group, to the program
as well as to us; what somebody sends to us with `kill` has reached us alone. The kernel tells which it was to whoever
waits for a signal, but a handler is not told. So while the program runs, signals are kept back and waited for.
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
"""Not about the run's end, as far as we know: the program may save its work, or tell what it does."""
HANDLED: Final = CANCELS | _PASSED_ON
_SI_USER_MAX: Final = 0
"""What a process has sent has a code up to this (man 2 sigaction); the kernel's own are above."""


class Cancelled(BaseException):
    """Before the program has begun, somebody asked for the run's end; as with KeyboardInterrupt, all is let go."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(frozen=True, slots=True)
class Told:
    """One signal."""

    number: int
    sender: int | None
    """The process; None if it was the kernel, which sends to the whole foreground group of a terminal."""

    @property
    def is_typed(self) -> bool:
        """Somebody is there, at the terminal; a hangup says that nobody is."""
        return self.sender is None and self.number != signal.SIGHUP

    def has_reached(self, pid: int) -> bool:
        """Whether that process has it, too: a program may have left our group."""
        try:
            return self.sender is None and os.getpgid(pid) == os.getpgrp()
        except ProcessLookupError:
            return True  # there is nobody to tell


class Signals:
    """While it is entered: until the program begins, a signal that cancels raises `Cancelled`, once. Then they are
    kept back for `next`, and what comes after the program's end changes nothing any more."""

    def __init__(self) -> None:
        # What was ignored before stays so, as `nohup` and a shell's `&` want it; but there must be a way to end a run.
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
        with kept_back():
            self._raises = False
            yield

    def next(self, within_s: float) -> Told | None:
        """The next one, if it comes soon; None as well when a child has ended or stopped."""
        found = signal.sigtimedwait(self._heard | {signal.SIGCHLD}, within_s)
        if found is None or found.si_signo == signal.SIGCHLD:
            return None
        return Told(found.si_signo, found.si_pid if found.si_code <= _SI_USER_MAX else None)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._raises:
            self._raises = False
            raise Cancelled(number)


@contextmanager
def kept_back() -> Iterator[None]:
    """They wait meanwhile; for threads that are started here, for good, and for processes unless they `let_in` them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED | {signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_in() -> None:
    """Again as it is for a process that nobody has changed it for."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED | {signal.SIGCHLD})


def stop_here() -> None:
    """As Ctrl-Z does, until somebody lets us go on; nothing where nobody could (then the kernel passes it over)."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
