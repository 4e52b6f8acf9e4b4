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
from distributed_grid.model.notices import idle_message
from distributed_grid.model.times import clock, parse_instant, span
from distributed_grid.run.driver import GRACE_S, Driver
from distributed_grid.run.held_lease import HeldLease, Reclaim
from distributed_grid.run.reports import Reports
from distributed_grid.run.signals import CANCELS, ReceivedSignal, Signals, stop_here

if TYPE_CHECKING:
    from distributed_grid.wire.boosts import BoostEnding, IdleMessage
    from distributed_grid.wire.values import Amounts

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

    def is_insisted_on(self, received: ReceivedSignal, now: float) -> bool:
        """Whether this signal asks for the end again, so that the program must end now."""
        return received.is_typed or received.sender != self.by.sender or now - self.at > _ECHO_S

    def is_over(self, now: float) -> bool:
        return now - self.at > (TYPED_S if self.by.is_typed else UNATTENDED_S)

    def wants_a_hint(self, now: float) -> bool:
        """Whether to tell the waiting user how to end it faster."""
        return self.by.is_typed and not self.is_hinted and now - self.at > HINT_S


_STDIN: Final = 0
_STDOUT: Final = 1


def is_read_by_key() -> bool:
    """Whether the program reads the terminal key by key, as editors do, and shells and debuggers at a prompt."""
    try:
        return os.isatty(_STDOUT) and not termios.tcgetattr(_STDIN)[3] & termios.ICANON
    except termios.error:
        return False  # its input is not the terminal


_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class RunOutput:
    """A run's output to its user: lines that stay, and one status line that is overwritten until it is wiped."""

    say: Callable[[str], None]
    status: Callable[[str], None]
    wipe: Callable[[], None]


class MessageFiles:
    """The files that a program may watch: those of a reclaim and of an idle lease exist while what they say is true."""

    def __init__(self, folder: Path) -> None:
        self.reclaim, self.idle = folder / "reclaim.json", folder / "idle.json"
        self.capacity = folder / "capacity.json"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "GRID_RECLAIM_FILE": str(self.reclaim),
            "GRID_IDLE_FILE": str(self.idle),
            "GRID_CAPACITY_FILE": str(self.capacity),
        }


class LeaseMessages:
    """Tells the user and the program that the lease is idle, and of its reclaim: once, and again if that changes."""

    def __init__(self, lease: HeldLease, say: Callable[[str], None], files: MessageFiles) -> None:
        self._lease, self._say, self._files = lease, say, files
        self._shown: tuple[BoostEnding, bool] | None = None
        self._idle: IdleMessage | None = None
        self._capacity: Amounts | None = None
        self._look_at_capacity()

    def look(self, who: str = "The program") -> Reclaim | None:
        """The current reclaim, if any. Has notified the user and the program of it, and of an idle lease."""
        self._look_for_idle()
        self._look_at_capacity()
        reclaim = self._lease.reclaim
        if reclaim is not None and (reclaim.ending, reclaim.may_be_withdrawn) != self._shown:
            self._say(f"grid: {in_words(reclaim, self._lease.id, who)}")
            self._write(reclaim)
        elif reclaim is None and self._shown is not None:
            self._say(f"grid: boost {self._lease.id[:8]} is no longer being reclaimed.")
            self._files.reclaim.unlink(missing_ok=True)
        self._shown = None if reclaim is None else (reclaim.ending, reclaim.may_be_withdrawn)
        return reclaim

    def _look_for_idle(self) -> None:
        """A program may become busy because of this message, so it is the only one until the lease is in use again."""
        idle = idle_message(self._lease.boost)
        if idle is not None and self._idle is None:
            since = clock(parse_instant(idle["idle_since"]), now=datetime.now(UTC))
            self._say(f"grid: boost {self._lease.id[:8]} is idle: {idle['reason']} since {since}.")
            _put(self._files.idle, idle)
        elif idle is None and self._idle is not None:
            self._files.idle.unlink(missing_ok=True)
        self._idle = idle

    def _look_at_capacity(self) -> None:
        """Tell the program what its lease has now: an elastic one grows and shrinks."""
        boost = self._lease.boost
        if boost["capacity"] != self._capacity:
            self._capacity = boost["capacity"]
            said = {"boost_id": boost["boost_id"], "capacity": boost["capacity"], "at_most": boost["at_most"]}
            _put(self._files.capacity, said)

    def gone(self) -> None:
        """The lease is gone, but its programs may still run. From now on the hook in them refuses submissions: Ray
        would let them wait for ever for a placement group that was removed."""
        ending = self._lease.ending
        why = self._lease.ended or ("its grace period is over" if ending is None else why_it_ends(ending))
        ended = {"boost_id": self._lease.id, **(ending or {}), "ends_in_seconds": 0.0, "gone": why}
        _put(self._files.reclaim, ended)

    def _write(self, reclaim: Reclaim) -> None:
        said = {"boost_id": self._lease.id, **reclaim.ending, "ends_in_seconds": round(reclaim.left_s, 3)}
        _put(self._files.reclaim, said)


