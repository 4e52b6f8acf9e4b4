"""The run monitor: passes reports on, delivers notices, and ends the program with its lease."""

from __future__ import annotations

import json
import os
import signal
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from distributed_grid.model.endings import TERM_S, why_it_ends
from distributed_grid.model.times import clock, span
from distributed_grid.run.driver import GRACE_S, Driver
from distributed_grid.run.held_lease import AskedBack, HeldLease
from distributed_grid.run.reports import Reports
from distributed_grid.run.signals import CANCELS, ReceivedSignal, Signals, stop_here

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostEnding

UNATTENDED_S: Final = 5.0
TYPED_S: Final = 30.0
"""A user who types Ctrl-C can type it again, so the program gets longer to save its work."""
HINT_S: Final = 3.0
_ECHO_S: Final = 1.0
"""One request may arrive as several signals: `timeout` signals a process and its group, systemd sends TERM and HUP."""


@dataclass(frozen=True, slots=True)
class EndRequest:
    """A signal that asked for the program's end, and when it came."""

    by: ReceivedSignal
    at: float
    is_hinted: bool = False

    def is_insisted_on(self, told: ReceivedSignal, now: float) -> bool:
        """Whether this signal asks for the end again, so that the program must end now."""
        return told.is_typed or told.sender != self.by.sender or now - self.at > _ECHO_S

    def is_over(self, now: float) -> bool:
        return now - self.at > (TYPED_S if self.by.is_typed else UNATTENDED_S)

    def wants_a_hint(self, now: float) -> bool:
        """Whether to tell the waiting user how to end it faster."""
        return self.by.is_typed and not self.is_hinted and now - self.at > HINT_S


_STDIN: Final = 0
_STDOUT: Final = 1
_STDERR: Final = 2


def is_read_by_key() -> bool:
    """Whether the program reads the terminal key by key, as editors do, and shells and debuggers at a prompt."""
    try:
        return os.isatty(_STDOUT) and not termios.tcgetattr(_STDIN)[3] & termios.ICANON
    except termios.error:
        return False  # its input is not the terminal


def is_ours() -> bool:
    """Whether this process is in the terminal's foreground; a run that was sent to the background is not."""
    try:
        return os.isatty(_STDOUT) and os.tcgetpgrp(_STDERR) == os.getpgrp()
    except OSError:  # not a terminal, or not this session's
        return False


_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class RunOutput:
    """A run's output to its user: lines that stay, and one status line that is overwritten until it is wiped."""

    say: Callable[[str], None]
    status: Callable[[str], None]
    wipe: Callable[[], None]


class ReclaimMessages:
    """Tells the user and the program that the lease is asked back: once, and again if that changes."""

    def __init__(self, lease: HeldLease, say: Callable[[str], None], file: Path | None = None) -> None:
        """`file` exists while the lease is asked back; the program may watch it."""
        self._lease, self._say, self._file = lease, say, file
        self._told: BoostEnding | None = None

    def look(self, who: str = "The program") -> AskedBack | None:
        """Whether the lease is asked back; the user and the program have been told."""
        asked = self._lease.asked
        if asked is not None and asked.ending != self._told:
            self._say(f"grid: {in_words(asked, self._lease.id, who)}")
            self._write(asked)
        elif asked is None and self._told is not None:
            self._say(f"grid: boost {self._lease.id[:8]} is no longer reclaimed.")
            if self._file is not None:
                self._file.unlink(missing_ok=True)
        self._told = None if asked is None else asked.ending
        return asked

    def gone(self) -> None:
        """The lease is gone, but its programs may still run. From now on the hook in them refuses submissions: Ray
        would let them wait for ever for a placement group that was removed."""
        ending = self._lease.ending
        why = self._lease.ended or ("its grace period is over" if ending is None else why_it_ends(ending))
        self._put({"boost_id": self._lease.id, **(ending or {}), "ends_in_seconds": 0.0, "gone": why})

    def _write(self, asked: AskedBack) -> None:
        self._put({"boost_id": self._lease.id, **asked.ending, "ends_in_seconds": round(asked.left_s, 3)})

    def _put(self, told: Mapping[str, object]) -> None:
        if self._file is None:
            return
        new = self._file.with_suffix(".new")
        with suppress(OSError):  # the user has been told as well
            new.write_text(json.dumps(told) + "\n")
            new.replace(self._file)


