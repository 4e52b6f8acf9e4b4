"""A signal ends a long-lived process of grid in order; a second one at once, or not at all."""

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import signal, sys
from distributed_grid.cluster.end_signals import EndRequested, EndSignals

signal.signal(signal.SIGHUP, signal.SIG_IGN)
with EndSignals(may_insist={insists}) as signals:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as a library may
    signals.listen()
    signal.raise_signal(signal.SIGHUP)
    try:
        signal.raise_signal(signal.SIGTERM)
    except EndRequested as told:
        print(told, flush=True)
    if {again}:
        signal.raise_signal(signal.SIGINT)
signal.raise_signal(signal.SIGTERM)
print("after it", flush=True)
"""


@pytest.mark.parametrize(
    ("insists", "again", "code", "reported"),
    [
        (True, True, -signal.SIGINT, "SIGTERM"),
        (True, False, -signal.SIGTERM, "SIGTERM"),  # the handlers from before the block are back
        (False, True, 0, "SIGTERM\nafter it"),
    ],
)
def test_the_first_signal_raises_and_ignored_ones_stay_ignored(
    insists: bool, again: bool, code: int, reported: str
) -> None:
    program = PROGRAM.format(insists=insists, again=again)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (code, reported), done.stderr
