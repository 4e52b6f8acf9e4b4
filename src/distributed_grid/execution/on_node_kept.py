"""A command under a keeper, seen from whoever wants it: it ends when this process does, however that ends.

This module travels by value: it may import only what Python ships. The text of the keeper is read where grid is
installed, and travels along.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import resources
from typing import Any, Final

_KEEPER: Final = (resources.files("distributed_grid.execution") / "on_node_keeper.py").read_text()
_SHOWN_AS: Final = "grid-keeper"


class Kept:
    """One command, or none yet; `on_node_keeper.py` says what may be told and heard."""

    def __init__(self) -> None:
        # What it is to do comes on a pipe: the arguments of a process are seen by everybody on its machine.
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEPER, _SHOWN_AS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd="/",
        )
        self._keeper.wait()  # it goes on in a process that is no child of this one

    def tell(self, **order: Any) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):  # it has ended; what it said last tells how
            self._keeper.stdin.write(json.dumps(order).encode() + b"\n")
            self._keeper.stdin.flush()

    def heard(self) -> Iterator[dict[str, Any]]:
        """As it is said; over when nothing of the command is left."""
        assert self._keeper.stdout is not None
        with self._keeper.stdout as lines:
            yield from map(json.loads, lines)

    def let_go(self) -> None:
        """It is wanted no longer."""
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()
