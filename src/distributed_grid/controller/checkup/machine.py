"""A look at the Python that `grid` runs in."""

import platform
import sys

from distributed_grid.model.checkup_facts import MachineFacts, in_one_line


def look_at_machine() -> MachineFacts:
    python = platform.python_version()
    try:
        import ray

        return MachineFacts(python, sys.executable, str(ray.__version__))
    except Exception as error:  # noqa: BLE001 - a broken installation can fail in any way
        return MachineFacts(python, sys.executable, None, in_one_line(error))