def _put(file: Path, content: Mapping[str, object]) -> None:
    new = file.with_suffix(".new")
    with suppress(OSError):  # the user has seen the message as well, and a program can ask the controller
        new.write_text(json.dumps(content) + "\n")
        new.replace(file)


def in_words(reclaim: Reclaim, boost_id: str, who: str) -> str:
    why, left_s = why_it_ends(reclaim.ending), reclaim.left_s
    if reclaim.is_over:
        return f"boost {boost_id[:8]} is being returned: {why}. Its grace period is over."
    now = datetime.now(UTC)
    at = clock(now + timedelta(seconds=left_s), now=now)
    keeps = f"boost {boost_id[:8]} is being returned: {why}. {who} keeps it until {at} (for {span(left_s)})"
    if reclaim.may_be_withdrawn:
        return f"{keeps}, and for longer if it uses it again by then."
    return f"{keeps}, and must save its work by then."


class RunMonitor:
    """`cancelled`: the signal that asked for the program's end, if any; `is_taken`: the end of the lease ended it."""

    def __init__(
        self,
        driver: Driver,
        lease: HeldLease,
        reports: Reports,
        output: RunOutput,
        signals: Signals,
        files: MessageFiles,
    ) -> None:
        self._driver, self._lease, self._reports, self._output = driver, lease, reports, output
        self._signals = signals
        self._asked: EndRequest | None = None
        self._messages = LeaseMessages(lease, output.say, files)
        self.is_taken = False

    @property
    def cancelled(self) -> int | None:
        return None if self._asked is None else self._asked.by.number

    def until_it_ends(self) -> int:
        """Wait for the program, and end all that it started. Returns its exit code."""
        while (code := self._driver.exit_code()) is None:
            received = self._signals.next(_POLL_S)
            self._tell_the_news()
            reclaim = self._messages.look()
            if self._lease.ended is not None:
                self._output.say(f"grid: the lease is gone: {self._lease.ended}. The program is being terminated.")
                return self._taken()
            if reclaim is not None and reclaim.is_over:
                self._output.say(
                    f"grid: the grace period is over. The program gets SIGTERM, and SIGKILL in {TERM_S:g} s."
                )
                return self._taken()
            if received is not None and self._is_enough(received):
                return self._driver.end(0.0)
            if self._asked is not None and self._is_too_long(time.monotonic()):
                return self._driver.end(GRACE_S)
        self._driver.end(0.0)  # the processes that it left behind
        if code != 0 and self._asked is None and (why := self._lease.why_ended()) is not None:
            self.is_taken = True
            self._output.say(f"grid: the lease is gone: {why}. The program probably failed because of this.")
        return code

    def _taken(self) -> int:
        self.is_taken = True
        return self._driver.end(TERM_S)

    def _tell_the_news(self) -> None:
        for text in (*self._lease.losses(), *self._reports.news()):
            self._output.say(f"grid: {text}")

    def _is_enough(self, received: ReceivedSignal) -> bool:
        """Pass the signal on, unless the program has it. Returns whether this is a second request to end: end now."""
        reached = received.has_reached(self._driver.pid)
        if received.number == signal.SIGTSTP:
            self._pause(received.number, reached)
            return False
        now = time.monotonic()
        ends = received.number in CANCELS and not (received.is_typed and is_read_by_key())
        if ends and self._asked is not None and self._asked.is_insisted_on(received, now):
            return True
        if not reached and not (ends and self._asked is not None and received.number == self._asked.by.number):
            self._driver.tell(received.number)
        if ends and self._asked is None:
            self._asked = EndRequest(received, now)
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
