"""Beside the program while it runs: what it tells is said, what it is told it gets, and with its lease it ends."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from distributed_grid.running.driver import GRACE_S, Driver
from distributed_grid.running.held_lease import HeldLease
from distributed_grid.running.patience import TYPED_S, Asked
from distributed_grid.running.reports import Reports
from distributed_grid.running.signals import CANCELS, Signals, Told, stop_here
from distributed_grid.running.terminal import is_read_by_key

_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Voice:
    """How a run speaks to its user: lines that stay, and one that is written over, until it is wiped."""

    say: Callable[[str], None]
    status: Callable[[str], None]
    wipe: Callable[[], None]


class Attendant:
    """`cancelled` has the signal that asked for the program's end, if one did."""

    def __init__(self, driver: Driver, lease: HeldLease, reports: Reports, voice: Voice, signals: Signals) -> None:
        self._driver, self._lease, self._reports, self._voice = driver, lease, reports, voice
        self._signals = signals
        self._asked: Asked | None = None

    @property
    def cancelled(self) -> int | None:
        return None if self._asked is None else self._asked.by.number

    def until_it_ends(self) -> int:
        """Its exit code. Nothing that it started is left then."""
        while (code := self._driver.exit_code()) is None:
            told = self._signals.next(_POLL_S)
            self._tell_the_news()
            if self._lease.ended is not None:
                self._voice.say(f"grid: the lease is gone: {self._lease.ended}. The program is ended.")
                return self._driver.end()
            if told is not None and self._is_enough(told):
                return self._driver.end(0.0)
            if self._asked is not None and self._is_too_long(time.monotonic()):
                return self._driver.end(GRACE_S)
        self._driver.end(0.0)  # what it has left
        if code != 0 and self._asked is None and (why := self._lease.why_ended()) is not None:
            self._voice.say(f"grid: the lease is gone: {why}. That is why the program failed.")
        return code

    def _tell_the_news(self) -> None:
        for text in self._reports.news():
            self._voice.say(f"grid: {text}")

    def _is_enough(self, told: Told) -> bool:
        """The program gets it, once, if it has not; whether it is to end now, having been asked before."""
        reached = told.has_reached(self._driver.pid)
        if told.number == signal.SIGTSTP:
            self._pause(told.number, reached)
            return False
        now = time.monotonic()
        ends = told.number in CANCELS and not (told.is_typed and is_read_by_key())
        if ends and self._asked is not None and self._asked.is_insisted_on(told, now):
            return True
        if not reached and not (ends and self._asked is not None and told.number == self._asked.by.number):
            self._driver.tell(told.number)
        if ends and self._asked is None:
            self._asked = Asked(told, now)
        return False

    def _is_too_long(self, now: float) -> bool:
        assert self._asked is not None
        if self._asked.by.is_typed and is_read_by_key():
            self._asked = None  # it was meant for the program: a shell, a debugger, that asks for the next line
            return False
        if self._asked.wants_a_hint(now):
            left = self._asked.at + TYPED_S - now
            self._voice.say(f"grid: the program has {left:.0f} s to end; Ctrl-C again ends it now")
            self._asked = replace(self._asked, is_hinted=True)
        return self._asked.is_over(now)

    def _pause(self, number: int, reached: bool) -> None:
        """Stop with the program, and go on with it."""
        if not reached:
            self._driver.tell(number)
        self._voice.wipe()
        stop_here()
        if not reached:
            self._driver.tell(signal.SIGCONT)
