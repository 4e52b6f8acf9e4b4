"""A task that holds a mark of a place, and does nothing else. This module travels by value, because grid is not
installed on other nodes."""

import time


def hold_a_mark() -> None:
    """Until it is cancelled."""
    while True:
        time.sleep(3600)
