"""Ending early, yet cleanly."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_by_the_first_signal() -> Iterator[None]:
    """The first of Ctrl-C, TERM and HUP leaves the block by an exception; those after it are ignored.

    A second Ctrl-C would otherwise break off the cleaning up, and leave half a cluster behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> NoReturn:
        for other in _ENDING:
            signal.signal(other, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    # What the caller ignores, as nohup does, stays ignored.
    before = {s: handler for s in _ENDING if (handler := signal.getsignal(s)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