def in_words(asked: AskedBack, boost_id: str, who: str) -> str:
    why, left_s = why_it_ends(asked.ending), asked.left_s
    if left_s <= 0:
        return f"boost {boost_id[:8]} is being returned: {why}. Its grace period is over."
    now = datetime.now(UTC)
    at = clock(now + timedelta(seconds=left_s), now=now)
    return (
        f"boost {boost_id[:8]} is being returned: {why}. {who} keeps it until {at} (for {span(left_s)}), and must "
        f"save its work by then."
    )


class RunMonitor:
    """`cancelled`: the signal that asked for the program's end, if any; `is_taken`: the end of the lease ended it."""

    def __init__(
        self,
        driver: Driver,
        lease: HeldLease,
        reports: Reports,
        output: RunOutput,
        signals: Signals,
        reclaim_file: Path,
    ) -> None:
        self._driver, self._lease, self._reports, self._output = driver, lease, reports, output
        self._signals = signals
        self._asked: EndRequest | None = None
        self._reclaim = ReclaimMessages(lease, output.say, reclaim_file)
        self.is_taken = False

    @property
    def cancelled(self) -> int | None:
        return None if self._asked is None else self._asked.by.number

    def until_it_ends(self) -> int:
        """Wait for the program, and end all that it started. Returns its exit code."""
        while (code := self._driver.exit_code()) is None:
            told = self._signals.next(_POLL_S)
            self._tell_the_news()
            asked = self._reclaim.look()
            if self._lease.ended is not None:
                self._output.say(f"grid: the lease is gone: {self._lease.ended}. The program is being terminated.")
                return self._taken()
            if asked is not None and asked.left_s <= 0:
                self._output.say(
                    f"grid: the grace period is over. The program gets SIGTERM, and SIGKILL in {TERM_S:g} s."
                )
                return self._taken()
            if told is not None and self._is_enough(told):
                return self._driver.end(0.0)
            if self._asked is not None and self._is_too_long(time.monotonic()):
                return self._driver.end(GRACE_S)
        self._driver.end(0.0)  # the processes that it left behind
        if code != 0 and self._asked is None and (why := self._lease.why_ended()) is not None:
            self.is_taken = True
            self._output.say(f"grid: the lease is gone: {why}. This is why the program failed.")
        return code

    def _taken(self) -> int:
        self.is_taken = True
        return self._driver.end(TERM_S)

    def _tell_the_news(self) -> None:
        for text in self._reports.news():
            self._output.say(f"grid: {text}")

    def _is_enough(self, told: ReceivedSignal) -> bool:
        """Pass the signal on, unless the program has it. Returns whether this is a second request to end: end now."""
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
            self._asked = EndRequest(told, now)
        return False

    def _is_too_long(self, now: float) -> bool:
        assert self._asked is not None
        if self._asked.by.is_typed and is_read_by_key():
            self._asked = None  # the signal was for the program itself: a shell or a debugger at its prompt
            return False
        if self._asked.wants_a_hint(now):
            left = self._asked.at + TYPED_S - now
            self._output.say(f"grid: the program has {left:.0f} s to exit; press Ctrl-C again to end it now")
            self._asked = replace(self._asked, is_hinted=True)
        return self._asked.is_over(now)

    def _pause(self, number: int, reached: bool) -> None:
        """Stop with the program, and continue with it."""
        if not reached:
            self._driver.tell(number)
        self._output.wipe()
        stop_here()
        if not reached:
            self._driver.tell(signal.SIGCONT)
