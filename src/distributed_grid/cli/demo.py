"""grid demo: the whole thing at work, in under a minute."""

import signal
import subprocess
import sys

import click


@click.command()
def demo() -> int:
    """See boosts work on a real cluster, with every claim checked against Ray.

    Uses the embedded cluster that is running here if it is idle, else one of its own that ends with the demo.
    Exits with 9 if a claim does not hold.
    """
    # A process of its own: it is a Ray driver, and this one never imports ray. It ends its cluster by itself, so
    # whoever wants the demo to end tells it, and we wait.
    with subprocess.Popen([sys.executable, "-P", "-m", "distributed_grid.demo"]) as playing:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda told, _: playing.send_signal(told))
        code = playing.wait()
    return code if code >= 0 else 128 - code
