"""`python -m distributed_grid.demo`: the exit code says whether every claim held."""

import signal
import sys

from distributed_grid.cli.output import explain
from distributed_grid.cluster.end_signals import EndRequested, EndSignals
from distributed_grid.demo.show import Show
from distributed_grid.errors import GridError


def main() -> int:
    show = Show()
    try:
        with EndSignals(may_insist=False):  # a second Ctrl-C would leave half a cluster behind
            from distributed_grid.demo.performance import play

            play(show)
    except GridError as error:
        explain(error, as_json=False)
        return error.exit_code
    except EndRequested as asked:
        if asked.number is signal.SIGINT:
            show.stopped()
        return 128 + asked.number
    return 0


if __name__ == "__main__":
    sys.exit(main())
