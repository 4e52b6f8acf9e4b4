"""A word to who waits longer than expected."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from distributed_grid.cli.output import say

_SOON_S = 2.0


@contextmanager
def told_if_it_takes_long(message: str, after_s: float = _SOON_S) -> Iterator[None]:
    """Say this, once, if what is done here is not done soon."""
    timer = threading.Timer(after_s, say, [message])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
