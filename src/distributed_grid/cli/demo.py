"""grid demo: boosts on a real cluster, in under a minute."""

import signal
import subprocess
import sys

import click

from distributed_grid.cli.commands import Command


@click.command(cls=Command, examples=["grid demo"])
def demo() -> int:
    """See boosts work on a real cluster, with every claim checked against Ray.

    Uses this installation's embedded cluster if it is running and idle; otherwise starts one that ends with the demo.
    Exits with 9 if a claim does not hold.
    """
    # A separate process: the demo is a Ray driver, and the command never imports ray. The demo ends its cluster
    # itself, so a signal goes to the demo, and the command waits.
    with subprocess.Popen([sys.executable, "-P", "-m", "distributed_grid.demo"]) as playing:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda received, _: playing.send_signal(received))
        code = playing.wait()
    return code if code >= 0 else 128 - code
