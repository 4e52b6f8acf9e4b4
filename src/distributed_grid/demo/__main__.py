"""`python -m distributed_grid.demo`: the exit code says whether every claim held."""

import sys

from distributed_grid.cli.output import explain
from distributed_grid.demo.performance import ended_by_the_first_signal
from distributed_grid.demo.show import Show
from distributed_grid.errors import GridError


def main() -> int:
    show = Show()
    try:
        with ended_by_the_first_signal():
            from distributed_grid.demo.performance import play

            play(show)
    except GridError as error:
        explain(error, as_json=False)
        return error.exit_code
    except KeyboardInterrupt:
        show.stopped()
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
